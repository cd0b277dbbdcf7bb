"""Directories of sentence-transformers: a bundle gives the vectors that it gives."""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
    WordWeights,
)

from flowvec import Encoder
from flowvec.errors import ExportError
from flowvec_export import export
from flowvec_export.assembly.parity import Parity
from flowvec_export.sources.load import read_source
from tests.export.conftest import DEEP, POSITIONS, TEXTS, WIDTH


def make(folder: Path, source: Path, *modules: Any, **options: Any) -> SentenceTransformer:
    torch.manual_seed(0)
    model = SentenceTransformer(
        modules=[Transformer(str(source)), *modules], device="cpu", **options
    )
    model.save(str(folder), create_model_card=False)
    return model


def assert_same(
    model: SentenceTransformer, folder: Path, tmp_path: Path, texts=TEXTS, **options: Any
) -> Encoder:
    bundle = export(folder, tmp_path / "bundle", **options)
    encoder = Encoder.load(bundle.path, provider="cpu")
    parity = Parity.of(encoder.encode(texts), model.encode(texts, show_progress_bar=False))
    assert parity.max_relative_error <= 1e-4
    assert parity.min_cosine >= 0.99999
    return encoder


@pytest.mark.exports(but=1)
@pytest.mark.parity
@pytest.mark.parametrize("architecture", ["bert", "roberta", "xlm-roberta", "distilbert", "mpnet"])
def test_transformer_pooling_and_normalize(checkpoint, tmp_path, architecture) -> None:
    source = checkpoint(architecture, num_hidden_layers=DEEP)  # which test_export.py traces
    model = make(tmp_path / "st", source, Pooling(WIDTH, "mean"), Normalize())
    encoder = assert_same(model, tmp_path / "st", tmp_path)
    assert encoder.info().normalised
    assert encoder.max_length == POSITIONS


@pytest.mark.parity
def test_an_encoder_without_layers_is_a_table_of_words(checkpoint, tmp_path) -> None:
    source = checkpoint("bert", num_hidden_layers=0)
    model = make(tmp_path / "st", source, word_weights(source), Pooling(WIDTH), Normalize())
    assert_same(model, tmp_path / "st", tmp_path)


@pytest.mark.exports
@pytest.mark.parity
def test_a_random_minilm(tmp_path, checkpoint) -> None:
    """The width that most users have: 384, 12 heads, 256 tokens; one layer of its six."""
    config = transformers.BertConfig(
        vocab_size=transformers.AutoConfig.from_pretrained(checkpoint("bert")).vocab_size,
        hidden_size=384,
        num_hidden_layers=1,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=512,
    )
    torch.manual_seed(0)
    plain = tmp_path / "minilm"
    transformers.BertModel(config).save_pretrained(plain)
    transformers.AutoTokenizer.from_pretrained(checkpoint("bert")).save_pretrained(plain)
    model = make(tmp_path / "st", plain, Pooling(384, "mean"), Normalize())
    model.max_seq_length = 256
    model.save(str(tmp_path / "st"), create_model_card=False)
    long = ["the cat sleeps on the red mat " * 60]
    encoder = assert_same(model, tmp_path / "st", tmp_path, TEXTS + long, calibration=())
    assert (encoder.dim, encoder.max_length) == (384, 256)


@pytest.mark.exports(but=1)
@pytest.mark.parity
@pytest.mark.parametrize(
    "modes",
    ["cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken",
     ("mean", "cls"), ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")],
    ids=str,
)  # fmt: skip
def test_every_pooling_mode_and_their_concatenation(checkpoint, tmp_path, modes) -> None:
    model = make(tmp_path / "st", checkpoint("bert"), Pooling(WIDTH, modes))
    assert not assert_same(model, tmp_path / "st", tmp_path).info().normalised


def word_weights(checkpoint: Path, rows: int | None = None) -> WordWeights:
    """Weights from 0 to 3 for the words of a tokenizer; without special tokens, which count 1."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    vocabulary = tokenizer.convert_ids_to_tokens(range(rows or len(tokenizer)))
    words = [word for word in vocabulary if not word.startswith("[")]
    return WordWeights(vocabulary, {word: i % 7 / 2 for i, word in enumerate(words)})


@pytest.mark.exports
@pytest.mark.parity
def test_words_are_weighted_in_the_mean(checkpoint, tmp_path) -> None:
    source = checkpoint("bert")
    # Not normalized, so that what the sum is divided by counts too.
    model = make(tmp_path / "st", source, word_weights(source), Pooling(WIDTH), Dense(WIDTH, 6))
    texts = [*TEXTS, "", "the"]
    weighted = assert_same(model, tmp_path / "st", tmp_path, texts).encode(texts)
    plain = SentenceTransformer(modules=[model[0], model[2], model[3]], device="cpu")
    assert np.abs(plain.encode(texts) - weighted).max() > 1e-3


@pytest.mark.parity
def test_word_weights_change_what_a_transform_belongs_to(checkpoint, tmp_path) -> None:
    source = checkpoint("bert")
    make(tmp_path / "st", source, word_weights(source), Pooling(WIDTH))
    weighted = read_source(tmp_path / "st")
    assert weighted.sha256() != read_source(tmp_path / "st", encoder_only=True).sha256()


@pytest.mark.parity
def test_unsupported_word_weights_are_refused(checkpoint, tmp_path) -> None:
    source = checkpoint("bert")
    make(tmp_path / "max", source, word_weights(source), Pooling(WIDTH, "max"))
    with pytest.raises(ExportError, match="need mean pooling, not max"):
        export(tmp_path / "max", tmp_path / "bundle")
    make(tmp_path / "few", source, word_weights(source, rows=20), Pooling(WIDTH))
    with pytest.raises(ExportError, match="no weight for some tokens"):
        export(tmp_path / "few", tmp_path / "bundle")


@pytest.mark.exports(but=1)
@pytest.mark.parity
@pytest.mark.parametrize(
    "activation",
    [torch.nn.Tanh(), torch.nn.Identity(), torch.nn.ReLU(), torch.nn.GELU(), torch.nn.Sigmoid()],
    ids=lambda a: type(a).__name__,
)
def test_dense_with_its_activation(checkpoint, tmp_path, activation) -> None:
    dense = Dense(WIDTH, 10, activation_function=activation)
    model = make(tmp_path / "st", checkpoint("bert"), Pooling(WIDTH), dense, Normalize())
    assert assert_same(model, tmp_path / "st", tmp_path).dim == 10


@pytest.mark.exports
@pytest.mark.parity
@pytest.mark.parametrize("out", [WIDTH, 9])
def test_residual_dense_layers_in_a_row(checkpoint, tmp_path, out) -> None:
    if "use_residual" not in inspect.signature(Dense).parameters:
        pytest.skip("this sentence-transformers has no residual layers")
    layers = (Dense(WIDTH, out, use_residual=True), Dense(out, 5, bias=False))
    model = make(tmp_path / "st", checkpoint("bert"), Pooling(WIDTH), *layers)
    encoder = assert_same(model, tmp_path / "st", tmp_path)
    assert encoder.info().transform == (
        f"dense({WIDTH}->{out}, tanh, residual)",
        f"dense({out}->5, tanh)",
    )


@pytest.mark.parity
def test_prompts_and_similarity_come_along(checkpoint, tmp_path) -> None:
    prompts = {"query": "the query: ", "passage": "", "document": "a book: "}
    model = make(
        tmp_path / "st",
        checkpoint("bert"),
        Pooling(WIDTH),
        prompts=prompts,
        default_prompt_name="query",
        similarity_fn_name="dot",
    )
    encoder = assert_same(model, tmp_path / "st", tmp_path)  # both use the default prompt
    assert encoder.info().prompts == prompts
    texts = ["stocks fell", "the dog"]
    for ours, theirs in (
        (encoder.encode_query(texts), model.encode_query(texts)),
        (encoder.encode_document(texts), model.encode_document(texts)),
        (
            encoder.encode(texts, prompt_name="document"),
            model.encode(texts, prompt_name="document"),
        ),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    similarity = model.similarity(model.encode(texts), model.encode(texts)).numpy()
    ours = encoder.similarity(encoder.encode(texts), encoder.encode(texts))
    np.testing.assert_allclose(ours, similarity, rtol=1e-4)


@pytest.mark.parity
def test_a_missing_or_empty_prompt_does_not_fall_back_to_the_default(checkpoint, tmp_path) -> None:
    model = make(
        tmp_path / "st",
        checkpoint("bert"),
        Pooling(WIDTH),
        prompts={"sts": "the book: ", "query": ""},
        default_prompt_name="sts",
    )
    encoder = assert_same(model, tmp_path / "st", tmp_path)
    texts = ["stocks fell", "the dog"]
    for ours, theirs in (
        (encoder.encode_query(texts), model.encode_query(texts)),
        (encoder.encode_document(texts), model.encode_document(texts)),
        (encoder.encode(texts, prompt_name="query"), model.encode(texts, prompt_name="query")),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.exports
@pytest.mark.parity
def test_a_literal_padding_token_in_a_text(checkpoint, tmp_path) -> None:
    model = make(tmp_path / "st", checkpoint("roberta"), Pooling(WIDTH), Normalize())
    assert_same(
        model, tmp_path / "st", tmp_path, ["the <pad> cat sleeps", "<pad>", "a <pad><pad> b"]
    )


# --- the older form of the files ------------------------------------------------------------------


def write_old_form(folder: Path, source: Path, *, pickled: bool = False, **changes: Any) -> Path:
    """What sentence-transformers 2 wrote: other type names, booleans for pooling."""
    shutil.copytree(source, folder)
    kinds = ["Transformer", "Pooling", "Dense", "Normalize"]
    paths = ["", "1_Pooling", "2_Dense", "3_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": p, "type": f"sentence_transformers.models.{k}"}
        for i, (k, p) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    settings = {"max_seq_length": 12, "do_lower_case": False} | changes.pop("settings", {})
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    pooling = {
        "word_embedding_dimension": WIDTH,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    for name in paths[1:]:
        (folder / name).mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling | changes))
    dense = {
        "in_features": 2 * WIDTH,
        "out_features": 6,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    (folder / "2_Dense" / "config.json").write_text(json.dumps(dense))
    torch.manual_seed(2)
    state = {"linear.weight": torch.randn(6, 2 * WIDTH), "linear.bias": torch.randn(6)}
    if pickled:
        torch.save(state, folder / "2_Dense" / "pytorch_model.bin")
    else:
        save_file(state, folder / "2_Dense" / "model.safetensors")
    return folder


@pytest.mark.exports
@pytest.mark.parity
def test_the_old_form_gives_what_sentence_transformers_gives(checkpoint, tmp_path) -> None:
    folder = write_old_form(tmp_path / "old", checkpoint("bert"), pickled=True)
    model = SentenceTransformer(str(folder), device="cpu")
    encoder = assert_same(model, folder, tmp_path, allow_pickle=True)
    info = encoder.info()
    assert (info.pooling, info.max_length, info.dim) == ("cls+mean", 12, 6)


@pytest.mark.exports
@pytest.mark.parity
def test_do_lower_case_lower_cases_first(checkpoint, tmp_path) -> None:
    settings = {"do_lower_case": True, "max_seq_length": 30}
    folder = write_old_form(tmp_path / "old", checkpoint("roberta"), settings=settings)
    model = SentenceTransformer(str(folder), device="cpu")
    texts = ["The CAT Sleeps", "ÀÉ São PAULO", "lower already"]
    encoder = assert_same(model, folder, tmp_path, texts)
    assert encoder.tokenize(texts).ids == encoder.tokenize([t.lower() for t in texts]).ids


# --- what is refused ------------------------------------------------------------------------------


def change_json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.exports
@pytest.mark.parametrize("key", ["processor_kwargs", "tokenizer_args"])
def test_a_length_given_for_the_tokenizer_counts(checkpoint, tmp_path, key) -> None:
    settings = {"max_seq_length": None, key: {"model_max_length": 7}}
    folder = write_old_form(tmp_path / "old", checkpoint("bert"), settings=settings)
    assert export(folder, tmp_path / "bundle").manifest.max_length == 7


@pytest.mark.exports
def test_dropout_modules_are_ignored(checkpoint, tmp_path) -> None:
    folder = write_old_form(tmp_path / "old", checkpoint("bert"))
    plain = export(folder, tmp_path / "plain")
    modules = json.loads((folder / "modules.json").read_text())
    dropout = {
        "idx": 9,
        "name": "9",
        "path": "9_Dropout",
        "type": "sentence_transformers.models.Dropout",
    }
    modules.insert(2, dropout)
    (folder / "modules.json").write_text(json.dumps(modules))
    dropped = export(folder, tmp_path / "dropped")
    assert dropped.manifest.files == plain.manifest.files


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("sentence_bert_config.json", {"max_seq_length": "12"}, "not a whole number"),
        ("sentence_bert_config.json", {"query_length": 5}, "query_length"),
        ("sentence_bert_config.json", {"processor_kwargs": {"x": 1}}, "processor_kwargs"),
        (
            "sentence_bert_config.json",
            {"modality_config": {"text": {"method_output_name": ["hidden_states", -2]}}},
            "modality_config",
        ),
        ("2_Dense/config.json", {"module_output_name": "other"}, "module_output_name"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "module_input_name"),
        ("3_Normalize/config.json", {"module_output_name": "other"}, "module_output_name"),
        ("config_sentence_transformers.json", {"truncate_dim": 3}, "truncate_dim"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "jaccard"}, "jaccard"),
        ("tokenizer_config.json", {"truncation_side": "left"}, "on the left"),
        ("config.json", {"position_embedding_type": "relative_key"}, "relative_key"),
    ],
)
def test_a_setting_that_would_change_vectors_is_refused(
    checkpoint, tmp_path, file, changes, message
) -> None:
    folder = write_old_form(tmp_path / "old", checkpoint("bert"))
    path = folder / file
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))
    with pytest.raises(ExportError, match=message):
        export(folder, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("modules.json", "[{}]", None),
        ("modules.json", "{}", None),
        ("modules.json", "[3]", None),
        ("sentence_bert_config.json", '{"tokenizer_args": "abc"}', None),
        ("1_Pooling/config.json", '{"pooling_mode": []}', "names no pooling"),
        ("config_sentence_transformers.json", '{"prompts": {"query": 3}}', "that is not a text"),
        ("config.json", "[]", None),
        ("1_Pooling/config.json", "null", None),
        ("1_Pooling/config.json", '{"pooling_mode": 3}', None),
        ("2_Dense/config.json", "[" * 100_000, None),
        ("config_sentence_transformers.json", '{"prompts": [1]}', None),
    ],
)
def test_a_malformed_file_is_a_typed_error(checkpoint, tmp_path, file, text, message) -> None:
    folder = write_old_form(tmp_path / "old", checkpoint("bert"))
    (folder / file).write_text(text)
    with pytest.raises(ExportError, match=message):
        export(folder, tmp_path / "bundle")


@pytest.mark.parametrize(
    "case", ["module", "order", "pooling", "activation", "prompt", "no pooling", "sparse", "tokens"]
)
def test_what_cannot_be_followed_is_refused(checkpoint, tmp_path, case) -> None:
    folder = write_old_form(tmp_path / "old", checkpoint("bert"))
    modules = json.loads((folder / "modules.json").read_text())
    message = ""
    if case == "module":
        modules[2]["type"] = "sentence_transformers.models.CNN"
        message = "CNN"
    elif case == "order":
        modules[2], modules[3] = modules[3], modules[2]
        message = "after Normalize"
    elif case in ("sparse", "tokens"):
        kind = "SpladePooling" if case == "sparse" else "MultiVectorMask"
        modules[1]["type"] = f"sentence_transformers.{kind}"
        message = "only SPLADE is supported" if case == "sparse" else "has a MultiVectorMask with"
    elif case == "no pooling":
        del modules[1]
        message = "must begin with Transformer, optional WordWeights, and Pooling"
    elif case == "pooling":
        change_json(folder / "1_Pooling/config.json", pooling_mode_attention=True)
        message = "pooling_mode_attention"
    elif case == "activation":
        change_json(folder / "2_Dense/config.json", activation_function="a.b.Swoosh")
        message = "swoosh"
    else:
        change_json(folder / "1_Pooling/config.json", include_prompt=False)
        prompts = {"prompts": {"query": "q: "}}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
        message = "leaves its prompts out"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ExportError, match=message):
        export(folder, tmp_path / "bundle")


def test_a_dense_layer_without_its_weight_is_refused(checkpoint, tmp_path) -> None:
    folder = write_old_form(tmp_path / "old", checkpoint("bert"))
    save_file({"other": torch.ones(2)}, folder / "2_Dense/model.safetensors")
    with pytest.raises(ExportError, match=r"lack linear\.weight"):
        export(folder, tmp_path / "bundle")


@pytest.mark.parametrize(
    "weights",
    [
        {"linear.weight": torch.ones(3)},
        {"linear.weight": torch.ones(4, WIDTH), "linear.bias": torch.ones(5)},
    ],
    ids=["vector", "bias"],
)
def test_a_dense_layer_of_other_shapes_is_refused(checkpoint, tmp_path, weights) -> None:
    folder = write_old_form(tmp_path / "old", checkpoint("bert"))
    save_file(weights, folder / "2_Dense/model.safetensors")
    with pytest.raises(ExportError, match="2_Dense is not a Dense layer"):
        export(folder, tmp_path / "bundle")


def test_a_dense_layer_in_parts_is_read(checkpoint, tmp_path) -> None:
    folder = write_old_form(tmp_path / "old", checkpoint("bert"))
    whole = read_source(folder).sha256()
    dense = folder / "2_Dense"
    weights = load_file(dense / "model.safetensors")
    (dense / "model.safetensors").unlink()
    for name, tensor in weights.items():
        save_file({name: tensor}, dense / f"{name}.safetensors")
    parts = {"weight_map": {name: f"{name}.safetensors" for name in weights}}
    (dense / "model.safetensors.index.json").write_text(json.dumps(parts))
    assert len(weights) > 1
    assert read_source(folder).sha256() == whole


def test_a_prompt_of_the_users_is_not_left_out_of_pooling_either(checkpoint, tmp_path) -> None:
    folder = write_old_form(tmp_path / "old", checkpoint("bert"))
    change_json(folder / "1_Pooling/config.json", include_prompt=False)
    with pytest.raises(ExportError, match="leaves its prompts out"):
        export(folder, tmp_path / "bundle", prompts={"query": "q: "})


def test_a_dense_layer_of_pickled_code_is_not_run(checkpoint, tmp_path) -> None:
    folder = write_old_form(tmp_path / "old", checkpoint("bert"), pickled=True)

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "pwned",))

    torch.save({"linear.weight": Evil()}, folder / "2_Dense/pytorch_model.bin")
    with pytest.raises(ExportError, match="cannot read the weights"):
        export(folder, tmp_path / "bundle", allow_pickle=True)
    assert not (tmp_path / "pwned").exists()


def test_another_pooling_than_the_dense_was_made_for_is_refused(checkpoint, tmp_path) -> None:
    folder = write_old_form(tmp_path / "old", checkpoint("bert"))
    with pytest.raises(ExportError, match="made for another pooling"):
        export(folder, tmp_path / "bundle", pooling="mean")


def test_a_licence_in_the_card_is_kept(checkpoint, tmp_path) -> None:
    make(tmp_path / "st", checkpoint("bert"), Pooling(WIDTH))
    (tmp_path / "st" / "README.md").write_text("---\nlicense: apache-2.0\ntags: [x]\n---\n# Card\n")
    assert export(tmp_path / "st", tmp_path / "bundle").manifest.licence == "apache-2.0"
