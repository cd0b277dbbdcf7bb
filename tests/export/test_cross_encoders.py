"""Cross-encoders as rerankers: sentence-transformers' scores, for every form of source."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers

from flowvec import BundleError, Encoder, ExportError, InputValueError, Reranker
from flowvec_export import export
from tests.export.conftest import WIDTH
from tests.export.cross_encoders import (
    as_optimum_exports,
    exported_scores,
    make_cross_encoder,
    pairs_of,
    scores_of,
)

pytestmark = pytest.mark.parity

# Architectures with a head of their own; those whose encoder is flowvec's own come first.
ARCHITECTURES = [
    "bert", "roberta", "xlm-roberta", "camembert", "distilbert",
    "mpnet", "deberta-v2", "electra", "modernbert",
]  # fmt: skip


@pytest.mark.exports(but=1)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scores_are_those_of_sentence_transformers(architecture: str, tmp_path: Path) -> None:
    source = make_cross_encoder(tmp_path / "source", architecture)
    pairs = pairs_of()
    expected = scores_of(source, pairs)
    assert np.ptp(expected) > 0.1
    scores = exported_scores(source, tmp_path / "bundle", pairs)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=2e-5)


@pytest.mark.exports
def test_modernbert_pools_as_its_configuration_says(tmp_path: Path) -> None:
    source = make_cross_encoder(tmp_path / "source", "modernbert", classifier_pooling="mean")
    pairs = pairs_of(10)
    scores = exported_scores(source, tmp_path / "bundle", pairs)
    np.testing.assert_allclose(scores, scores_of(source, pairs), rtol=0, atol=2e-5)


@pytest.mark.exports
@pytest.mark.parametrize("labels", [2, 3])
def test_several_labels(labels: int, tmp_path: Path) -> None:
    source = make_cross_encoder(tmp_path / "source", "bert", labels)
    pairs = pairs_of(10)
    expected = scores_of(source, pairs)
    scores = exported_scores(source, tmp_path / "bundle", pairs)
    assert scores.shape == (len(pairs), labels)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4)


def test_a_directory_of_sentence_transformers(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    source = make_cross_encoder(tmp_path / "source", "bert")
    model = CrossEncoder(str(source), activation_fn=torch.nn.Identity(), max_length=24)
    model.save_pretrained(str(tmp_path / "saved"))
    pairs = pairs_of(10)
    bundle = export(tmp_path / "saved", tmp_path / "bundle")
    assert bundle.manifest.head is not None
    assert bundle.manifest.head.activation == "identity"
    assert bundle.manifest.max_length == 24
    with Reranker.load(bundle.path, provider="cpu") as reranker:
        scores = reranker.predict(pairs)
    np.testing.assert_allclose(scores, model.predict(pairs), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "activation"),
    [
        ({"problem_type": "regression"}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
         "identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
          "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "sigmoid"),
    ],
)  # fmt: skip
def test_the_checkpoints_own_activation_is_kept(
    changes: dict[str, Any], activation: str, tmp_path: Path
) -> None:
    source = make_cross_encoder(tmp_path / "source", "bert", **changes)
    bundle = export(source, tmp_path / "bundle")
    assert bundle.manifest.head is not None
    assert bundle.manifest.head.activation == activation
    pairs = pairs_of(4)
    with Reranker.load(bundle.path, provider="cpu") as reranker:
        np.testing.assert_allclose(
            reranker.predict(pairs), scores_of(source, pairs), rtol=0, atol=1e-4
        )


def test_an_activation_of_another_library_is_refused(tmp_path: Path) -> None:
    source = make_cross_encoder(
        tmp_path / "source", "bert", sentence_transformers={"activation_fn": "mine.Scale"}
    )
    with pytest.raises(ExportError, match=r"activation mine\.Scale"):
        export(source, tmp_path / "bundle")


@pytest.mark.exports
def test_labels_have_their_names(tmp_path: Path) -> None:
    names = {0: "contradiction", 1: "entailment", 2: "neutral"}
    source = make_cross_encoder(
        tmp_path / "source", "bert", 3, id2label=names, label2id={v: k for k, v in names.items()}
    )
    export(source, tmp_path / "bundle")
    with Reranker.load(tmp_path / "bundle", provider="cpu") as reranker:
        assert reranker.info().labels == tuple(names.values())
        ranked = reranker.rank("cat", ["dog", "cat"], label="entailment")
        assert {hit["corpus_id"] for hit in ranked} == {0, 1}


# --- graphs ---------------------------------------------------------------------------------------


def test_a_graph_of_a_cross_encoder(tmp_path: Path) -> None:
    source = make_cross_encoder(tmp_path / "source", "bert")
    folder = as_optimum_exports(source, tmp_path / "optimum")
    pairs = pairs_of()
    scores = exported_scores(folder, tmp_path / "bundle", pairs)
    np.testing.assert_allclose(scores, scores_of(source, pairs), rtol=0, atol=1e-4)


def test_a_graph_without_logits_is_refused(tmp_path: Path) -> None:
    source = make_cross_encoder(tmp_path / "source", "bert")
    folder = as_optimum_exports(source, tmp_path / "optimum")
    graph = onnx.load(folder / "model.onnx")
    for node in graph.graph.node:
        node.output[:] = ["other" if name == "logits" else name for name in node.output]
    graph.graph.output[0].name = "other"
    onnx.save(graph, folder / "model.onnx")
    with pytest.raises(ExportError, match=r"gives other; .*logits"):
        export(folder, tmp_path / "bundle")


def test_a_graph_with_other_labels_is_refused(tmp_path: Path) -> None:
    source = make_cross_encoder(tmp_path / "source", "bert")
    folder = as_optimum_exports(source, tmp_path / "optimum")
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "no", "1": "yes"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match="1 logits, and names 2 labels"):
        export(folder, tmp_path / "bundle")


# --- variants -------------------------------------------------------------------------------------


@pytest.mark.exports
def test_float16_weights(tmp_path: Path) -> None:
    source = make_cross_encoder(tmp_path / "source", "bert")
    bundle = export(source, tmp_path / "bundle", weights="float16")
    assert 0 < bundle.manifest.parity["max_relative_error_to_float32_weights"] <= 0.02
    pairs = pairs_of(10)
    with Reranker.load(bundle.path, provider="cpu") as reranker:
        scores = reranker.predict(pairs)
    np.testing.assert_allclose(scores, scores_of(source, pairs), rtol=0, atol=0.02)


@pytest.mark.parametrize("wrong", ["all", "first"])
def test_a_variant_may_not_rank_differently(wrong: str) -> None:
    from flowvec_export.variants.ranking import rank_agreement, require_agreement

    exact = np.sort(np.random.default_rng(0).normal(size=(20, 12)).astype(np.float32))
    other = exact[:, ::-1] if wrong == "all" else exact[:, [*range(10), 11, 10]]
    with pytest.raises(ExportError, match="ranks differently"):
        require_agreement("int8", rank_agreement(exact, other))
    require_agreement("int8", rank_agreement(exact, exact))


def test_a_variant_that_ranks_differently_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowvec_export.variants import ranking

    source = make_cross_encoder(tmp_path / "source", "bert")
    monkeypatch.setattr(ranking, "MIN_TAU", 1.01)
    with pytest.raises(ExportError, match="ranks differently"):
        export(source, tmp_path / "bundle", variants=["int8"])
    assert not (tmp_path / "bundle").exists()


def test_float16_variants_are_refused(tmp_path: Path) -> None:
    source = make_cross_encoder(tmp_path / "source", "bert")
    with pytest.raises(ExportError, match="no float16 variant"):
        export(source, tmp_path / "bundle", variants=["float16"])


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [{"pooling": "mean"}, {"normalize": True}, {"prompts": {"query": "q: "}}]
)
def test_arguments_of_embedders_are_refused(arguments: dict[str, Any], tmp_path: Path) -> None:
    source = make_cross_encoder(tmp_path / "source", "bert")
    with pytest.raises(InputValueError, match="is a cross-encoder"):
        export(source, tmp_path / "bundle", **arguments)


@pytest.mark.exports
def test_encoder_only_exports_its_encoder(tmp_path: Path) -> None:
    source = make_cross_encoder(tmp_path / "source", "bert")
    export(source, tmp_path / "bundle", encoder_only=True)
    with Encoder.load(tmp_path / "bundle", provider="cpu") as encoder:
        assert encoder.encode("cat").shape == (WIDTH,)
    with pytest.raises(BundleError, match=r"an embedder.*flowvec\.Encoder"):
        Reranker.load(tmp_path / "bundle")


def test_a_checkpoint_without_its_head_is_refused(tmp_path: Path) -> None:
    source = make_cross_encoder(tmp_path / "source", "bert")
    model = transformers.AutoModel.from_pretrained(source)
    config = json.loads((source / "config.json").read_text())
    model.save_pretrained(tmp_path / "headless")
    shutil.copy(source / "tokenizer.json", tmp_path / "headless")
    shutil.copy(source / "tokenizer_config.json", tmp_path / "headless")
    (tmp_path / "headless" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match=r"weights: classifier\.bias"):
        export(tmp_path / "headless", tmp_path / "bundle")


def test_language_models_that_answer_yes_or_no_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "qwen"
    folder.mkdir()
    kinds = ["base.modules.transformer.Transformer", "cross_encoder.modules.logit_score.LogitScore"]
    modules = [
        {"idx": i, "name": str(i), "path": "", "type": f"sentence_transformers.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    about = {"model_type": "CrossEncoder"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(about))
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]}))
    with pytest.raises(ExportError, match="need their prompt template"):
        export(folder, tmp_path / "bundle")


def test_prompts_of_a_cross_encoder_are_refused(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    source = make_cross_encoder(tmp_path / "source", "bert")
    model = CrossEncoder(str(source), prompts={"query": "find: "}, default_prompt_name="query")
    model.save_pretrained(str(tmp_path / "saved"))
    with pytest.raises(ExportError, match="puts prompts before its texts"):
        export(tmp_path / "saved", tmp_path / "bundle")


# --- special tokens in texts ----------------------------------------------------------------------


@pytest.mark.exports(but=1)
@pytest.mark.parametrize("architecture", ["bert", "roberta", "modernbert"])
def test_special_tokens_in_texts_are_those_of_sentence_transformers(
    architecture: str, tmp_path: Path
) -> None:
    source = make_cross_encoder(tmp_path / "source", architecture)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    marks = sorted(tokenizer.all_special_tokens)
    assert len(marks) >= 4
    pairs = [
        pair
        for mark in marks
        for pair in (
            ("the cat", f"the dog {mark} runs"),
            (f"the {mark} cat", "the dog"),
            (f"{mark}cat{mark}", mark),
            ("the cat", f"the dog {mark.lower()} {mark.upper()} runs " + mark * 50),
        )
    ]
    expected = scores_of(source, pairs)
    scores = exported_scores(source, tmp_path / "bundle", pairs)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=2e-5)
    with Reranker.load(tmp_path / "bundle", provider="cpu") as reranker:
        (ids,) = (row.tolist() for row in reranker.tokenize([("cat", f"dog {marks[0]}")]).token_ids)
    assert tokenizer.convert_tokens_to_ids(marks[0]) in ids


def test_a_tokenizer_that_splits_special_tokens_is_refused(tmp_path: Path) -> None:
    source = make_cross_encoder(tmp_path / "source", "bert")
    file = source / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"split_special_tokens": True}))
    with pytest.raises(ExportError, match="splits special tokens"):
        export(source, tmp_path / "bundle")
