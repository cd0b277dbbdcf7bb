"""The checkpoints in this repository give the vectors of the shipped model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from flowvec import Encoder
from flowvec_export.assembly.parity import Parity
from flowvec_export.sources.load import read_source

MODELS = Path(__file__).resolve().parents[2] / "models"
TEXTS = ["A man is eating bread.", "Stocks fell on Monday.", "the", "Sao Paulo, 12,345!"]


@pytest.mark.parity
def test_sentence_transformers_reads_minis_checkpoint(mini: Encoder) -> None:
    model = SentenceTransformer(str(MODELS / "mini" / "checkpoint"), device="cpu").float()
    parity = Parity.of(np.asarray(model.encode(TEXTS)), mini.encode(TEXTS))
    assert parity.min_cosine >= 0.99999


@pytest.mark.parity
def test_both_generations_of_transformers_read_each_others_tokenizers(tmp_path: Path) -> None:
    """Transformers 5 names a class of tokenizers that transformers 4 does not have."""
    source = Path(shutil.copytree(MODELS / "backbone" / "checkpoint", tmp_path / "backbone"))
    file = source / "tokenizer_config.json"
    ids = []
    for name in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"tokenizer_class": name}))
        read = read_source(source)
        assert read.max_length == 128
        ids.append([encoding.ids for encoding in read.tokenizer.encode_batch(TEXTS)])
    assert ids[0] == ids[1]
