"""What every model is made of: projections, norms, the dense feed-forward network."""
