"""Static embedders: a bundle gives the vectors that sentence-transformers and model2vec give.

A directory is computed as by the library that wrote it. The tables are random; what is compared
with the libraries runs the libraries themselves.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize

from flowvec import Bundle, Encoder
from flowvec.engine.native_session import native_status
from flowvec.errors import ExportError
from flowvec.texts.sentences import split_sentences
from flowvec_export import export, fit
from flowvec_export.assembly import from_table
from flowvec_export.assembly.parity import Parity
from flowvec_export.sources.load import read_source, read_torch_source
from flowvec_export.sources.static import StaticSource
from tests.drawing import examples
from tests.export.static_models import (
    PASSAGES,
    TOKENIZERS,
    WIDTH,
    make_model2vec,
    make_st,
    random_table,
    word_level,
    word_piece,
)
from tests.makers import unit

SENTENCES = [sentence for text in PASSAGES for sentence in split_sentences(text)]
NASTY = [
    "",
    " ",
    "\n\t",
    "[UNK]",
    "[UNK] [UNK]",
    "a [UNK] river",
    "[CLS] water [SEP] [PAD]",
    "ﬁ ½ Ⅷ e\u0301",
    "\x00\x01 control",
    "漢字 😀 №",
    "😀",
    "water" * 400,
    "   ".join(PASSAGES[:8]),
    "supercalifragilistic " * 700,
    " ".join(PASSAGES[:60]),
]
TEXTS = [*NASTY, *SENTENCES[::3], *PASSAGES[:40]]


def encode(bundle: Bundle, texts: list[str] = TEXTS, **options: Any) -> np.ndarray:
    """Vectors of ONNX Runtime, from which those of the native engine do not differ."""
    with Encoder.load(bundle.path, provider="cpu") as encoder:
        vectors = np.asarray(encoder.encode(texts, **options))
    if native_status() is None:
        assert bundle.variants == ("float32-native",)
        with Encoder.load(bundle.path, provider="native") as encoder:
            assert_close(np.asarray(encoder.encode(texts, **options)), vectors)
    return vectors


def assert_close(ours: np.ndarray, theirs: Any) -> None:
    parity = Parity.of(ours, np.asarray(theirs, dtype=np.float32))
    assert parity.max_relative_error <= 1e-4
    assert parity.min_cosine >= 0.99999


def of_st(model: SentenceTransformer, texts: list[str] = TEXTS, **options: Any) -> np.ndarray:
    return np.asarray(model.encode(texts, show_progress_bar=False, **options))


def edit_json(file: Path, **settings: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def change_arrays(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> Path:
    file = next(folder.rglob("model.safetensors"))
    arrays = load_file(file)
    change(arrays)
    save_file({name: np.ascontiguousarray(values) for name, values in arrays.items()}, file)
    return folder


# --- sentence-transformers ------------------------------------------------------------------------


@pytest.mark.parity
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_bundle_gives_sentence_transformers_vectors(tmp_path, kind) -> None:
    model = make_st(tmp_path / "st", tokenizer=TOKENIZERS[kind]())
    bundle = export(tmp_path / "st", tmp_path / "b")
    assert (bundle.manifest.layers, bundle.manifest.normalised) == (0, False)
    assert_close(encode(bundle), of_st(model))


@pytest.mark.parity
def test_what_follows_the_table_is_applied(tmp_path) -> None:
    model = make_st(tmp_path / "st", Dense(WIDTH, 7), Normalize())
    bundle = export(tmp_path / "st", tmp_path / "b")
    assert (bundle.manifest.dim, bundle.manifest.normalised) == (7, True)
    assert bundle.manifest.transform == ("dense(24->7, tanh)",)
    assert_close(encode(bundle), of_st(model))


@pytest.mark.parity
@pytest.mark.parametrize("folder", ["0_StaticEmbedding", "."])
def test_older_layouts_are_read(tmp_path, folder) -> None:
    """sentence-transformers 3 to 5 named its modules otherwise, and 3.2 kept them in folders."""
    model = make_st(tmp_path / "st", Normalize())
    old = tmp_path / "old"
    (old / folder).mkdir(parents=True)
    for name in ("model.safetensors", "tokenizer.json"):
        shutil.copy(tmp_path / "st" / name, old / folder / name)
    (old / "1_Normalize").mkdir()
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(
            [(folder, "StaticEmbedding"), ("1_Normalize", "Normalize")]
        )
    ]
    (old / "modules.json").write_text(json.dumps(modules))
    assert_close(encode(export(old, tmp_path / "b")), of_st(model))
    assert_close(of_st(SentenceTransformer(str(old), device="cpu")), of_st(model))


@pytest.mark.parity
def test_its_prompts_are_read(tmp_path) -> None:
    prompts = {"query": "a river of ", "document": ""}
    model = make_st(tmp_path / "st", prompts=prompts, default_prompt_name="query")
    bundle = export(tmp_path / "st", tmp_path / "b")
    assert_close(encode(bundle, SENTENCES), of_st(model, SENTENCES))
    assert_close(
        encode(bundle, SENTENCES, prompt_name="document"),
        of_st(model, SENTENCES, prompt_name="document"),
    )


@pytest.mark.parity
@pytest.mark.parametrize("after", [(), (Normalize(),)], ids=["plain", "normalized"])
def test_leading_dimensions_are_those_of_sentence_transformers(tmp_path, after) -> None:
    make_st(tmp_path / "st", *after)
    model = SentenceTransformer(str(tmp_path / "st"), device="cpu", truncate_dim=8)
    bundle = export(tmp_path / "st", tmp_path / "b")
    ours = encode(bundle, SENTENCES, truncate_dim=8)
    # flowvec normalizes again what was normalized before.
    assert_close(ours, of_st(model, SENTENCES, normalize_embeddings=bool(after)))


@pytest.mark.parity
def test_a_tokenizer_file_that_cuts_texts_sets_max_length(tmp_path) -> None:
    tokenizer = word_piece()
    tokenizer.enable_truncation(10)
    tokenizer.enable_padding(pad_id=0)
    model = make_st(tmp_path / "st", tokenizer=tokenizer)
    bundle = export(tmp_path / "st", tmp_path / "b")
    assert bundle.manifest.max_length == 10
    assert_close(encode(bundle), of_st(model))


@pytest.mark.exports
@pytest.mark.parity
def test_a_text_of_two_megabytes_is_cut_at_65536_tokens(tmp_path) -> None:
    make_st(tmp_path / "st")
    bundle = export(tmp_path / "st", tmp_path / "b")
    assert bundle.manifest.max_length == 65_536
    text = (" ".join(PASSAGES) + " ") * 15
    text = (text * (1 + 2_000_000 // len(text)))[:2_000_000]
    source = read_source(tmp_path / "st")
    ids = source.tokenizer.encode(text, add_special_tokens=False).ids
    with Encoder.load(bundle.path, provider="cpu") as encoder:
        assert encoder.tokenize([text]).truncated == [0]
        vectors = encoder.encode([text, "water", text])
    table = random_table(source.vocabulary)
    exact = table[ids[:65_536]].astype(np.float64).mean(axis=0).astype(np.float32)
    assert_close(vectors, np.stack([exact, encode(bundle, ["water"])[0], exact]))


# --- model2vec ------------------------------------------------------------------------------------


@pytest.mark.parity
@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("normalize", [True, False])
def test_a_bundle_gives_model2vecs_vectors(tmp_path, kind, normalize) -> None:
    model = make_model2vec(tmp_path / "m", TOKENIZERS[kind](), normalize=normalize)
    bundle = export(tmp_path / "m", tmp_path / "b")
    assert (bundle.manifest.layers, bundle.manifest.normalised) == (0, normalize)
    assert bundle.manifest.max_length == 512
    assert_close(encode(bundle), model.encode(TEXTS))


@pytest.mark.parity
@pytest.mark.parametrize("form", ["weights", "mapping", "both"])
@pytest.mark.parametrize("normalize", [True, False])
def test_weights_and_quantized_vocabularies(tmp_path, form, normalize) -> None:
    tokenizer = word_piece()
    count = tokenizer.get_vocab_size()
    rng = np.random.default_rng(1)
    options: dict[str, Any] = {}
    if form != "mapping":
        options["weights"] = rng.uniform(0.01, 2, count)
    if form != "weights":
        options["token_mapping"] = rng.integers(0, 100, count)
    vectors = random_table(count if form == "weights" else 100)
    folder = tmp_path / "m"
    model = make_model2vec(folder, tokenizer, vectors, normalize=normalize, **options)
    bundle = export(folder, tmp_path / "b")
    assert_close(encode(bundle), model.encode(TEXTS))
    # A table with few rows stays one with few rows.
    shapes = {tuple(init.dims) for init in onnx.load(bundle.model).graph.initializer}
    assert (len(vectors), WIDTH) in shapes


@pytest.mark.parity
@pytest.mark.parametrize("kind", [np.float16, np.float64, np.int8])
@pytest.mark.parametrize("weights", ["float32", "float16"])
def test_tables_of_other_types(tmp_path, kind, weights) -> None:
    tokenizer = word_piece()
    exact = 20 * random_table(tokenizer.get_vocab_size())
    vectors = np.clip(np.rint(exact), -127, 127).astype(kind) if kind == np.int8 else exact
    folder = tmp_path / "m"
    model = make_model2vec(folder, tokenizer, vectors.astype(kind))
    bundle = export(folder, tmp_path / "b", weights=weights)
    # model2vec computes in float16 where the table is; here the sum is always float32.
    model.embedding = model.embedding.astype(np.float64)
    tolerance = 1e-3 if kind == np.float64 and weights == "float16" else 1e-4
    parity = Parity.of(encode(bundle), model.encode(TEXTS).astype(np.float32))
    assert parity.max_relative_error <= tolerance
    (table,) = [i for i in onnx.load(bundle.model).graph.initializer if len(i.dims) == 2]
    if kind == np.int8:
        assert table.data_type == onnx.TensorProto.INT8
    elif weights == "float16":
        assert table.data_type == onnx.TensorProto.FLOAT16


@pytest.mark.parity
def test_unknown_tokens_count_in_sentence_transformers_and_not_in_model2vec(tmp_path) -> None:
    texts = ["zzz", "the", "the zzz", "[UNK]", ""]
    static = make_st(tmp_path / "st", tokenizer=word_level())
    counted = encode(export(tmp_path / "st", tmp_path / "s"), texts)
    make_model2vec(tmp_path / "m", word_level(), normalize=False)
    ignored = encode(export(tmp_path / "m", tmp_path / "b"), texts)
    assert_close(counted, of_st(static, texts))
    np.testing.assert_allclose(counted[2], (counted[0] + counted[1]) / 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ignored[1:3], counted[[1, 1]], rtol=1e-6)
    np.testing.assert_array_equal(ignored[[0, 3, 4]], 0)


@pytest.mark.parity
@pytest.mark.parametrize("most", [5, 40, None])
def test_its_limits_in_tokens_and_characters(tmp_path, most) -> None:
    texts = [*TEXTS, "a" * 300 + " river", " " * 400 + "river", "internationally " * 60]
    model = make_model2vec(tmp_path / "m", max_length=most)
    bundle = export(tmp_path / "m", tmp_path / "b")
    manifest = bundle.manifest
    assert manifest.max_length == (most or 65_536)
    assert manifest.max_characters == (most and most * model.median_token_length)
    assert_close(encode(bundle, texts), model.encode(texts))
    if most == 40:  # a smaller limit is cut as model2vec cuts it
        shorter = export(tmp_path / "m", tmp_path / "c", max_length=12)
        assert_close(encode(shorter, texts), model.encode(texts, max_length=12))


def test_a_text_cut_by_characters_counts_as_truncated(tmp_path) -> None:
    make_model2vec(tmp_path / "m", max_length=5)
    bundle = export(tmp_path / "m", tmp_path / "b")
    most = bundle.manifest.max_characters
    assert most is not None
    with Encoder.load(bundle.path, provider="cpu") as encoder:
        cut = encoder.tokenize([" " * most, " " * most + "a", "river " * 6]).truncated
        assert cut == [1, 2]


@pytest.mark.parity
def test_older_directories_of_model2vec_do_not_name_themselves(tmp_path) -> None:
    model = make_model2vec(tmp_path / "m", normalize=False)
    (tmp_path / "m/modules.json").unlink()
    (tmp_path / "m/config.json").write_text('{"apply_zipf": true, "hidden_dim": 24}')
    assert_close(encode(export(tmp_path / "m", tmp_path / "b")), model.encode(TEXTS))
    (tmp_path / "m/config.json").write_text('{"model_type": "model2vec"}')
    assert_close(encode(export(tmp_path / "m", tmp_path / "c")), model.encode(TEXTS))


@pytest.mark.parity
@pytest.mark.parametrize("normalize", [True, False])
def test_its_configuration_decides_on_normalization(tmp_path, normalize) -> None:
    """modules.json, which sentence-transformers reads, may say otherwise or be missing."""
    make_model2vec(tmp_path / "m", normalize=not normalize)
    edit_json(tmp_path / "m/config.json", normalize=normalize)
    model = type(make_model2vec(tmp_path / "other")).from_pretrained(tmp_path / "m")
    assert_close(encode(export(tmp_path / "m", tmp_path / "b")), model.encode(TEXTS))
    (tmp_path / "m/modules.json").unlink()
    assert_close(encode(export(tmp_path / "m", tmp_path / "c")), model.encode(TEXTS))


@pytest.mark.parity
def test_sentence_transformers_reads_a_table_of_model2vec_in_its_own_folder(tmp_path) -> None:
    """Without model2vec's config.json, it is sentence-transformers' directory."""
    make_model2vec(tmp_path / "m", word_level(), normalize=False)
    (tmp_path / "m/config.json").unlink()
    bundle = export(tmp_path / "m", tmp_path / "b")
    model = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    assert bundle.manifest.max_characters is None
    assert_close(encode(bundle), of_st(model))


# --- laws of every static embedder ----------------------------------------------------------------


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Encoder:
    """A static embedder of whole words, not normalized, in which unknown words do not count."""
    folder = tmp_path_factory.mktemp("words")
    make_model2vec(folder / "m", word_level(), normalize=False)
    return Encoder.load(export(folder / "m", folder / "b").path, provider="cpu")


KNOWN = sorted({word for text in PASSAGES[:30] for word in text.lower().split()})
SOME_WORDS = st.lists(st.sampled_from([*KNOWN[:200], "unknown-1", "[UNK]"]), max_size=40)


@examples(50)
@given(SOME_WORDS, st.randoms())
def test_the_order_of_words_changes_nothing(words, given_words, random) -> None:
    shuffled = random.sample(given_words, len(given_words))
    a, b = words.encode([" ".join(given_words), " ".join(shuffled)])
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@examples(50)
@given(SOME_WORDS, SOME_WORDS)
def test_two_texts_joined_have_the_mean_of_their_vectors(words, left, right) -> None:
    counts = [sum(word in KNOWN for word in part) for part in (left, right)]
    a, b, both = words.encode([" ".join(left), " ".join(right), " ".join(left + right)])
    mean = (counts[0] * a + counts[1] * b) / max(1, sum(counts))
    np.testing.assert_allclose(both, mean, rtol=1e-4, atol=1e-5)


@examples(50)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=12))
def test_a_text_has_the_same_finite_vector_alone_and_in_a_batch(words, texts) -> None:
    together = words.encode(texts)
    assert np.isfinite(together).all()
    alone = np.concatenate([words.encode([text]) for text in texts])
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)


def test_a_text_without_tokens_has_zeros_in_every_form(tmp_path) -> None:
    make_st(tmp_path / "st", Normalize())
    bundle = export(tmp_path / "st", tmp_path / "b")
    for options in ({}, {"normalize_embeddings": True}, {"truncate_dim": 4}):
        np.testing.assert_array_equal(encode(bundle, ["", " "], **options), 0)
    with Encoder.load(bundle.path, provider="cpu") as encoder:
        assert np.isfinite(encoder.similarity(encoder.encode([""]), encoder.encode(["a"]))).all()


def test_every_engine_runs_it(tmp_path, provider) -> None:
    make_model2vec(tmp_path / "m", weights=np.linspace(0.1, 1, word_piece().get_vocab_size()))
    bundle = export(tmp_path / "m", tmp_path / "b")
    with Encoder.load(bundle.path, provider=provider, compute="float32") as encoder:
        assert_close(encoder.encode(TEXTS), encode(bundle))


def test_special_tokens_are_never_added_but_are_read(tmp_path) -> None:
    make_st(tmp_path / "st")
    bundle = export(tmp_path / "st", tmp_path / "b")
    with Encoder.load(bundle.path, provider="cpu") as encoder:
        ids = encoder.tokenize(["", "river", "[CLS] river [SEP]"]).ids
    assert ids[0] == []
    assert ids[2] == [2, *ids[1], 3]


def test_the_graph_holds_standard_operators_and_the_manifest_no_layers(tmp_path, flowvec):
    make_model2vec(tmp_path / "m")
    bundle = export(tmp_path / "m", tmp_path / "b")
    nodes = onnx.load(bundle.model).graph.node
    assert {node.domain for node in nodes} == {""}
    assert "static embedder" in flowvec("info", bundle.path).stdout


def test_float16_halves_the_file(tmp_path) -> None:
    tokenizer = word_piece()
    vectors = np.tile(random_table(tokenizer.get_vocab_size()), 8)
    make_model2vec(tmp_path / "m", tokenizer, vectors)
    whole, half = (
        export(tmp_path / "m", tmp_path / weights, weights=weights)
        for weights in ("float32", "float16")
    )
    assert half.model.stat().st_size < 0.55 * whole.model.stat().st_size
    assert half.manifest.parity["min_cosine_to_float32_weights"] >= 0.999
    assert Parity.of(encode(half), encode(whole)).min_cosine >= 0.999


def test_a_transform_is_fitted_and_exported(tmp_path) -> None:
    make_model2vec(tmp_path / "m")
    fitted = fit("whitening", tmp_path / "m", SENTENCES)
    bundle = export(tmp_path / "m", tmp_path / "b", transform=fitted.transform)
    plain = encode(export(tmp_path / "m", tmp_path / "p", normalize=False))
    import torch

    expected = fitted.transform(torch.from_numpy(plain)).detach().numpy()
    assert_close(encode(bundle), unit(expected))
    assert isinstance(read_source(tmp_path / "m").sha256(), str)


def test_what_a_table_holds_decides_its_sha256(tmp_path) -> None:
    make_model2vec(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    first = read_source(tmp_path / "a").sha256()
    assert read_source(tmp_path / "b").sha256() == first
    change_arrays(tmp_path / "b", lambda arrays: arrays["embeddings"].__setitem__((5, 0), 9.0))
    assert read_source(tmp_path / "b").sha256() != first


def test_the_gate_sees_a_wrong_graph(tmp_path, monkeypatch) -> None:
    """The reference is the table's definition, not the graph that is compared with it."""
    make_model2vec(tmp_path / "m")
    right = from_table._mean
    monkeypatch.setattr(
        from_table, "_mean", lambda surgeon, table: surgeon.node("Neg", right(surgeon, table))
    )
    with pytest.raises(ExportError, match="what the table of"):
        export(tmp_path / "m", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_no_torch_is_needed(python, tmp_path) -> None:
    make_model2vec(tmp_path / "m")
    make_st(tmp_path / "st", Normalize())
    code = """
import sys
import importlib.util
hidden = ("torch", "transformers", "onnxscript", "model2vec", "sentence_transformers")
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in hidden else find_spec(name)
from flowvec.cli.main import main
sys.argv = ["flowvec", "export", *sys.argv[1:]]
main()
"""
    for source in ("m", "st"):
        done = python(code, tmp_path / source, "-o", tmp_path / f"{source}-b")
        assert done.returncode == 0, done.stderr
    make_st(tmp_path / "dense", Dense(WIDTH, 4))
    refused = python(code, tmp_path / "dense", "-o", tmp_path / "d")
    assert refused.returncode == 2
    assert "a Dense layer, needs torch" in refused.stderr


# --- refusals -------------------------------------------------------------------------------------


def _nan(arrays: dict[str, np.ndarray]) -> None:
    arrays["embeddings"][7, 3] = np.nan


def _infinite_weight(arrays: dict[str, np.ndarray]) -> None:
    arrays["weights"] = np.ones(len(arrays["embeddings"]), np.float32)
    arrays["weights"][4] = np.inf


def _mapping(low: int, high: int) -> Callable[[dict[str, np.ndarray]], None]:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays["mapping"] = np.zeros(len(arrays["embeddings"]), np.int64)
        arrays["mapping"][3:5] = low, high

    return change


WRONG: dict[str, tuple[Callable[[dict[str, np.ndarray]], object], str]] = {
    "nan": (_nan, "a vector with NaN or infinity, in row 7"),
    "infinite weight": (_infinite_weight, "a weight with NaN or infinity, in row 4"),
    "mapping too high": (_mapping(0, 10_000), "mapping to rows 0 to 10000 of a table of"),
    "mapping below 0": (_mapping(-1, 2), "mapping to rows -1 to 2 of a table of"),
    "short mapping": (lambda a: a.update(mapping=np.zeros(3, np.int64)), "a mapping of shape"),
    "float mapping": (
        lambda a: a.update(mapping=np.zeros(len(a["embeddings"]))), "stores mapping as F64",
    ),
    "few weights": (lambda a: a.update(weights=np.ones(3, np.float32)), r"weights of shape \(3,\)"),
    "many weights": (
        lambda a: a.update(weights=np.ones(9999, np.float32)), r"weights of shape \(9999,\)",
    ),
    "few vectors": (
        lambda a: a.update(embeddings=a["embeddings"][:9]), "9 vectors for a vocabulary of",
    ),
    "flat": (lambda a: a.update(embeddings=a["embeddings"][:, 0]), "a table of shape"),
    "no table": (lambda a: a.update(weights=a.pop("embeddings")[:, 0]), "must have one table"),
    "unsigned": (
        lambda a: a.update(embeddings=a["embeddings"].astype(np.uint8)), "embeddings as U8",
    ),
    "other weights": (lambda a: a.update(scales=np.ones(3, np.float32)), "weights such as scales"),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_table_is_refused_with_its_reason(tmp_path, fault) -> None:
    change, reason = WRONG[fault]
    make_model2vec(tmp_path / "m")
    with pytest.raises(ExportError, match=reason):
        export(change_arrays(tmp_path / "m", change), tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("mark", ["head.safetensors", "pipeline.skops", "head_config"])
def test_a_trained_head_is_refused_and_the_vectors_under_it_can_be_had(tmp_path, mark) -> None:
    model = make_model2vec(tmp_path / "m")
    if mark == "head_config":
        edit_json(tmp_path / "m/config.json", head_config={"n_layers": 1})
    else:
        (tmp_path / "m" / mark).write_bytes(b"")
    with pytest.raises(ExportError, match="has a trained head"):
        export(tmp_path / "m", tmp_path / "b")
    under = export(tmp_path / "m", tmp_path / "b", encoder_only=True)
    assert_close(encode(under), model.encode(TEXTS))


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"max_length": "512"}, "max_length '512', which is not a whole number"),
        ({"max_length": 0}, "max_length 0"),
        ({"normalize": "yes"}, "normalize to 'yes'"),
    ],
)
def test_a_wrong_setting_is_refused(tmp_path, setting, reason) -> None:
    make_model2vec(tmp_path / "m")
    edit_json(tmp_path / "m/config.json", **setting)
    with pytest.raises(ExportError, match=reason):
        export(tmp_path / "m", tmp_path / "b")


def test_a_dense_module_after_model2vecs_table_is_refused(tmp_path) -> None:
    make_model2vec(tmp_path / "m")
    modules = json.loads((tmp_path / "m/modules.json").read_text())
    modules[1] = {"idx": 1, "name": "1", "path": "1_Dense", "type": "sentence_transformers.Dense"}
    (tmp_path / "m/modules.json").write_text(json.dumps(modules))
    make_st(tmp_path / "st", Dense(WIDTH, 4))
    shutil.copytree(tmp_path / "st/1_Dense", tmp_path / "m/1_Dense")
    with pytest.raises(ExportError, match=r"Dense module .*model2vec"):
        export(tmp_path / "m", tmp_path / "b")


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_variants_are_refused(tmp_path, kind) -> None:
    make_model2vec(tmp_path / "m")
    with pytest.raises(ExportError, match=r"no float16|no matrix products"):
        export(tmp_path / "m", tmp_path / "b", variants=[kind])


def test_other_refusals(tmp_path) -> None:
    make_st(tmp_path / "st")
    with pytest.raises(ExportError, match="has no pooling cls"):
        export(tmp_path / "st", tmp_path / "b", pooling="cls")
    with pytest.raises(ExportError, match="static embedder, a table"):
        read_torch_source(tmp_path / "st")
    with pytest.raises(ExportError, match=r"max_length .*1 to 65536"):
        export(tmp_path / "st", tmp_path / "b", max_length=70_000)
    edit_json(tmp_path / "st/config_sentence_transformers.json", truncate_dim=8)
    with pytest.raises(ExportError, match="has a truncate_dim"):
        export(tmp_path / "st", tmp_path / "b")
    (tmp_path / "st/tokenizer.json").unlink()
    edit_json(tmp_path / "st/config_sentence_transformers.json", truncate_dim=None)
    with pytest.raises(ExportError, match=r"tokenizer\.json is missing"):
        export(tmp_path / "st", tmp_path / "b")


def test_a_tokenizer_that_cuts_on_the_left_is_refused(tmp_path) -> None:
    tokenizer = word_piece()
    tokenizer.enable_truncation(10, direction="left")
    make_st(tmp_path / "st", tokenizer=tokenizer)
    with pytest.raises(ExportError, match="on the left"):
        export(tmp_path / "st", tmp_path / "b")


def test_a_pickle_is_refused_unless_allowed(tmp_path) -> None:
    model = make_st(tmp_path / "st")
    import torch

    torch.save(model[0].state_dict(), tmp_path / "st/pytorch_model.bin")
    (tmp_path / "st/model.safetensors").unlink()
    with pytest.raises(ExportError, match="as a pickle"):
        export(tmp_path / "st", tmp_path / "b")
    bundle = export(tmp_path / "st", tmp_path / "b", allow_pickle=True)
    assert_close(encode(bundle), of_st(model))


def test_a_damaged_file_is_named(tmp_path) -> None:
    make_st(tmp_path / "st")
    (tmp_path / "st/model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ExportError, match=r"read .*model\.safetensors"):
        export(tmp_path / "st", tmp_path / "b")


def test_a_source_says_what_it_is(tmp_path) -> None:
    make_model2vec(tmp_path / "m")
    source = read_source(tmp_path / "m")
    assert isinstance(source, StaticSource)
    assert (source.layers, source.pooling, source.max_length) == (0, "mean", 512)
    assert source.table.width == WIDTH
