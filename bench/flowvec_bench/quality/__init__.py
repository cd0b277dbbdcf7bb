"""How good vectors are: similarity, retrieval, isotropy, words."""
