"""Arguments of Chroma, LanceDB and other stores, and what a Collection's methods take instead."""

from __future__ import annotations

__all__ = ["OF_ADD", "OF_ROWS", "OF_SEARCH"]

OF_ROWS = {
    "where": "write filter=",
    "where_document": 'write filter={"$text": {"contains": "..."}}',
    "include": "rows have id, text and metadata; list(with_vectors=True) has vectors too",
    "metadatas": "write changes=",
    "values": "write changes=",
}
OF_SEARCH = {
    "top_k": "write k=",
    "n_results": "write k=",
    "limit": "write k=",
    "where": "write filter=",
    "where_document": 'write filter={"$text": {"contains": "..."}}',
    "query_texts": "give a text to search, or several to search_batch",
    "query_embeddings": "give a vector to search, or several to search_batch",
    "include": "hits have id, score, text and metadata; with_vectors=True adds vectors",
    "threshold": "write min_score=",
    "score_threshold": "write min_score=",
    "batch_size": "texts are batched by their tokens; leave it out",
}
OF_ADD = {
    "documents": "write texts=",
    "metadatas": "write metadata=",
    "payloads": "write metadata=",
    "embeddings": "add_vectors takes them as vectors=",
    "batch_size": "texts are batched by their tokens; leave it out, and add thousands at a time",
}
