"""Parts of an encoder: its backbone and its pooling."""
