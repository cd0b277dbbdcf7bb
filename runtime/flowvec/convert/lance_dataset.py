"""Writes rows to a Lance dataset, which LanceDB opens as a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowvec.arrow import imported_arrow
from flowvec.convert.parquet_file import with_description
from flowvec.convert.rows import Rows

__all__ = ["write_lance"]


def write_lance(out: Path, rows: Rows) -> tuple[str, ...]:
    """Write a dataset of one version, with the rows in the source's order.

    Raises:
        ConvertError: the source is damaged.
    """
    import lance

    schema = with_description(rows.schema, rows.info)
    failures: list[Exception] = []

    def blocks() -> Iterator[Any]:
        try:
            for block in rows.unsorted():
                yield block.cast(schema)
        except Exception as error:
            failures.append(error)
            raise

    reader = imported_arrow().RecordBatchReader.from_batches(schema, blocks())
    try:
        lance.write_dataset(reader, str(out))
    except Exception as error:
        # Lance passes on only the text of an error in its input.
        raise (failures[0] if failures else error) from None
    return ('import lance; dataset = lance.dataset("{target}")',)
