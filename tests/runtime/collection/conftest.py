"""What the tests of collections share."""

from __future__ import annotations

from flowvec.collection.store.settings import CollectionSettings

TEXTS = ["the cat sleeps", "a dog runs", "stocks fell", "a man eats bread"]
SETTINGS = CollectionSettings(
    dim=3, metric="cosine", m=16, ef_construction=200, created="now", created_by="a test"
)
