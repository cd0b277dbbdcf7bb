"""Vectors of bulk jobs and collections in the formats of other tools.

>>> from flowvec.convert import convert
>>> with Collection.create("notes", encoder=Encoder.load("mini")) as notes:
...     notes.add(["a", "b"], ["The cat sleeps.", "Stocks fell."])
Added(rows=2, replaced=0, truncated=0)
>>> convert("notes", "notes.faiss", "faiss").rows
2
"""

from flowvec.convert.converting import convert
from flowvec.convert.options import Converted, ConvertFormat, ConvertProgress, Labels
from flowvec.convert.qdrant_points import point_id
from flowvec.errors import ConvertError

__all__ = [
    "ConvertError",
    "ConvertFormat",
    "ConvertProgress",
    "Converted",
    "Labels",
    "convert",
    "point_id",
]
