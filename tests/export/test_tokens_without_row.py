"""An export compares the tokenizer's ids with the rows of the embedding table."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import transformers

from flowvec import Encoder
from flowvec.errors import ExportError, InputValueError
from flowvec_export import export
from flowvec_export.staged_bundle import tokens_without_row
from tests.conftest import DATA
from tests.export.conftest import Checkpoint
from tests.export.cross_encoders import make_cross_encoder


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
    # A word that reference and calibration texts have.
    source = _with_token(bert, tmp_path / "source", "which")
    with caplog.at_level(logging.WARNING):
        bundle = export(source, tmp_path / "bundle")
    assert list(tokens_without_row(bundle).values()) == ["which"]
    assert "no row for 'which'" in caplog.text
    with Encoder.load(bundle.path) as encoder:
        assert encoder.encode("a man", precision="int8").shape == (48,)
        with pytest.raises(InputValueError, match=r"item 0 .*'which'"):
            encoder.encode("a man which")


@pytest.mark.exports
def test_a_cross_encoder_and_a_graph_may_have_such_tokens(tmp_path: Path) -> None:
    source = make_cross_encoder(tmp_path / "pairs", "bert")
    folder = _with_token(source, tmp_path / "more", "which")
    assert list(tokens_without_row(export(folder, tmp_path / "a")).values()) == ["which"]
    graph = Path(shutil.copytree(DATA / "optimum" / "bert", tmp_path / "graph"))
    config = json.loads((graph / "config.json").read_text())
    del config["vocab_size"]
    (graph / "config.json").write_text(json.dumps(config))
    raw = json.loads((graph / "tokenizer.json").read_text())
    added = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    raw["added_tokens"] += [{"id": i, "content": f"<{i}>", **added} for i in range(102, 300)]
    (graph / "tokenizer.json").write_text(json.dumps(raw))
    settings = json.loads((graph / "tokenizer_config.json").read_text())
    del settings["added_tokens_decoder"]
    (graph / "tokenizer_config.json").write_text(json.dumps(settings))
    assert len(tokens_without_row(export(graph, tmp_path / "b"))) == 198


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
