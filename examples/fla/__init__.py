"""flash-linear-attention's kernels as a target."""
