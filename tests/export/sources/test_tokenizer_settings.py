"""A directory has one tokenization: the one that transformers makes of all its files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoTokenizer

from flowvec import Bundle, Encoder, ExportError
from flowvec.tokenizer.pairs import PairTokenizer
from flowvec_export import export
from flowvec_export.assembly.token_parity import _TEXTS, require_own_tokens
from flowvec_export.sources import read_source
from flowvec_export.sources.files import check_tokenizer, read_json
from flowvec_export.sources.tokenizer_settings import read_with_settings
from tests.export.conftest import byte_bpe
from tests.export.cross_encoders import as_optimum_exports, make_cross_encoder

pytestmark = pytest.mark.parity

ROOT = Path(__file__).resolve().parents[3]
OPTIMUM = ROOT / "tests/data/optimum"
TEXTS = [*_TEXTS, "The [NEW]one, a [MASK] and [mask]ed [UNK] the garden", "<mask> <extra> it"]
FLAGS = {"lstrip": False, "rstrip": False, "single_word": False, "special": True}
NEXT = 12000  # the id after the last of the vocabulary
# Before transformers 5 these could only have names.
LISTED_TOKENS = (
    [{"tokenizer_config": {"extra_special_tokens": ["garden"]}}]
    if int(transformers.__version__.split(".")[0]) >= 5
    else []
)


def token(content: str, **flags: Any) -> dict[str, Any]:
    return {"content": content, "normalized": False} | FLAGS | flags


def write(folder: Path, name: str, content: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def make(folder: Path, made: Any = None, kind: str = "bert", **files: Any) -> Path:
    """A directory with a tokenizer; `files` are what is beside it, by their names."""
    made = made or json.loads((ROOT / "models/backbone/checkpoint/tokenizer.json").read_text())
    write(folder, "tokenizer.json", made)
    write(folder, "config.json", {"model_type": kind})
    for name, content in files.items():
        write(folder, f"{name}.json", content)
    return folder


def read(folder: Path) -> tokenizers.Tokenizer:
    config = read_json(folder / "config.json")
    return read_with_settings(folder, check_tokenizer(folder), config).tokenizer


def assert_as_transformers(folder: Path) -> None:
    ours, theirs = read(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text


BERT = {"tokenizer_class": "BertTokenizer"}


@pytest.mark.parametrize(
    ("normalizer", "files"),
    [
        ({"lowercase": False}, {"tokenizer_config": BERT | {"do_lower_case": True}}),
        ({"lowercase": False}, {"tokenizer_config": BERT}),
        ({"lowercase": False}, {}),
        ({}, {"tokenizer_config": BERT | {"do_lower_case": False}}),
        ({}, {"tokenizer_config": BERT | {"strip_accents": False}}),
        ({"strip_accents": False}, {"tokenizer_config": BERT}),
        ({}, {"tokenizer_config": {"tokenize_chinese_chars": False}}),
        ({"handle_chinese_chars": False}, {"tokenizer_config": BERT}),
        # A class that reads tokenizer.json alone.
        (
            {"lowercase": False},
            {
                "tokenizer_config": {
                    "tokenizer_class": "PreTrainedTokenizerFast",
                    "do_lower_case": True,
                }
            },
        ),
    ],
)
def test_settings_of_the_normalizer_are_applied(
    tmp_path: Path, normalizer: dict[str, Any], files: dict[str, Any]
) -> None:
    made = json.loads((ROOT / "models/backbone/checkpoint/tokenizer.json").read_text())
    made["normalizer"] |= normalizer
    assert_as_transformers(make(tmp_path / "m", made, **files))


def specials(**more: Any) -> dict[str, Any]:
    made = json.loads((ROOT / "models/backbone/checkpoint/tokenizer.json").read_text())
    return {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in made["added_tokens"]
            } | more  # fmt: skip


GARDEN = json.loads((ROOT / "models/backbone/checkpoint/tokenizer.json").read_text())["model"][
    "vocab"
]["garden"]


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"added_tokens_decoder": specials(**{str(NEXT): token("[NEW]")})}},
        {"tokenizer_config": {"added_tokens_decoder": specials(**{str(GARDEN): token("garden")})}},
        {"added_tokens": {"[NEW]": NEXT}},
        {"added_tokens": {"garden": GARDEN}, "special_tokens_map": {"mask_token": "[MASK]"}},
        {"special_tokens_map": {"additional_special_tokens": ["garden", "<extra>"]}},
        *LISTED_TOKENS,
        {"special_tokens_map": {"bos_token": token("[NEW]", lstrip=True)}},
    ],
)
def test_tokens_of_the_files_beside_it_are_added(tmp_path: Path, files: dict[str, Any]) -> None:
    assert_as_transformers(make(tmp_path / "m", **files))


def test_special_tokens_are_added_though_tokenizer_json_has_them_as_words(tmp_path: Path) -> None:
    made = json.loads((ROOT / "models/backbone/checkpoint/tokenizer.json").read_text())
    made["added_tokens"] = []
    assert_as_transformers(make(tmp_path / "m", made, tokenizer_config=BERT))


@pytest.mark.parametrize("says", [True, False, None])
@pytest.mark.parametrize("has", [True, False])
def test_the_space_before_a_text_is_the_settings(
    tmp_path: Path, has: bool, says: bool | None
) -> None:
    bpe = byte_bpe(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=has)
    bpe.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    settings = {"tokenizer_class": "RobertaTokenizer"}
    settings |= {} if says is None else {"add_prefix_space": says}
    mask = {"mask_token": token("<mask>", lstrip=True, __type="AddedToken")}
    made = json.loads(bpe.to_str())
    made["added_tokens"][4]["lstrip"] = True
    folder = make(tmp_path / "m", made, "roberta", tokenizer_config=settings | mask)
    assert_as_transformers(folder)


def changed(**parts: Any) -> dict[str, Any]:
    made = json.loads((ROOT / "models/backbone/checkpoint/tokenizer.json").read_text())
    return made | parts


UNLISTED = changed()
UNLISTED["added_tokens"].append({"id": GARDEN} | token("garden"))
METASPACE = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True}


@pytest.mark.parametrize(
    ("field", "made", "settings"),
    [
        ("added_tokens_decoder", None, {"added_tokens_decoder": specials(**{"7": token("[NEW]")})}),
        (
            "added_tokens_decoder",
            None,
            {"added_tokens_decoder": specials(**{"4": token("[MASK]", lstrip=True)})},
        ),
        ("added_tokens_decoder", UNLISTED, {"added_tokens_decoder": specials()}),
        ("tokenizer_class", changed(normalizer={"type": "Lowercase"}), BERT),
        ("unk_token", None, BERT | {"unk_token": "[MASK]"}),
        ("do_lower_case", None, {"tokenizer_class": "AlbertTokenizer", "do_lower_case": False}),
        ("tokenizer_class", changed(pre_tokenizer={"type": "WhitespaceSplit"}), BERT),
        ("cls_token", None, BERT | {"cls_token": "[MASK]"}),
        ("cls_token", changed(post_processor=None), BERT),
        ("auto_map", None, {"auto_map": {"AutoTokenizer": ["a.B", None]}}),
        (
            "add_prefix_space",
            changed(pre_tokenizer=METASPACE),
            {"tokenizer_class": "XLMRobertaTokenizer", "add_prefix_space": False},
        ),
        ("do_lower_case", None, BERT | {"do_lower_case": "yes"}),
        ("names a token", None, {"added_tokens_decoder": {"7": 3}}),
        ("additional_special_tokens", None, {"additional_special_tokens": "[NEW]"}),
        ("extra_special_tokens", None, {"extra_special_tokens": 5}),
    ],
)
def test_files_that_disagree_are_refused(
    tmp_path: Path, field: str, made: Any, settings: dict[str, Any]
) -> None:
    folder = make(tmp_path / "m", made, tokenizer_config=settings)
    with pytest.raises(ExportError, match=field) as error:
        read(folder)
    assert "tokenizer_config.json" in str(error.value)


@pytest.mark.parametrize("ids", [["7"], [None], [[7]], [NEXT, NEXT]])
def test_added_tokens_without_ids_of_their_own_are_refused(tmp_path: Path, ids: list[Any]) -> None:
    added = {f"[NEW{i}]": number for i, number in enumerate(ids)}
    with pytest.raises(ExportError, match=r"added_tokens\.json"):
        read(make(tmp_path / "m", added_tokens=added))


def optimum(folder: Path, normalizer: dict[str, Any], **settings: Any) -> Path:
    """A copy of a graph's directory, with other settings."""
    shutil.copytree(OPTIMUM / "bert", folder)
    for name, change in (("tokenizer", {}), ("tokenizer_config", settings)):
        file = folder / f"{name}.json"
        content = json.loads(file.read_text()) | change
        if name == "tokenizer":
            content["normalizer"] |= normalizer
        file.write_text(json.dumps(content))
    return folder


def test_a_graphs_bundle_reads_texts_as_transformers_does(tmp_path: Path) -> None:
    folder = optimum(tmp_path / "m", {"lowercase": False}, tokenizer_class="BertTokenizer")
    export(folder, tmp_path / "b")
    theirs = AutoTokenizer.from_pretrained(folder)
    with Encoder.load(tmp_path / "b", provider="cpu") as encoder:
        for text in ("The CAT", "naïve Café", "東京 the cat"):
            assert encoder.tokenize([text]).ids[0] == theirs(text)["input_ids"]
    with Encoder.load(export(OPTIMUM / "bert", tmp_path / "lower").path, provider="cpu") as lower:
        assert lower.tokenize(["The CAT"]).ids == lower.tokenize(["the cat"]).ids


@pytest.mark.exports
def test_a_cross_encoders_graph_reads_pairs_as_transformers_does(tmp_path: Path) -> None:
    source = make_cross_encoder(tmp_path / "source", "bert")
    folder = as_optimum_exports(source, tmp_path / "optimum")
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | BERT | {"do_lower_case": False}
    file.write_text(json.dumps(settings))
    bundle = export(folder, tmp_path / "b")
    theirs = AutoTokenizer.from_pretrained(folder)
    pairs = [("The CAT", "a cat"), ("naïve Café", ""), ("東京", "The [SEP] dog")]
    ours = PairTokenizer(bundle.tokenizer, 60, with_types=False)(pairs).ids
    assert ours == theirs([a for a, _ in pairs], [b for _, b in pairs])["input_ids"]


def test_what_the_bundle_reads_otherwise_than_the_source_is_refused(tmp_path: Path) -> None:
    bundle = export(OPTIMUM / "bert", tmp_path / "b")
    source = read_source(OPTIMUM / "bert")
    require_own_tokens(bundle, source.own_tokens, "it")
    other = tokenizers.Tokenizer.from_file(str(bundle.tokenizer))
    other.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    with pytest.raises(ExportError, match="Café"):
        require_own_tokens(
            Bundle.load(tmp_path / "b"), lambda text, pair: other.encode(text, pair).ids, "it"
        )
