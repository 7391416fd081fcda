"""Model families: how each reads its configuration, and what its checkpoints call things."""
