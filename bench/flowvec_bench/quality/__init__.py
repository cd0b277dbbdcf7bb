"""Quality of vectors: similarity, retrieval, isotropy, words."""
