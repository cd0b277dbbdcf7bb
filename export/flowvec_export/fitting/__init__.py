"""Fitting a transform on the vectors of a corpus."""
