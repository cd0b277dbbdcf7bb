"""ColBERT-style models: sentence-transformers' token vectors, for every form of source."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

from flowvec import Bundle, ExportError, InputValueError, MultiVectorEncoder
from flowvec_export import export
from flowvec_export.sources.late_interaction import read_about_tokens, read_as_pylate
from tests.export.conftest import POSITIONS, TEXTS
from tests.export.late_interaction import (
    EXPANSION,
    make_colbert,
    make_encoder,
    make_pylate,
    vectors_of,
)

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(
        int(version("sentence-transformers").partition(".")[0]) < 6,
        reason="this sentence-transformers has no MultiVectorEncoder",
    ),
]

# Punctuation and upper case, so that tokens are skipped and markers meet a normalizer.
PLAIN = [*TEXTS, "A cat, a dog. And, 12,345 stocks.", "[Q] who? [MASK]", "the cat sleeps"]
KINDS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "bert, not attended": ("bert", EXPANSION, {}),
    "bert, at least": ("bert", {"strategy": "min", "attend": False, "length": 9}, {}),
    "bert, none": ("bert", None, {"query_length": 12, "document_length": 20}),
    "roberta, attended": ("roberta", {**EXPANSION, "attend": True}, {"document_length": 25}),
    "modernbert, queries skip": (
        "modernbert", EXPANSION, {"skiplist_tasks": ["query", "document"]}
    ),
}  # fmt: skip


def compare(bundle: Bundle, source: Path, texts: list[str]) -> None:
    """All texts together, so that a text's padding would show."""
    expected = vectors_of(source, texts)
    with MultiVectorEncoder.load(bundle.path, provider="cpu", compute="float32") as model:
        ours = model.encode_query(texts), model.encode_document(texts)
    for side, other in zip(ours, expected, strict=True):
        assert [len(a) for a in side] == [len(b) for b in other]
        for a, b in zip(side, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)


@pytest.mark.exports(but=1)
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_sentence_transformers(kind: str, tmp_path: Path) -> None:
    architecture, expansion, settings = KINDS[kind]
    source = make_colbert(tmp_path, architecture, expansion, **settings)
    compare(export(source, tmp_path / "bundle"), source, PLAIN)


@pytest.mark.exports
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attend_to_expansion_tokens": True, "prompts": {"query": "the ", "document": ""}},
        {"do_query_expansion": False, "skiplist_words": []},
        {"model_type": None},
        {"model_type": None, "similarity_fn_name": None, "skiplist_words": None},
    ],
    ids=["as saved", "attended", "not filled up", "PyLate 1.1", "PyLate 1.0"],
)
def test_pylates_layout(changes: dict[str, Any], tmp_path: Path) -> None:
    source = make_pylate(tmp_path, **changes)
    compare(export(source, tmp_path / "bundle"), source, PLAIN)


def test_the_manifest_says_how_texts_are_read(tmp_path: Path) -> None:
    bundle = export(make_pylate(tmp_path), tmp_path / "bundle")
    head = bundle.manifest.late_interaction
    assert head is not None
    assert (head.query_length, head.document_length, head.expansion_length) == (16, 30, 16)
    assert not head.expansion_is_attended
    assert bundle.manifest.max_length == 30
    assert bundle.manifest.prompts == {"query": "[Q] ", "document": "[D] "}
    assert bundle.manifest.transform == ("dense(48->12, identity)",)
    assert bundle.manifest.parity["max_relative_error"] <= 1e-4


def test_pylate_skips_unknown_words_where_it_skips_a_word_that_is_unknown(tmp_path: Path) -> None:
    words = {}
    for name, skipped in {"known": [","], "unknown": [",", "\u2603"]}.items():
        bundle = export(make_pylate(tmp_path / name, skiplist_words=skipped), tmp_path / name / "b")
        head = bundle.manifest.late_interaction
        assert head is not None
        tokenizer = Tokenizer.from_file(str(bundle.path / "tokenizer.json"))
        words[name] = {tokenizer.id_to_token(i) for i in head.skipped_tokens}
    assert words == {"known": {","}, "unknown": {",", "[UNK]"}}


def test_pylates_lengths_where_its_files_do_not_say(tmp_path: Path) -> None:
    source = make_pylate(tmp_path, query_length=None, document_length=None)
    about = read_about_tokens(source, json.loads((source / "modules.json").read_text()), "it")
    assert (about.query_length, about.document_length) == (32, 180)
    assert about.expansion is not None
    assert about.expansion.length == 32


@pytest.mark.parametrize("architecture", ["bert", "roberta", "xlm-roberta"])
def test_texts_of_pylate_are_stripped(architecture: str, tmp_path: Path) -> None:
    folder = make_encoder(tmp_path, architecture)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain = tokenizer.encode("The cat. A dog").ids
    read_as_pylate(tokenizer, ("[Q] ", "[D] "), "it")
    for text in ("The cat. A dog", " \tThe cat. A dog\n "):
        first, marker, *others = tokenizer.encode("[D] " + text).ids
        assert [first, *others] == plain
        assert marker == tokenizer.token_to_id("[D] ")


def test_a_marker_that_changes_the_text_after_it_is_refused(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path, "bert")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with pytest.raises(ExportError, match=r"it has the marker '\[X\] '"):
        read_as_pylate(tokenizer, ("[X] ",), "it")  # no token of its own
    # Without a first token, PyLate inserts the marker after the text's first.
    tokenizer.post_processor = processors.TemplateProcessing(single="$A")
    with pytest.raises(ExportError, match=r"it has the marker '\[Q\] '"):
        read_as_pylate(tokenizer, ("[Q] ",), "it")


@pytest.mark.exports
def test_float16_weights_halve_the_file(tmp_path: Path) -> None:
    source = make_colbert(tmp_path)
    exact = export(source, tmp_path / "float32")
    half = export(source, tmp_path / "float16", weights="float16")
    assert half.manifest.files["model.onnx"].bytes < 0.7 * exact.manifest.files["model.onnx"].bytes
    assert half.manifest.parity["min_cosine_to_float32_weights"] >= 0.999


def test_max_length_is_that_of_documents(tmp_path: Path) -> None:
    source = make_colbert(tmp_path)
    bundle = export(source, tmp_path / "bundle", max_length=20)
    head = bundle.manifest.late_interaction
    assert head is not None
    assert (head.query_length, head.document_length) == (16, 20)
    with pytest.raises(ExportError, match=f"max_length .*3 to {POSITIONS}"):
        export(source, tmp_path / "other", max_length=POSITIONS + 1)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pooling": "mean"}, "pools nothing, so pooling cannot be used"),
        ({"variants": ["float16"]}, "a multi-vector encoder has no float16 variant"),
    ],
)
def test_options_of_embedders_are_refused(
    options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises((ExportError, InputValueError), match=reason):
        export(make_pylate(tmp_path), tmp_path / "bundle", **options)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("sentence_transformers.multi_vector_encoder.modules.HierarchicalPooling", "but is"),
        ("pylate.models.Mine", "code of its own"),
    ],
)
def test_other_modules_are_refused(kind: str, reason: str, tmp_path: Path) -> None:
    source = make_pylate(tmp_path)
    modules = json.loads((source / "modules.json").read_text())
    modules[1]["type"] = kind
    (source / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ExportError, match=reason):
        export(source, tmp_path / "bundle")
