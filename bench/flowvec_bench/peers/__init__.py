"""Other libraries on the same weights and texts, each in an environment of its own."""
