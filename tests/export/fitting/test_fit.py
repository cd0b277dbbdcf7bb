"""`fit`: what it fits on, what it writes down, and that a bundle computes what was fitted."""

from __future__ import annotations

import itertools
import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense as SourceDense
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from flowvec import Encoder
from flowvec.errors import ExportError, InputValueError
from flowvec_export import export
from flowvec_export.assembly.draft import describe
from flowvec_export.assembly.parity import Parity
from flowvec_export.fitting.corpus import embed_raw, read_corpus, sample_texts
from flowvec_export.fitting.fit import (
    METHODS,
    FitSettings,
    Fitted,
    fit,
    fit_transform,
    mean_cosine,
    parse_method,
    split,
)
from flowvec_export.fitting.flow import FlowTraining
from flowvec_export.transforms import Flow, FlowShape, Rotation, Transform
from flowvec_export.transforms.file import Recipe, load_transform, save_transform
from tests.export.conftest import DEEP, POSITIONS, TEXTS, WIDTH, make_texts

# Small and quick, but the flow has learned something.
SHAPE = FlowShape(2, 2, 24)
TRAINING = FlowTraining(epochs=3, batch_size=64, learning_rate=3e-3, seed=5)
SETTINGS = FitSettings(shape=SHAPE, training=TRAINING)
COUNT = 1150


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return make_texts(COUNT)


@pytest.fixture(scope="module")
def raw(bert, texts) -> np.ndarray:
    """Mean vectors of the texts, then of TEXTS."""
    vectors = embed_raw(bert, [*texts, *TEXTS])
    assert vectors.shape == (COUNT + len(TEXTS), WIDTH)
    return vectors


def fitted_on(raw: np.ndarray, method: str, settings: FitSettings = SETTINGS) -> Transform:
    return fit_transform(parse_method(method), *split(raw[:COUNT]), settings)[0]


def normalized(transform: Transform, vectors: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return torch.nn.functional.normalize(transform(torch.from_numpy(vectors))).numpy()


def state(transform: Transform) -> dict[str, list[Any]]:
    return {name: tensor.tolist() for name, tensor in transform.state_dict().items()}


# --- raw vectors ----------------------------------------------------------------------------------


@pytest.mark.exports(but=1)
@pytest.mark.parametrize("pooling", ["mean", "first_last_mean+cls"])
def test_raw_vectors_are_transformers_pooled_and_not_normalized(checkpoint, pooling: str) -> None:
    bert = checkpoint("bert", num_hidden_layers=DEEP)
    model = transformers.AutoModel.from_pretrained(bert, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    rows = []
    for text in TEXTS:
        inputs = tokenizer(text, truncation=True, return_tensors="pt", return_token_type_ids=False)
        with torch.inference_mode():
            states = model(**inputs, output_hidden_states=True).hidden_states
        by_name = {
            "mean": states[-1][0].mean(0),
            "cls": states[-1][0, 0],
            "first_last_mean": (states[1] + states[-1])[0].mean(0) / 2,
        }
        rows.append(torch.cat([by_name[name] for name in pooling.split("+")]).numpy())
    vectors = embed_raw(bert, TEXTS, pooling=pooling)
    assert vectors.dtype == np.float32
    assert Parity.of(vectors, np.stack(rows)).max_relative_error <= 1e-4
    assert np.linalg.norm(vectors, axis=1).min() > 1.5


@pytest.mark.exports
def test_raw_vectors_are_truncated_if_requested(bert) -> None:
    long, same_beginning = "the cat sleeps on the red mat", "the cat sleeps in the garden"
    cut = embed_raw(bert, [long, same_beginning], max_length=5)
    np.testing.assert_allclose(cut[0], cut[1], atol=1e-5)


# --- every method, through the graph --------------------------------------------------------------

FLOW = f"flow({WIDTH}, 2x2, width 24, additive)"
# The outputs of BERT's last normalization have a null direction, which is dropped.
LESS = WIDTH - 1
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "flow": ("flow", {}, (FLOW,)),
    "whitening": ("whitening", {}, (f"whitening({WIDTH}->{LESS})",)),
    "standardise": ("standardise", {}, (f"standardise({WIDTH})",)),
    "pca+flow": ("pca+flow", {}, (f"rotation({WIDTH}->{LESS})", FLOW.replace("48", str(LESS)))),
    "pca": ("pca", {"k": 10}, (f"rotation({WIDTH}->10)",)),
    "flow+whitening": ("flow+whitening", {}, (FLOW, f"whitening({WIDTH}->{WIDTH})")),
    "flow+whitening, k": ("flow+whitening", {"k": 7}, (FLOW, f"whitening({WIDTH}->7)")),
    "linear": (
        "all-but-the-top+soft-zca+beta-gamma+pca",
        {"eps": 0.1, "k": 20, "beta": 0.9, "gamma": 0.3, "top": 3},
        ("all_but_the_top(48, k=3)", "soft_zca(48, eps=0.1)",
         "beta_gamma_whitening(48->20, beta=0.9, gamma=0.3)", "rotation(20->20)"),
    ),
    "all at once": (
        "standardise+rotation+flow+whitening",
        {"k": 16},
        (f"standardise({WIDTH})", f"rotation({WIDTH}->16, learned)", FLOW.replace("48", "16"),
         "whitening(16->16)"),
    ),
}  # fmt: skip


# What becomes a graph; each transform does in `test_transforms.py`.
EXPORTED = ("flow", "linear", "all at once")


@pytest.mark.parametrize("cases", [CASES, EXPORTED])
def test_every_method_is_a_case(cases) -> None:
    assert {part for case in cases for part in CASES[case][0].split("+")} == set(METHODS)


@pytest.mark.exports(but=1)
@pytest.mark.parametrize("case", CASES)
def test_a_bundle_computes_what_was_fitted(bert, raw, tmp_path, case: str) -> None:
    method, changes, names = CASES[case]
    settings = FitSettings(**{"shape": SHAPE, "training": TRAINING, **changes})
    transform = fitted_on(raw, method, settings)
    file = tmp_path / "t.safetensors"
    save_transform(transform, None, file)
    loaded = load_transform(file)[0]
    assert describe([loaded]) == names
    vectors = normalized(loaded, raw[COUNT:])
    if case in EXPORTED:
        bundle = export(bert, tmp_path / "b", transform=file)
        assert bundle.manifest.transform == names
        assert (bundle.manifest.dim, bundle.manifest.normalised) == (transform.out_dim, True)
        with Encoder.load(bundle.path, provider="cpu", compute="float32") as encoder:
            vectors = encoder.encode(TEXTS)
    assert Parity.of(vectors, normalized(transform, raw[COUNT:])).max_relative_error <= 1e-5


def test_each_part_is_fitted_on_what_those_before_it_give(raw) -> None:
    train, held_out = split(raw[:COUNT])
    for method in ("flow+whitening", "rotation+flow+whitening", "standardise+pca+flow+whitening"):
        whole, _ = fit_transform(parse_method(method), train, held_out, SETTINGS)
        z = whole(torch.from_numpy(train)).numpy().astype(np.float64)
        # The covariance is the identity only over the rows that were fitted on.
        np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-3)
        np.testing.assert_allclose(np.cov(z.T), np.eye(z.shape[1]), atol=5e-3)


def test_a_learned_rotation_has_learned(raw) -> None:
    # A low learning rate, so that each epoch is better than the one before.
    slow = FlowTraining(epochs=6, batch_size=64, learning_rate=1e-3, seed=5)
    settings = FitSettings(shape=SHAPE, training=slow)
    rotation, flow = fitted_on(raw, "rotation+flow", settings).transforms()  # type: ignore[attr-defined]
    assert isinstance(rotation, Rotation)
    assert isinstance(flow, Flow)
    assert rotation.skew is not None
    assert rotation.skew.abs().max() > 1e-3
    for _, step in flow.steps():
        assert step.coupling.network.down.weight.abs().max() > 1e-3
    fixed, _ = fitted_on(raw, "pca+flow").transforms()  # type: ignore[attr-defined]
    assert isinstance(fixed, Rotation)
    assert fixed.skew is None


# --- what is fitted on ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "held_out"), [(20, 10), (199, 10), (240, 12), (2000, 100), (300_000, 10_000)]
)
def test_the_last_rows_are_held_out(rows: int, held_out: int) -> None:
    vectors = np.arange(rows, dtype=np.float32)[:, None]
    train, kept = split(vectors)
    assert (len(train), len(kept)) == (rows - held_out, held_out)
    np.testing.assert_array_equal(np.concatenate([train, kept]), vectors)


def test_held_out_rows_are_not_fitted_on(bert, texts) -> None:
    made = fit("standardise", bert, texts)
    held_out = made.recipe.held_out_rows
    assert held_out == COUNT // 20
    vectors = embed_raw(bert, texts)
    mean = vectors[:-held_out].mean(axis=0)
    np.testing.assert_allclose(made.transform.state_dict()["mean"], mean, atol=1e-5)
    # Otherwise the line above would pass whichever rows were held out.
    assert np.abs(mean - vectors.mean(axis=0)).max() > 1e-3


def test_a_flow_keeps_its_best_epoch_on_the_held_out_rows() -> None:
    # There is nothing to learn in noise, so that training makes it worse.
    noise = np.random.default_rng(0).normal(size=(1100, 16)).astype(np.float32)
    train, held_out = split(noise)
    training = FlowTraining(epochs=99, learning_rate=0.01, batch_size=64, patience=3)
    settings = FitSettings(shape=SHAPE, training=training)
    flow, history = fit_transform(("flow",), train, held_out, settings)
    assert isinstance(flow, Flow)
    bits = [epoch.held_out for epoch in history]
    assert float(flow.bits_per_dim(torch.from_numpy(held_out)).mean()) == pytest.approx(min(bits))
    assert bits[-1] > min(bits)  # else keeping the last epoch would pass
    assert len(bits) - 1 - bits.index(min(bits)) == training.patience
    assert [epoch.epoch for epoch in history] == list(range(len(history)))


@pytest.mark.parametrize("count", [0, 1, 19])
def test_too_few_texts_are_an_error(bert, count: int) -> None:
    with pytest.raises(InputValueError, match=f"at least 10 .* {count} are"):
        split(np.zeros((count, 4), np.float32))
    if count:
        with pytest.raises(InputValueError, match="at least 10"):
            fit("whitening", bert, make_texts(count))


def test_a_flow_needs_more(raw) -> None:
    with pytest.raises(InputValueError, match=r"1000 vectors .* 999 and 10"):
        fit_transform(("flow",), raw[:999], raw[999:1009], SETTINGS)


def test_a_shape_that_cannot_be_is_refused_before_anything_is_read() -> None:
    for settings in (
        FitSettings(shape=FlowShape(width=0)),
        FitSettings(shape=FlowShape(coupling="other")),  # type: ignore[arg-type]
        FitSettings(training=FlowTraining(epochs=0)),
        FitSettings(training=FlowTraining(noise=-1)),
    ):
        with pytest.raises(InputValueError):
            fit("flow", "./nowhere", ["one"], settings=settings)


@pytest.mark.parametrize(
    ("method", "part"),
    [
        ("", "'' is unknown; choose from flow, whitening"),
        ("Flow", "'Flow' is unknown"),
        ("flow+", "'' is unknown"),
        ("flow,whitening", "'flow,whitening' is unknown"),
        ("dense", "'dense' is unknown"),
        ("flow+whitening+flow", "flow comes twice"),
        ("rotation", "rotation\\+flow"),
        ("flow+rotation", "rotation\\+flow"),
        ("rotation+whitening+flow", "rotation\\+flow"),
    ],
)
def test_an_unknown_method_is_refused(method: str, part: str) -> None:
    with pytest.raises(InputValueError, match=part):
        parse_method(method)
    with pytest.raises(InputValueError, match=part):
        fit(method, "./nowhere", [])


# --- recipes --------------------------------------------------------------------------------------


def fit_once(bert: Path, texts: list[str], elsewhere: int) -> Fitted:
    """A fit, with a random state of torch that it does not use."""
    torch.manual_seed(elsewhere)
    settings = FitSettings(k=9, shape=SHAPE, training=TRAINING)
    return fit(
        "flow+whitening", bert, texts, corpus="words.txt", pooling="cls", max_length=20,
        settings=settings,
    )  # fmt: skip


@pytest.fixture(scope="module")
def fitted(bert, texts) -> Fitted:
    return fit_once(bert, texts, 1)


@pytest.mark.exports
def test_equal_fits_are_equal_files(fitted, bert, texts, tmp_path) -> None:
    for name, made in zip("ab", (fitted, fit_once(bert, texts, 2)), strict=True):
        save_transform(made.transform, made.recipe, tmp_path / f"{name}.safetensors")
    first, second = (path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert first == second


@pytest.mark.exports
def test_the_recipe_says_how_it_was_fitted(fitted, bert, texts) -> None:
    import flowvec

    recipe = fitted.recipe
    held_out = COUNT // 20
    assert (recipe.method, recipe.source, recipe.corpus) == ("flow+whitening", "bert", "words.txt")
    assert (recipe.pooling, recipe.max_length, recipe.seed) == ("cls", 20, TRAINING.seed)
    assert (recipe.rows, recipe.held_out_rows) == (COUNT - held_out, held_out)
    assert recipe.flowvec == flowvec.__version__
    assert recipe.settings.keys() == {"k", "shape", "training"}
    assert (recipe.settings["k"], recipe.settings["shape"]["width"]) == (9, 24)
    assert recipe.settings["training"]["epochs"] == 3
    assert recipe.results["bits_per_dim"] == [
        [e.epoch, round(e.train, 4), round(e.held_out, 4)] for e in fitted.history
    ]
    assert len(fitted.history) == 4  # the initialized flow, and three epochs
    json.dumps(recipe.settings, allow_nan=False)

    # The transform was fitted on these very vectors, and its figures are of the held-out ones.
    train, kept = split(embed_raw(bert, texts, pooling="cls", max_length=20))
    settings = FitSettings(k=9, shape=SHAPE, training=TRAINING)
    again, history = fit_transform(("flow", "whitening"), train, kept, settings)
    assert state(again) == state(fitted.transform)
    assert history == fitted.history
    after = again(torch.from_numpy(kept)).numpy()
    assert fitted.mean_cosine == pytest.approx((mean_cosine(kept), mean_cosine(after)))
    assert recipe.results["mean_cosine"] == [round(c, 4) for c in fitted.mean_cosine]
    # The purpose of a fit: vectors no longer all point one way.
    assert fitted.mean_cosine[0] > 0.3 > abs(fitted.mean_cosine[1])


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("standardise", {}),
        ("whitening", {"k": 5}),
        ("pca", {"k": 5}),
        ("soft-zca", {"eps": 0.3}),
        ("beta-gamma", {"k": 5, "beta": 0.9, "gamma": 0.2}),
        ("all-but-the-top", {"top": 2}),
        ("all-but-the-top+soft-zca", {"top": 2, "eps": 0.3}),
    ],
)
def test_a_recipe_holds_the_settings_used_and_no_others(method, settings) -> None:
    every = FitSettings(5, 0.3, 0.9, 0.2, 2, SHAPE, TRAINING)
    assert every.used_by(method.split("+")) == settings
    flow = every.used_by(("rotation", "flow"))
    assert flow.keys() == {"k", "shape", "training"}


def test_another_seed_is_another_flow(raw) -> None:
    other = FitSettings(shape=SHAPE, training=FlowTraining(epochs=2, batch_size=64, seed=6))
    assert state(fitted_on(raw, "flow")) == state(fitted_on(raw, "flow"))
    assert state(fitted_on(raw, "flow")) != state(fitted_on(raw, "flow", other))
    assert state(fitted_on(raw, "pca")) == state(fitted_on(raw, "pca", other))


def test_the_mean_cosine_is_over_pairs_of_different_rows() -> None:
    rows = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32) + 1
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    pairs = [float(unit[i] @ unit[j]) for i, j in itertools.combinations(range(7), 2)]
    assert mean_cosine(rows) == pytest.approx(np.mean(pairs))
    assert mean_cosine(3 * rows) == pytest.approx(np.mean(pairs))
    assert np.isfinite(mean_cosine(np.zeros((3, 4), np.float32)))


# --- export of a fitted file ----------------------------------------------------------------------


@pytest.mark.exports
def test_a_file_brings_its_pooling_and_refuses_another(fitted, bert, checkpoint, tmp_path) -> None:
    file = tmp_path / "t.safetensors"
    save_transform(fitted.transform, fitted.recipe, file)
    for source, pooling, part in (
        (bert, "mean", "was fitted on cls pooling and cannot follow mean"),
        (bert, "cls+mean", "was fitted on cls pooling and cannot follow cls"),
        (checkpoint("bert", num_attention_heads=3), None, None),
        (
            checkpoint("bert", num_hidden_layers=DEEP),
            None,
            "fitted on bert with other weights or Dense",
        ),
        (checkpoint("roberta"), "cls", "fitted on bert with other weights or Dense"),
    ):
        if part is not None:
            with pytest.raises(ExportError, match=part):
                export(source, tmp_path / "b", pooling=pooling, transform=file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.safetensors"]

    # The same weights, saved again elsewhere in another file format.
    again = tmp_path / "another-name"
    shutil.copytree(bert, again)
    (again / "model.safetensors").unlink()
    model = transformers.AutoModel.from_pretrained(bert)
    torch.save(model.state_dict(), again / "pytorch_model.bin")
    bundle = export(again, tmp_path / "b", transform=file, allow_pickle=True)
    assert bundle.manifest.pooling == "cls"
    # The recipe's length applies to fitting only; the bundle keeps the model's own.
    assert bundle.manifest.max_length == POSITIONS
    with Encoder.load(bundle.path, provider="cpu", compute="float32") as encoder:
        vectors = encoder.encode(TEXTS)
    expected = normalized(fitted.transform, embed_raw(bert, TEXTS, pooling="cls"))
    assert Parity.of(vectors, expected).max_relative_error <= 1e-5


def test_one_changed_weight_is_another_checkpoint(fitted, bert, tmp_path) -> None:
    file = tmp_path / "t.safetensors"
    save_transform(fitted.transform, fitted.recipe, file)
    model = transformers.AutoModel.from_pretrained(bert)
    with torch.no_grad():
        model.encoder.layer[0].output.dense.bias[0] += 1e-3
    changed = Path(shutil.copytree(bert, tmp_path / "bert"))
    model.save_pretrained(changed)
    with pytest.raises(ExportError, match="other weights"):
        export(changed, tmp_path / "b", transform=file)


# --- sentence-transformers directories ------------------------------------------------------------

WIDE = 96


@pytest.fixture(scope="module")
def directory(bert, tmp_path_factory) -> Path:
    """BERT, max pooling, a Dense layer large enough to be stored in float16, normalization."""
    folder = tmp_path_factory.mktemp("st") / "trained"
    torch.manual_seed(0)
    modules = [Transformer(str(bert)), Pooling(WIDTH, "max"), SourceDense(WIDTH, WIDE), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    return folder


@pytest.mark.exports
def test_encoder_only_leaves_out_a_directorys_own_steps(directory, bert, texts, tmp_path) -> None:
    few = texts[:300]
    from_source = fit("whitening", directory, few, settings=FitSettings(k=5))
    bare = fit("whitening", directory, few, encoder_only=True, settings=FitSettings(k=5))
    plain = fit("whitening", bert, few, settings=FitSettings(k=5))
    assert [made.transform.in_dim for made in (from_source, bare, plain)] == [WIDE, WIDTH, WIDTH]
    assert [made.recipe.pooling for made in (from_source, bare, plain)] == ["max", "mean", "mean"]
    assert state(bare.transform) == state(plain.transform)
    # A Dense layer in front is part of what a transform belongs to.
    assert (
        bare.recipe.source_sha256 == plain.recipe.source_sha256 != from_source.recipe.source_sha256
    )
    save_transform(bare.transform, bare.recipe, tmp_path / "bare.safetensors")
    save_transform(from_source.transform, from_source.recipe, tmp_path / "own.safetensors")
    with pytest.raises(ExportError, match="other weights"):
        export(directory, tmp_path / "b", transform=tmp_path / "own.safetensors", encoder_only=True)
    # The file records that it was fitted on the encoder alone; export needs no option.
    assert bare.recipe.encoder_only
    made = export(directory, tmp_path / "b", transform=tmp_path / "bare.safetensors").manifest
    assert (made.pooling, made.transform) == ("mean", (f"whitening({WIDTH}->5)",))
    assert made.normalised


@pytest.fixture(scope="module")
def dense_raw(directory, texts) -> np.ndarray:
    return embed_raw(directory, texts)


@pytest.fixture(scope="module")
def rounded_raw(directory, tmp_path_factory) -> np.ndarray:
    """Vectors of TEXTS before the transform, the source's weights rounded to float16."""
    folder = tmp_path_factory.mktemp("rounded") / "b"
    bundle = export(directory, folder, weights="float16", normalize=False)
    with Encoder.load(bundle.path, provider="cpu", compute="float32") as encoder:
        return encoder.encode(TEXTS)


@pytest.mark.exports
@pytest.mark.parametrize("method", ["all-but-the-top", "pca+flow+whitening"])
def test_float16_weights_leave_what_was_fitted_in_float32(
    directory, dense_raw, rounded_raw, tmp_path, method: str
) -> None:
    # Sizes at which a matrix of the encoder would be rounded.
    shape, training = FlowShape(1, 2, 100), FlowTraining(epochs=1)
    settings = FitSettings(top=45, shape=shape, training=training)
    made = fit_transform(parse_method(method), *split(dense_raw), settings)[0]
    bundle = export(directory, tmp_path / "b", transform=made, weights="float16")
    kinds = {t.name: t.data_type for t in onnx.load(bundle.model).graph.initializer}
    half = [name for name, kind in kinds.items() if kind == onnx.TensorProto.FLOAT16]
    assert "transforms.0.linear.weight.float16" in half  # the source's own Dense layer
    others = [name for name in half if not name.startswith(("backbone.", "transforms.0."))]
    assert others == []
    assert any(name.startswith("transforms.1.") for name in kinds)
    with Encoder.load(bundle.path, provider="cpu", compute="float32") as encoder:
        vectors = encoder.encode(TEXTS)
    assert Parity.of(vectors, normalized(made, rounded_raw)).max_relative_error <= 1e-5


# --- the corpus -----------------------------------------------------------------------------------

LINES = [f"line {i} of a file" for i in range(40)]


def corpus(folder: Path, lines: list[str], name: str = "c.txt") -> str:
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(folder / name)


def test_a_sample_is_of_distinct_texts_that_hold_something(tmp_path) -> None:
    lines = [part for line in LINES for part in (line, "", "   ", f"  {line} ", line, "\t")]
    sample = read_corpus(corpus(tmp_path, lines), rows=len(LINES))
    assert len(sample) == len(LINES)
    assert set(sample) == set(LINES)
    # Repeated lines at the beginning do not count as rows to draw from.
    repeated = ["again"] * 500 + LINES
    assert len(read_corpus(corpus(tmp_path, repeated), rows=30)) == 30


def test_a_sample_is_drawn_by_its_seed_in_random_order(tmp_path) -> None:
    path = corpus(tmp_path, LINES)
    first = read_corpus(path, rows=12, seed=1)
    assert first == read_corpus(path, rows=12, seed=1)
    assert len(set(first)) == 12
    assert set(first) != set(read_corpus(path, rows=12, seed=2))
    # The last rows are held out, so they must not be the last articles of the corpus.
    whole = read_corpus(path, rows=40, seed=1)
    assert whole != LINES
    assert sorted(whole) == sorted(LINES)


def test_a_smaller_corpus_is_taken_whole_and_a_larger_one_to_a_fifth(tmp_path) -> None:
    path = corpus(tmp_path, LINES)
    assert set(read_corpus(path, rows=10_000)) == set(LINES)
    for seed in range(20):
        assert set(read_corpus(path, rows=4, seed=seed)) <= set(LINES[:20])
    drawn = set().union(*(read_corpus(path, rows=4, seed=seed) for seed in range(40)))
    assert drawn == set(LINES[:20])


def test_a_large_corpus_is_not_read_to_its_end() -> None:
    endless = (f"text {i}" for i in itertools.count())
    assert len(sample_texts(endless, 3, 0, "endless")) == 3


def test_rows_are_split_into_sentences_if_requested(tmp_path) -> None:
    rows = ["The cat sleeps all day. Why? Dr. Smith does not know that.", "Stocks fell on Monday."]
    expected = {
        "The cat sleeps all day.",
        "Dr. Smith does not know that.",
        "Stocks fell on Monday.",
    }
    assert set(read_corpus(corpus(tmp_path, rows), rows=9, sentences=True)) == expected
    assert set(read_corpus(corpus(tmp_path, rows), rows=9)) == set(rows)


def test_every_form_of_a_file_is_read(tmp_path) -> None:
    with lzma.open(tmp_path / "c.txt.xz", "wt", encoding="utf-8") as file:
        file.write("\n".join(LINES))
    assert set(read_corpus(str(tmp_path / "c.txt.xz"), rows=99)) == set(LINES)
    records = [json.dumps({"body": line}) for line in LINES]
    path = corpus(tmp_path, records, "c.jsonl")
    assert set(read_corpus(path, rows=99, text_field="body")) == set(LINES)
    path = corpus(tmp_path, ["body", *LINES], "c.data")
    assert set(read_corpus(path, rows=99, text_field="body", file_format="csv")) == set(LINES)


@pytest.mark.parametrize("lines", [[], ["", "  ", "\t"]])
def test_a_corpus_without_text_is_an_error(tmp_path, lines) -> None:
    with pytest.raises(InputValueError, match=r"no text in .*c\.txt"):
        read_corpus(corpus(tmp_path, lines), rows=5)


def test_wrong_arguments_of_a_corpus_are_errors(tmp_path) -> None:
    with pytest.raises(InputValueError, match="cannot read"):
        read_corpus(str(tmp_path / "none.txt"), rows=5)
    with pytest.raises(InputValueError, match="rows must be at least 1"):
        read_corpus(corpus(tmp_path, LINES), rows=0)


def test_recipes_of_files_are_recipes_of_fits(fitted, tmp_path) -> None:
    save_transform(fitted.transform, fitted.recipe, tmp_path / "t.safetensors")
    loaded, recipe = load_transform(tmp_path / "t.safetensors")
    assert isinstance(recipe, Recipe)
    assert recipe == fitted.recipe
    assert state(loaded) == state(fitted.transform)
