"""The surface of flowvec as text files: what a user can name, and what may not change unseen."""
