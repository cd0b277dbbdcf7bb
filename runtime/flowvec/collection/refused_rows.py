"""Names the row of a file that a collection refuses.

A change is checked as a whole, and its errors count the rows from its first. Whoever gave files
does not know where a change began.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flowvec.collection.store.rows import Rows, check_ids
from flowvec.collection.validation import check_metadata, check_vectors, round_to_float16
from flowvec.errors import FlowvecError, InputTypeError, InputValueError

__all__ = ["naming_row"]


def naming_row(error: FlowvecError, rows: Rows, dtype: str) -> FlowvecError:
    """The error of a change that was refused, with the first refused row in words of its file.

    Args:
        error: as the change raised it; it is returned if every row alone would be taken, or the
            rows are not of a file.
        rows: the rows of the change.
        dtype: how vectors are stored.
    """
    if rows.place_of is None:
        return error
    dim = rows.vectors.shape[1]
    for row in range(len(rows.ids)):
        vector = rows.vectors[row : row + 1]
        checks: list[tuple[str, str, Callable[[], object]]] = [
            ("id 0", "its id", partial(check_ids, [rows.ids[row]])),
            ("row 0 of vectors", "its vector", partial(check_vectors, vector, dim, "vectors")),
            ("metadata 0", "its metadata", partial(check_metadata, [rows.metadata[row]], 1)),
        ]
        if dtype == "float16":
            checks += [("row 0 of the vectors", "its vector", partial(round_to_float16, vector))]
        for counted, named, check in checks:
            try:
                check()
            except (InputTypeError, InputValueError) as reason:
                what = str(reason).replace(counted, named, 1)
                return type(reason)(f"{rows.place_of(row)}: {what}")
    return error
