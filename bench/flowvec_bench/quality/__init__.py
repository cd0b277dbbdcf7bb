"""Measures the quality of vectors: similarity, retrieval, isotropy, words."""
