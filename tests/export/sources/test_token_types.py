"""Token types of pairs: the tokenizer decides, as in sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from flowvec import ExportError, Reranker
from flowvec.bundle.manifest import TOKEN_TYPES
from flowvec_export import export
from flowvec_export.sources.token_types import gives_token_types
from tests.export.cross_encoders import (
    WITH_TYPES,
    WITHOUT_TYPES,
    as_optimum_exports,
    make_cross_encoder,
    pairs_of,
    scores_of,
)

pytestmark = pytest.mark.parity

BACKBONE = Path(__file__).resolve().parents[3] / "models" / "backbone" / "checkpoint"


def rename_tokenizer(folder: Path, **marks: Any) -> Path:
    """Change a directory's tokenizer_config.json; None removes an entry."""
    file = folder / "tokenizer_config.json"
    content = json.loads(file.read_text()) | marks
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    return folder


def exported_scores(source: Path, out: Path) -> tuple[bool, np.ndarray]:
    """Whether a source's bundle takes token types, and its scores."""
    bundle = export(source, out)
    with Reranker.load(out, provider="cpu", compute="float32") as reranker:
        return TOKEN_TYPES in bundle.manifest.inputs, reranker.predict(pairs_of(10))


@pytest.mark.exports
@pytest.mark.parametrize("form", ["checkpoint", "graph"])
@pytest.mark.parametrize("names", [WITH_TYPES, WITHOUT_TYPES])
def test_the_tokenizers_own_inputs_decide(names: list[str], form: str, tmp_path: Path) -> None:
    source = make_cross_encoder(tmp_path / "source", "bert", model_input_names=names)
    expected = scores_of(source, pairs_of(10))
    if form == "graph":
        source = as_optimum_exports(source, tmp_path / "optimum")
    with_types, scores = exported_scores(source, tmp_path / "bundle")
    assert with_types == (TOKEN_TYPES in names)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=2e-5)


def test_the_two_kinds_differ(tmp_path: Path) -> None:
    kinds = {"with": WITH_TYPES, "without": WITHOUT_TYPES}
    scores = [
        scores_of(
            make_cross_encoder(tmp_path / name, "bert", model_input_names=names), pairs_of(10)
        )
        for name, names in kinds.items()
    ]
    assert np.abs(scores[0] - scores[1]).max() > 0.01


@pytest.mark.exports
@pytest.mark.parametrize("form", ["checkpoint", "graph"])
@pytest.mark.parametrize("name", [None, "PreTrainedTokenizerFast", "BertTokenizerFast"])
def test_a_tokenizer_without_names_of_inputs(name: str | None, form: str, tmp_path: Path) -> None:
    """Its class decides, which two generations of transformers see differently."""
    source = make_cross_encoder(tmp_path / "source", "bert")
    rename_tokenizer(source, model_input_names=None, tokenizer_class=name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    expected = scores_of(source, pairs_of(10))
    if form == "graph":
        source = as_optimum_exports(source, tmp_path / "optimum")
    with_types, scores = exported_scores(source, tmp_path / "bundle")
    assert with_types == (TOKEN_TYPES in tokenizer.model_input_names)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=2e-5)


@pytest.mark.exports
def test_a_cross_encoder_on_the_repositorys_backbone(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    torch.manual_seed(0)
    model = CrossEncoder(str(BACKBONE), num_labels=1, model_kwargs={"dtype": torch.float32})
    with torch.no_grad():  # its first weights give nearly equal scores
        model.model.classifier.weight.normal_(std=2.0)
    model.save_pretrained(str(tmp_path / "saved"))
    pairs = [("who swims?", "A dog swims."), ("a dog", "Stocks fell. " * 80), ("", "The sea")]
    bundle = export(tmp_path / "saved", tmp_path / "bundle")
    generation = int(transformers.__version__.partition(".")[0])
    assert (TOKEN_TYPES in bundle.manifest.inputs) == (generation < 5)
    with Reranker.load(bundle.path, provider="cpu", compute="float32") as reranker:
        scores = reranker.predict(pairs)
    assert np.ptp(scores) > 0.01
    np.testing.assert_allclose(scores, model.predict(pairs), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("model_type", "named"),
    [
        ("bert", "BertTokenizer"), ("bert", "BertTokenizerFast"), ("bert", None),
        ("bert", "PreTrainedTokenizerFast"), ("electra", "ElectraTokenizerFast"),
        ("deberta-v2", "DebertaV2TokenizerFast"), ("roberta", "RobertaTokenizerFast"),
        ("xlm-roberta", "XLMRobertaTokenizerFast"), ("camembert", "CamembertTokenizerFast"),
        ("mpnet", "MPNetTokenizerFast"), ("bert", "XLMRobertaTokenizerFast"),
        ("albert", "AlbertTokenizerFast"), ("layoutlm", "LayoutLMTokenizerFast"),
        ("modernbert", "PreTrainedTokenizerFast"), ("convbert", "ConvBertTokenizerFast"),
    ],
)  # fmt: skip
def test_files_alone_say_what_transformers_does(model_type: str, named: str | None) -> None:
    kind = transformers.PreTrainedTokenizerFast
    if named != "PreTrainedTokenizerFast":
        kind = _class_of(model_type, named)
    marks = {} if named is None else {"tokenizer_class": named}
    gives = gives_token_types(marks, {"model_type": model_type}, "here")
    assert gives == (TOKEN_TYPES in kind.model_input_names)


def _class_of(model_type: str, named: str | None) -> Any:
    from transformers.models.auto import tokenization_auto as auto

    if named is None:
        config = type(transformers.AutoConfig.for_model(model_type))
        found = auto.TOKENIZER_MAPPING[config]
        return found[-1] if isinstance(found, tuple) else found
    return auto.tokenizer_class_from_name(named)


@pytest.mark.parametrize("names", ["input_ids", [1, 2], {"input_ids": 1}])
def test_names_of_inputs_that_are_not_a_list_are_refused(names: object) -> None:
    with pytest.raises(ExportError, match=r"here .*model_input_names.*list"):
        gives_token_types({"model_input_names": names}, {}, "here")
