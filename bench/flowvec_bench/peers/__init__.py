"""Other libraries on the same weights and texts, each in its own environment."""
