"""What an encoder is made of: its backbone and its pooling."""
