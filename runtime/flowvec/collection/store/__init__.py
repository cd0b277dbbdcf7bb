"""The rows of a collection: one SQLite file that loses nothing."""

from flowvec.collection.store.store import Store

__all__ = ["Store"]
