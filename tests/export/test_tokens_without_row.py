"""An export compares the tokenizer's ids with the rows of the embedding table."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import transformers

from flowvec.errors import ExportError
from flowvec_export import export
from flowvec_export.staged_bundle import tokens_without_row
from tests.export.conftest import Checkpoint


def _with_token(source: Path, folder: Path, token: str, **names: str) -> Path:
    """A copy of a checkpoint with one more token, whose table is not resized."""
    shutil.copytree(source, folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([token])
    tokenizer.add_special_tokens(names)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_token_without_a_row_is_named(
    bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = _with_token(bert, tmp_path / "source", "<ent>")
    with caplog.at_level(logging.WARNING):
        bundle = export(source, tmp_path / "bundle", calibration=[])
    assert list(tokens_without_row(bundle).values()) == ["<ent>"]
    assert "<ent>" in caplog.text


def test_a_padding_token_without_a_row_is_refused(
    bert: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    decoder = checkpoint("gpt2", n_positions=40)
    for number, source in enumerate((bert, decoder)):
        folder = _with_token(source, tmp_path / f"{number}", "<ent>", pad_token="<pad-new>")
        with pytest.raises(ExportError, match=r"pads with '<pad-new>'.* rows"):
            export(folder, tmp_path / "bundle", calibration=[])


def test_a_special_token_without_a_row_is_refused(bert: Path, tmp_path: Path) -> None:
    source = _with_token(bert, tmp_path / "source", "[NEW]")
    file = source / "tokenizer.json"
    raw = json.loads(file.read_text(encoding="utf-8"))
    number = next(each["id"] for each in raw["added_tokens"] if each["content"] == "[NEW]")
    raw["post_processor"]["single"].append({"SpecialToken": {"id": "[NEW]", "type_id": 0}})
    raw["post_processor"]["special_tokens"]["[NEW]"] = {
        "id": "[NEW]", "ids": [number], "tokens": ["[NEW]"]
    }  # fmt: skip
    file.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(ExportError, match=r"no row for '\[NEW\]'"):
        export(source, tmp_path / "bundle", calibration=[])
