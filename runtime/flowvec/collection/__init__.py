"""Rows on disk and their nearest neighbours."""

from flowvec.collection.collection import Collection

__all__ = ["Collection"]
