"""Rows on disk and their nearest neighbours."""

# The first `np.unique` would import it. A Ctrl-C in the middle of an import can leave the module
# locked for ever, and with it every other thread that searches.
import numpy.ma  # noqa: F401

from flowvec.collection.collection import Collection

__all__ = ["Collection"]
