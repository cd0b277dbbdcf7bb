"""Make the fixture of the folders of bulk jobs: `formats/bulk-v1`, by the bundle beside it.

    python tests/data/make_bulk.py

It holds the input, a whole job, and one that was stopped after two of four shards. A fixture that
is there stays as it is. Run it after the format has got a new number.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from flowvec import Encoder
from flowvec.bulk import encode_files
from flowvec.bulk.journal import Folder
from flowvec.bulk.records import VERSION, records_of

FORMATS = Path(__file__).resolve().parent / "formats"
OPTIONS: dict[str, Any] = {"out_format": "npy", "rows_per_shard": 10, "id_field": "id",
                           "keep": ["n"], "dedupe": True}  # fmt: skip


def main(folder: Path) -> None:
    folder.mkdir()
    os.chdir(folder)
    Path("in.jsonl").write_text(
        "".join(
            json.dumps({"id": 100 + i, "text": None if i % 9 == 4 else f"the cat {i} sleeps",
                        "n": i}) + "\n"
            for i in range(40)
        )
    )  # fmt: skip
    with Encoder.load(FORMATS / "bundle-v1", provider="cpu", compute="float32") as encoder:
        for name in ("whole", "begun"):
            encode_files(encoder, "in.jsonl", name, **OPTIONS)
    begun = Folder(Path("begun"))
    described = begun.read_manifest() or {}
    records = records_of(described.pop("shards"), begun.manifest)
    begun.split_dead_letters(records, records[:2])
    begun.write_manifest(described)
    begun.begin(records[:2]).close()
    begun.delete([begun.dead_letters])
    for file in (*folder.glob("*/.lock"), *folder.glob("begun/*part-00000[23].*")):
        file.unlink()


if __name__ == "__main__":
    main(FORMATS / f"bulk-v{VERSION}")
