"""Published models of sentence-transformers, whose weights the tests do not bring.

    FLOWVEC_PUBLISHED=./all-MiniLM-L6-v2 python -m pytest -n 0 tests/export/test_published.py

Several folders are separated as in PATH.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from flowvec import Encoder
from flowvec.demo import load_passages
from flowvec_export import export
from flowvec_export.assembly.parity import Parity

FOLDERS = [Path(folder) for folder in os.environ.get("FLOWVEC_PUBLISHED", "").split(os.pathsep)]
TEXTS = [*(passage.text for passage in load_passages()[:300]), "", "word " * 2000, "São Paulo 東京"]


@pytest.mark.skipif(
    "FLOWVEC_PUBLISHED" not in os.environ, reason="needs FLOWVEC_PUBLISHED, a published model"
)
@pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_a_published_model_gives_its_own_vectors(folder: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    export(folder, tmp_path / "bundle", calibration=())
    with Encoder.load(tmp_path / "bundle", provider="cpu", compute="float32") as encoder:
        for ours, theirs in (
            (encoder.encode(TEXTS), model.encode(TEXTS)),
            (encoder.encode_query(TEXTS), model.encode_query(TEXTS)),
            (encoder.encode_document(TEXTS), model.encode_document(TEXTS)),
        ):
            parity = Parity.of(np.asarray(theirs), ours)
            assert parity.max_relative_error <= 1e-4
            assert parity.min_cosine >= 0.99999
