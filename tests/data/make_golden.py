"""Writes golden/mini.json: what the shipped model gives for a few texts on the CPU provider.

    python tests/data/make_golden.py

To be run when the shipped bundle is replaced, and at no other time.
"""

from __future__ import annotations

import json
from pathlib import Path

from flowvec import Encoder

OUT = Path(__file__).resolve().parent / "golden/mini.json"
TEXTS = [
    "",
    "A kitten plays with a ball of wool.",
    "Stocks fell on Monday as investors feared that rates would rise again.",
    "how do plants make food",
    "São Paulo, 12,345 inhabitants & 6.78 %",
    "不 слово qwxyzzy ✓",
    "one word after another " * 100,
]


def main() -> None:
    with Encoder.load("mini", provider="cpu", compute="float32") as encoder:
        vectors = encoder.encode(TEXTS)
        golden = {
            "fingerprint": encoder.fingerprint,
            "texts": TEXTS,
            "vectors": [[round(float(x), 7) for x in row] for row in vectors],
        }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(golden, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
