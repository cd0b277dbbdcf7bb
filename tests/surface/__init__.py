"""The surface of flowvec as text: what a user can name or read, and what may not change unseen."""
