"""Variants of sparse and multi-vector encoders: they rank as float32 does, or are refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import numpy_helper

from flowvec import Bundle, ExportError, MultiVectorEncoder, SparseEncoder, maxsim
from flowvec.bundle.bundle import record_file
from flowvec.bundle.manifest import MANIFEST, VARIANTS
from flowvec.demo import load_passages
from flowvec.encoder.proof import limit_of
from flowvec.errors import EngineNotProvedError, ProviderUnavailableError
from flowvec.texts.sentences import split_sentences
from flowvec.tokenizer.token_ids import TokenIds
from flowvec_export import export
from flowvec_export.variants.gptq import observe
from flowvec_export.variants.ranking import rank_agreement
from flowvec_export.variants.retrieval import top_agreement
from flowvec_export.variants.variants import VariantError
from tests.conftest import first_layers_of_backbone
from tests.export.sparse_encoders import make_splade
from tests.export.variants.test_variants import ENGINES, skip_reason

pytestmark = pytest.mark.parity

Model = SparseEncoder | MultiVectorEncoder
CLASSES: dict[str, type[Model]] = {"sparse": SparseEncoder, "multi_vector": MultiVectorEncoder}
INT8 = ("int8", "int8-openvino")
SENTENCES = [s for p in load_passages() for s in split_sentences(p.text)]
CALIBRATION, OTHERS = SENTENCES[::2], SENTENCES[1::6]
DIM = 32


# --- models ---------------------------------------------------------------------------------------


def make_multi_vector(folder: Path, seed: int = 0) -> Path:
    """The backbone's first layer with a random projection; queries are filled up to 24 tokens."""
    import torch
    from sentence_transformers import MultiVectorEncoder as TheirMultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sentence_transformer.modules import Normalize

    source = first_layers_of_backbone(folder / "encoder", 1)
    expansion = {"strategy": "fixed", "attend": False, "length": 24}
    transformer = Transformer(
        str(source), query_expansion=expansion, model_kwargs={"dtype": torch.float32}
    )
    torch.manual_seed(seed)
    projection = Dense(
        transformer.get_embedding_dimension(), DIM, bias=False,
        activation_function=torch.nn.Identity(), module_input_name="token_embeddings",
    )  # fmt: skip
    model = TheirMultiVectorEncoder(
        modules=[
            transformer,
            projection,
            MultiVectorMask(skiplist_words=[",", "."]),
            Normalize(module_input_name="token_embeddings"),
        ],
        device="cpu",
    )
    model.save_pretrained(str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="module", params=CLASSES)
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Bundle]:
    """A checkpoint of each kind, random or with a random projection, and its bundle.

    How far a random model agrees in 8 bits depends on its numbers, which differ between versions of
    torch. So the first of a few that agrees is taken.
    """
    if request.param != "sparse" and int(version("sentence-transformers").partition(".")[0]) < 6:
        pytest.skip("this sentence-transformers has no MultiVectorEncoder")
    kinds: Any = [kind for kind in INT8 if skip_reason(kind) is None]
    refused: list[str] = []
    for seed in range(6):
        folder = tmp_path_factory.mktemp(request.param)
        is_sparse = request.param == "sparse"
        source = make_splade(folder, seed=seed) if is_sparse else make_multi_vector(folder, seed)
        try:
            bundle = export(source, folder / "bundle", variants=kinds, calibration=CALIBRATION)
        except VariantError as error:
            refused.append(str(error))
        else:
            return source, bundle
    pytest.fail(f"no random model agrees: {refused}")


@pytest.fixture(scope="module")
def source(exported: tuple[Path, Bundle]) -> Path:
    return exported[0]


@pytest.fixture(scope="module")
def bundle(exported: tuple[Path, Bundle]) -> Bundle:
    return exported[1]


@pytest.fixture(params=INT8)
def kind(request: pytest.FixtureRequest) -> str:
    if reason := skip_reason(request.param):
        pytest.skip(reason)
    return str(request.param)


def load(bundle: Bundle, kind: str | None, **options: Any) -> Model:
    engine = "CPUExecutionProvider" if kind is None else ENGINES[kind].provider
    compute: Any = "float32" if kind is None else "int8"
    return CLASSES[bundle.manifest.kind].load(
        bundle.path, provider=engine, compute=compute, **options
    )


def dense(vectors: Any) -> list[np.ndarray]:
    """Vectors of either kind as arrays, one for each text."""
    return vectors if isinstance(vectors, list) else list(vectors.to_dense())


def scores(model: Model, queries: list[str], documents: list[str]) -> np.ndarray:
    found = model.encode_query(queries), model.encode_document(documents)
    return model.similarity(*found) if isinstance(model, SparseEncoder) else maxsim(*found)


# --- a variant that agrees ------------------------------------------------------------------------


def test_a_variant_ranks_as_float32_does(bundle: Bundle, kind: str) -> None:
    figures = bundle.manifest.parity
    assert figures[f"{kind}_kendall_tau"] >= 0.9
    assert figures[f"{kind}_top_1"] >= 0.9
    assert figures[f"{kind}_top_10"] >= 0.9
    assert bundle.manifest.proved_on.keys() >= {kind}
    queries = [" ".join(text.split()[:10]) for text in OTHERS[:40]]
    with load(bundle, None) as exact, load(bundle, kind) as rounded:
        assert rounded.engine.variant == kind  # or float32 would be compared with itself
        assert rounded.proof.proved
        assert rounded.proof.limit == limit_of(bundle.manifest.kind, "int8")
        ours, theirs = (scores(model, queries, OTHERS) for model in (rounded, exact))
    assert not np.array_equal(ours, theirs)
    assert top_agreement(theirs, ours, 10) >= 0.85


def test_a_variant_changes_neither_the_model_nor_its_fingerprint(
    bundle: Bundle, source: Path, tmp_path: Path
) -> None:
    without = export(source, tmp_path / "bundle")
    assert without.fingerprint == bundle.fingerprint
    assert without.model.read_bytes() == bundle.model.read_bytes()
    with pytest.raises(ProviderUnavailableError, match="--variants int8`"):
        load(without, "int8")


def test_auto_does_not_take_it(bundle: Bundle) -> None:
    with CLASSES[bundle.manifest.kind].load(bundle.path) as model:
        assert model.engine.compute in ("float32", "bfloat16")


def test_vectors_do_not_depend_on_what_they_are_computed_with(bundle: Bundle, kind: str) -> None:
    texts = [*OTHERS[:30], "", "word " * 300, "!", OTHERS[0] * 5]
    # A difference in the last bit can round an activation to the next step, and move a logit across
    # zero. OpenVINO's products differ by the shape of a batch.
    share, least = (0.001, 0.99999) if kind == "int8" else (0.02, 0.999)
    with load(bundle, kind) as model:
        alone = [dense(model.encode_document([text]))[0] for text in texts]
        for together in (
            dense(model.encode_document(texts)),
            dense(model.encode_document(texts[::-1]))[::-1],
            dense(model.encode_document(texts, max_batch_tokens=1 << 20)),
        ):
            for a, b in zip(together, alone, strict=True):
                rows, expected = np.atleast_2d(a, b)
                lengths = np.linalg.norm(expected, axis=1)
                assert np.abs(rows - expected).max() <= share * lengths.max()
                cosines = (rows * expected).sum(1) / (np.linalg.norm(rows, axis=1) * lengths)
                assert cosines.min() >= least


def test_the_products_of_the_encoder_and_its_head_are_integers(bundle: Bundle) -> None:
    small = onnx.load(bundle.graph("int8"))
    exact = onnx.load(bundle.model)
    stored = {init.name for init in exact.graph.initializer if len(init.dims) == 2}
    products = [
        node for node in exact.graph.node if node.op_type == "MatMul" and node.input[1] in stored
    ]
    kinds = [node.op_type for node in small.graph.node]
    assert kinds.count("MatMulIntegerToFloat") == len(products)
    assert bundle.graph("int8").stat().st_size < bundle.model.stat().st_size


# --- a graph that is wrong ------------------------------------------------------------------------


def rolled(values: np.ndarray) -> np.ndarray:
    return np.roll(values, 1, axis=0)


def doubled(values: np.ndarray) -> np.ndarray:
    return np.clip(values.astype(np.int16) * 2, -127, 127).astype(np.int8)


@pytest.mark.parametrize("change", [rolled, np.zeros_like, np.negative, doubled])
@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_a_wrong_graph_is_refused_at_load(
    bundle: Bundle, kind: str, which: int, change: Any, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(bundle.path, tmp_path / "bundle"))
    graph = onnx.load(copy / VARIANTS[kind])
    matrices = [t for t in graph.graph.initializer if t.data_type == onnx.TensorProto.INT8]
    matrix = [t for t in matrices if len(t.dims) == 2][which]
    matrix.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(matrix)), matrix.name))
    onnx.save(graph, copy / VARIANTS[kind])
    files = bundle.manifest.files | {VARIANTS[kind]: record_file(copy / VARIANTS[kind])}
    changed = replace(bundle.manifest, files=files)
    (copy / MANIFEST).write_text(changed.to_json(), encoding="utf-8")
    with pytest.raises(EngineNotProvedError, match=r"int8 is not proved .*: its "):
        load(Bundle(copy, changed), kind)
    # The float32 graph is as it was.
    with load(Bundle(copy, changed), None) as model:
        assert model.proof.proved


# --- what is refused at export --------------------------------------------------------------------


def with_an_outlier(source: Path, out: Path) -> Path:
    """A copy with a neuron that is very large for every token, and changes nothing.

    Its weights to the layer's output are zero. In 8 bits it sets the scale of every token, so all
    other neurons are rounded to a few steps.
    """
    from safetensors.numpy import load_file, save_file

    copy = Path(shutil.copytree(source, out))
    (file,) = (
        copy.rglob("model.safetensors")
        if not (copy / "model.safetensors").exists()
        else [copy / "model.safetensors"]
    )
    weights = load_file(file)
    (bias,) = (name for name in weights if name.endswith("layer.0.intermediate.dense.bias"))
    weights[bias] = weights[bias].copy()
    weights[bias][0] = 1000
    output = bias.replace("intermediate.dense.bias", "output.dense.weight")
    weights[output] = weights[output].copy()
    weights[output][:, 0] = 0
    save_file(weights, file, metadata={"format": "pt"})
    return copy


def test_a_quantization_that_ranks_differently_is_refused(source: Path, tmp_path: Path) -> None:
    changed = with_an_outlier(source, tmp_path / "source")
    message = (
        r"int8 ranks differently: Kendall's tau -?\d\.\d{3} to float32 \(at least 0\.9\), the same "
        r"first document for \d+ % of the queries \(at least 90 %\), and \d+ % of float32's ten"
    )
    with pytest.raises(ExportError, match=message):
        export(changed, tmp_path / "bundle", variants=["int8"], calibration=CALIBRATION)
    assert not (tmp_path / "bundle").exists()
    # What is refused is the rounding: the same checkpoint has a bundle in float32.
    export(changed, tmp_path / "bundle")


def test_few_texts_and_float16_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"at least 48 texts .* 47"):
        export(source, tmp_path / "bundle", variants=["int8"], calibration=SENTENCES[:47])
    with pytest.raises(ExportError, match="no float16 variant"):
        export(source, tmp_path / "bundle", variants=["float16"])
    assert not (tmp_path / "bundle").exists()


# --- measures -------------------------------------------------------------------------------------

Scores = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(2, 15)),
    elements=st.integers(-8, 8).map(float),
)


@given(Scores, st.integers(1, 12))
def test_equal_rankings_agree_whatever_the_scores_are(exact: np.ndarray, count: int) -> None:
    for other in (exact, 3 * exact + 7, np.exp(exact / 4)):
        agreement = rank_agreement(list(exact), list(other))
        assert agreement.kendall_tau == pytest.approx(1)
        assert agreement.top_1 == 1
        assert top_agreement(exact, other, count) == 1


@given(Scores, st.integers(1, 12), st.randoms(use_true_random=False))
def test_shares_are_between_none_and_all(exact: np.ndarray, count: int, random: Any) -> None:
    other = exact[:, random.sample(range(exact.shape[1]), exact.shape[1])]
    agreement = rank_agreement(list(exact), list(other))
    assert -1 <= agreement.kendall_tau <= 1 + 1e-9
    assert 0 <= top_agreement(exact, other, count) <= 1


def test_reversed_rankings_disagree() -> None:
    exact = np.arange(40, dtype=np.float32).reshape(2, 20)
    agreement = rank_agreement(list(exact), list(-exact))
    assert (agreement.kendall_tau, agreement.top_1) == (-1, 0)
    assert top_agreement(exact, -exact, 10) == 0
    assert top_agreement(exact, -exact, 20) == 1  # all of them are the best twenty


def test_no_ranking_agrees_only_with_no_ranking() -> None:
    flat, steep = np.zeros(5, np.float32), np.arange(5, dtype=np.float32)
    assert rank_agreement([flat], [flat + 1]).kendall_tau == 1
    assert rank_agreement([flat], [steep]).kendall_tau == 0
    assert rank_agreement([steep], [flat]).kendall_tau == 0


def test_nan_agrees_with_nothing() -> None:
    exact = np.arange(5, dtype=np.float32)[np.newaxis]
    other = exact.copy()
    other[0, 2] = np.nan
    assert not rank_agreement(list(exact), list(other)).kendall_tau >= 0
    assert top_agreement(exact, other, 3) == 0


def test_tokens_that_fill_a_query_up_are_observed(bundle: Bundle) -> None:
    proto = onnx.load(bundle.model)
    product = next(n for n in proto.graph.node if n.op_type == "MatMul")
    source, width = product.input[0], bundle.manifest.dim
    width = next(t.dims[0] for t in proto.graph.initializer if t.name == product.input[1])
    ids = TokenIds.from_rows([[2, 9, 3], [2, 8, 3]])
    filled = replace(ids, attended=np.array([1, 1]))
    pad_id, most = bundle.manifest.pad_id, bundle.manifest.max_length
    all_seen, half_seen = (
        next(observe(proto, {source: width}, given, most, pad_id))[source]
        for given in (ids, filled)
    )
    # The first product reads embeddings, which do not depend on attention.
    np.testing.assert_array_equal(half_seen.loudness, all_seen.loudness)
    np.testing.assert_allclose(half_seen.moments, all_seen.moments, rtol=1e-6)
