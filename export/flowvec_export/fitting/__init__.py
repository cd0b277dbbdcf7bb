"""Fits transforms on the vectors of a corpus."""
