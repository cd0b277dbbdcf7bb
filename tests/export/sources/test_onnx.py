"""Graphs that others exported, as sources: a bundle gives what torch gave before that export.

`tests/data/optimum` was made by real Optimum (`tests/data/make_optimum.py`), in an environment of
its own; `expected.npz` beside it holds what torch gave for its texts.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, version_converter

from flowvec import Encoder
from flowvec.errors import ExportError
from flowvec_export import Dense, Flow, FlowShape, export, fit, save_transform
from flowvec_export.assembly.parity import Parity
from flowvec_export.graph.editing import Surgeon
from flowvec_export.sources.onnx import find_graph
from tests.export.conftest import make_texts
from tests.makers import unit

OPTIMUM = Path(__file__).resolve().parents[2] / "data" / "optimum"


def _recorded() -> Any:
    """The script that made the fixture, without what it imports."""
    text = (OPTIMUM.parent / "make_optimum.py").read_text(encoding="utf-8")
    start, stop = text.index("TEXTS = ["), text.index("WORDS = ")
    scope: dict[str, Any] = {}
    exec(text[start:stop], scope)
    return scope["TEXTS"]


TEXTS: list[str] = _recorded()
EXPECTED = dict(np.load(OPTIMUM / "expected.npz"))


def encode(folder: Path, texts: list[str] = TEXTS, **options: Any) -> np.ndarray:
    with Encoder.load(folder, provider="cpu", compute="float32") as encoder:
        return encoder.encode(texts, **options)


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    parity = Parity.of(ours, theirs)
    assert parity.max_relative_error <= 1e-4
    assert parity.min_cosine >= 0.99999


@pytest.fixture
def copy(tmp_path: Path):
    """A copy of a form that a test may damage."""

    def make(form: str) -> Path:
        return Path(shutil.copytree(OPTIMUM / form, tmp_path / form))

    return make


def edit_json(file: Path, **settings: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def change(folder: Path, edit: Any) -> Path:
    file = find_graph(folder)
    assert file is not None
    proto = onnx.load(file)
    onnx.save(edit(proto) or proto, file)
    return folder


# --- the forms ------------------------------------------------------------------------------------


@pytest.mark.parity
@pytest.mark.parametrize("form", ["bert", "roberta"])
def test_token_vectors_are_pooled_as_torch_did(tmp_path, form) -> None:
    bundle = export(OPTIMUM / form, tmp_path / "b", normalize=False)
    manifest = bundle.manifest
    assert (manifest.pooling, manifest.dim, manifest.max_length) == ("mean", 32, 24)
    assert (manifest.layers, manifest.normalised) == (2, False)
    assert_close(encode(bundle.path), EXPECTED[form])
    whole = onnx.load(bundle.model)
    assert [value.name for value in whole.graph.input] == ["input_ids", "attention_mask"]
    assert [value.name for value in whole.graph.output] == ["sentence_embedding"]
    axes = [d.dim_param or d.dim_value for d in whole.graph.output[0].type.tensor_type.shape.dim]
    assert axes == ["batch_size", 32]
    assert {node.domain for node in whole.graph.node} == {""}


@pytest.mark.parametrize("form", ["bert", "sentence"])
def test_every_engine_runs_the_changed_graph(tmp_path, provider, form) -> None:
    bundle = export(OPTIMUM / form, tmp_path / "b", normalize=False)
    with Encoder.load(bundle.path, provider=provider, compute="float32") as encoder:
        assert_close(encoder.encode(TEXTS), EXPECTED[form])


def test_a_plain_encoder_is_normalized_unless_requested(tmp_path) -> None:
    vectors = encode(export(OPTIMUM / "bert", tmp_path / "b").path)
    assert_close(vectors, unit(EXPECTED["bert"]))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


@pytest.mark.parity
def test_a_finished_sentence_vector_is_taken_as_it_is(tmp_path) -> None:
    bundle = export(OPTIMUM / "sentence", tmp_path / "b")
    assert (bundle.manifest.pooling, bundle.manifest.dim) == ("as exported", 12)
    assert bundle.manifest.normalised  # not stated anywhere, but detected
    vectors = encode(bundle.path)
    assert_close(vectors, EXPECTED["sentence"])


def test_its_token_vectors_can_be_pooled_otherwise(tmp_path) -> None:
    bundle = export(OPTIMUM / "sentence", tmp_path / "b", pooling="mean", normalize=False)
    assert_close(encode(bundle.path), EXPECTED["bert"])
    only = export(OPTIMUM / "sentence", tmp_path / "e", encoder_only=True, normalize=False)
    assert_close(encode(only.path), EXPECTED["bert"])


@pytest.mark.parity
def test_a_sentence_transformers_directory_without_torchs_weights(tmp_path) -> None:
    assert not list((OPTIMUM / "hub").glob("*.safetensors"))
    bundle = export(OPTIMUM / "hub", tmp_path / "b")
    assert bundle.manifest.transform == ("dense(32->12, tanh)",)
    assert bundle.manifest.prompts["query"] == "a man "
    assert_close(encode(bundle.path), EXPECTED["hub"])
    queries = encode(bundle.path, prompt_name="query")
    assert_close(queries, encode(bundle.path, ["a man " + text for text in TEXTS]))


def test_a_finished_sentence_vector_has_its_dense_layers_behind_it(tmp_path, copy) -> None:
    folder = copy("hub")
    shutil.copy(OPTIMUM / "sentence/model.onnx", folder / "onnx/model.onnx")

    def sentences_alone(proto: onnx.ModelProto) -> None:
        kept = [value for value in proto.graph.output if value.name == "sentence_embedding"]
        del proto.graph.output[:]
        proto.graph.output.extend(kept)

    change(folder, sentences_alone)
    bundle = export(folder, tmp_path / "b")
    assert (bundle.manifest.pooling, bundle.manifest.transform) == ("as exported", ())
    assert_close(encode(bundle.path), EXPECTED["sentence"])


def branch(value: str) -> onnx.GraphProto:
    out = helper.make_tensor_value_info(f"{value}_taken", TensorProto.FLOAT, None)
    node = helper.make_node("Identity", [value], [out.name])
    return helper.make_graph([node], "branch", [], [out])


def test_what_only_a_graph_within_the_graph_reads_is_kept(tmp_path, copy) -> None:
    def choose(proto: onnx.ModelProto) -> None:
        """Put the token vectors behind a branch that could give their negatives, but never does."""
        for node in proto.graph.node:
            node.output[:] = ["inner" if n == "last_hidden_state" else n for n in node.output]
        proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
        proto.graph.node.extend(
            [
                helper.make_node("Neg", ["inner"], ["negative"]),
                helper.make_node("Neg", ["negative"], ["positive"]),
                helper.make_node(
                    "If", ["yes"], ["last_hidden_state"],
                    then_branch=branch("positive"), else_branch=branch("negative"),
                ),
            ]
        )  # fmt: skip

    bundle = export(change(copy("bert"), choose), tmp_path / "b", normalize=False)
    assert_close(encode(bundle.path), EXPECTED["bert"])


def test_local_functions_are_put_in_line(tmp_path, copy) -> None:
    def wrap(proto: onnx.ModelProto) -> None:
        """Let the token vectors come out of a function of the graph's own."""
        for node in proto.graph.node:
            node.output[:] = ["inner" if n == "last_hidden_state" else n for n in node.output]
        body = [helper.make_node("Neg", ["x"], ["z"]), helper.make_node("Neg", ["z"], ["y"])]
        standard = [entry for entry in proto.opset_import if entry.domain == ""]
        proto.functions.append(helper.make_function("own", "Twice", ["x"], ["y"], body, standard))
        proto.opset_import.append(helper.make_opsetid("own", 1))
        proto.graph.node.append(
            helper.make_node("Twice", ["inner"], ["last_hidden_state"], domain="own")
        )

    bundle = export(change(copy("bert"), wrap), tmp_path / "b", normalize=False)
    assert_close(encode(bundle.path), EXPECTED["bert"])
    assert not onnx.load(bundle.model).functions


@pytest.mark.parametrize("kind", ["wide", "deep", "circle"])
def test_functions_that_never_end_are_refused_before_they_are_put_in_line(
    tmp_path, copy, kind: str
) -> None:
    folder = copy("bert")
    graph = find_graph(folder)
    assert graph is not None
    proto = onnx.load(graph)
    proto.opset_import.append(helper.make_opsetid("bomb", 1))
    opsets = [*proto.opset_import]

    def function(name: str, calls: list[str]) -> onnx.FunctionProto:
        nodes, before = [], "x"
        for i, call in enumerate(calls):
            domain = "bomb" if call.startswith("f") else ""
            nodes.append(helper.make_node(call, [before], [f"y{i}"], domain=domain))
            before = f"y{i}"
        return helper.make_function("bomb", name, ["x"], [before], nodes, opsets)

    if kind == "wide":  # 10 ** 30 nodes
        made = [function(f"f{i}", [f"f{i + 1}"] * 10) for i in range(30)]
        made.append(function("f30", ["Identity"]))
    elif kind == "deep":
        made = [function(f"f{i}", [f"f{i + 1}"]) for i in range(5000)]
        made.append(function("f5000", ["Identity"]))
    else:
        made = [function("f0", ["f1"]), function("f1", ["f0"])]
    proto.functions.extend(made)
    first = proto.graph.output[0].name
    proto.graph.node.append(helper.make_node("f0", [first], ["bombed"], domain="bomb"))
    onnx.save(proto, graph)
    words = {"wide": "expand to more than", "deep": "deep", "circle": "calls itself"}[kind]
    with pytest.raises(ExportError, match=words):
        export(folder, tmp_path / "b", calibration=())


@pytest.mark.parametrize("operator", ["DynamicQuantizeLinear", "MatMulInteger"])
def test_a_quantized_graph_is_called_quantized(tmp_path, copy, operator: str) -> None:
    folder = copy("bert")
    graph = find_graph(folder)
    assert graph is not None
    proto = onnx.load(graph)
    if operator == "MatMulInteger":
        one = numpy_helper.from_array(np.ones((2, 2), np.int8), "one_of_int8")
        proto.graph.initializer.append(one)
        node = helper.make_node(operator, ["one_of_int8", "one_of_int8"], ["q"])
    else:
        one = numpy_helper.from_array(np.ones(2, np.float32), "one_of_float")
        proto.graph.initializer.append(one)
        node = helper.make_node(operator, ["one_of_float"], ["q", "scale", "zero"])
    proto.graph.node.insert(0, node)
    onnx.save(proto, graph)
    with pytest.raises(ExportError, match=f"is quantized .*{operator}"):
        export(folder, tmp_path / "b", calibration=())


@pytest.mark.parametrize(("form", "before"), [("bert", 0), ("roberta", 2)])
def test_positions_bound_the_length(tmp_path, copy, form, before) -> None:
    """RoBERTa counts them from behind its padding token's id."""
    folder = copy(form)
    config = json.loads((folder / "config.json").read_text())
    edit_json(folder / "tokenizer_config.json", model_max_length=10**30)
    assert before == (config["pad_token_id"] + 1 if form == "roberta" else 0)
    bundle = export(folder, tmp_path / "b", calibration=())
    assert bundle.manifest.max_length == config["max_position_embeddings"] - before


def test_standard_operators_may_name_their_domain(tmp_path, copy) -> None:
    def spelled(proto: onnx.ModelProto) -> None:
        for entry in (*proto.opset_import, *proto.graph.node):
            entry.domain = "ai.onnx"

    bundle = export(change(copy("bert"), spelled), tmp_path / "b", normalize=False)
    assert_close(encode(bundle.path), EXPECTED["bert"])


@pytest.mark.exports
def test_one_file_of_several_may_be_named(tmp_path, copy) -> None:
    folder = copy("hub")
    whole = encode(export(folder, tmp_path / "a").path)
    shutil.move(folder / "onnx/model.onnx", folder / "onnx/model_other.onnx")
    with pytest.raises(ExportError, match="no weights"):
        export(folder, tmp_path / "b")
    named = export(folder / "onnx/model_other.onnx", tmp_path / "b")
    np.testing.assert_array_equal(encode(named.path), whole)


@pytest.mark.exports
def test_torchs_weights_come_first(tmp_path, checkpoint) -> None:
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "both"))
    shutil.copy(OPTIMUM / "bert/model.onnx", folder / "model.onnx")
    assert export(folder, tmp_path / "b").manifest.dim == 48
    # A graph is used before a pickle that is not allowed.
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    shutil.copy(OPTIMUM / "bert/config.json", folder / "config.json")
    shutil.copy(OPTIMUM / "bert/tokenizer.json", folder / "tokenizer.json")
    assert export(folder, tmp_path / "c").manifest.dim == 32


MODES = ("mean", "cls", "max", "mean_sqrt_len", "weighted_mean", "last_token")


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_every_pooling_in_every_opset(tmp_path, copy, opset) -> None:
    """Against NumPy's definitions, in the parity gate; with one graph for all of them."""

    def older(proto: onnx.ModelProto) -> onnx.ModelProto:
        # LayerNormalization is of opset 17; a graph of one table of words has none.
        table = numpy_helper.from_array(
            np.random.default_rng(0).normal(size=(102, 32)).astype(np.float32), "table"
        )
        axes = ["batch", "sequence"]
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, axes)
            for name in ("input_ids", "attention_mask")
        ]
        out = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*axes, 32])
        node = helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])
        graph = helper.make_graph([node], "words", inputs, [out], [table])
        imports = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)

    folder = change(copy("bert"), older)
    bundle = export(folder, tmp_path / "b", pooling="+".join(MODES), normalize=False)
    assert bundle.manifest.opset == opset
    assert bundle.manifest.dim == 32 * len(MODES)


def test_a_pooling_that_is_wrong_is_seen(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Surgeon.pool
    monkeypatch.setattr(Surgeon, "pool", lambda s, mode, tokens: pool(s, "max", tokens))
    with pytest.raises(ExportError, match="source's own graph"):
        export(OPTIMUM / "bert", tmp_path / "b")


@pytest.mark.exports
def test_a_graph_of_another_opset_is_brought_to_that_of_a_transform(tmp_path, copy) -> None:
    folder = change(copy("bert"), lambda proto: version_converter.convert_version(proto, 21))
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(7, 32)).astype(np.float32)
    import torch

    dense = Dense(torch.from_numpy(weight), None, "tanh")
    for name, source in (("older", OPTIMUM / "bert"), ("newer", folder)):
        bundle = export(source, tmp_path / name, transform=dense, normalize=False)
        expected = np.tanh(EXPECTED["bert"] @ weight.T)
        assert bundle.manifest.transform == ("dense(32->7, tanh)",)
        assert_close(encode(bundle.path), expected)


def test_float16_weights_are_those_of_the_graph(tmp_path) -> None:
    half = export(OPTIMUM / "bert", tmp_path / "half", weights="float16", normalize=False)
    assert half.manifest.weights == "float16"
    assert half.manifest.parity["min_cosine_to_float32_weights"] >= 0.999
    cosines = Parity.of(encode(half.path), EXPECTED["bert"])
    assert cosines.min_cosine >= 0.999
    stored = {init.data_type for init in onnx.load(half.model).graph.initializer}
    assert TensorProto.FLOAT16 in stored
    with pytest.raises(ExportError, match=r"float16 .*from a checkpoint"):
        export(OPTIMUM / "bert", tmp_path / "gpu", variants=["float16"])
    assert not (tmp_path / "gpu").exists()


@pytest.mark.exports
@pytest.mark.parity
def test_a_transform_fitted_on_a_graph_belongs_to_it(tmp_path) -> None:
    texts = make_texts(1200)
    for form in ("bert", "sentence"):
        fitted = fit("whitening", OPTIMUM / form, texts)
        save_transform(fitted.transform, fitted.recipe, tmp_path / f"{form}.safetensors")
        bundle = export(OPTIMUM / form, tmp_path / form, transform=tmp_path / f"{form}.safetensors")
        assert bundle.manifest.transform[0].startswith("whitening")
    with pytest.raises(ExportError, match="other weights"):
        export(OPTIMUM / "roberta", tmp_path / "other", transform=tmp_path / "bert.safetensors")


def test_a_flow_is_attached_whole(tmp_path) -> None:
    import torch

    torch.manual_seed(0)
    flow = Flow(32, FlowShape(levels=2, depth=2, width=8))
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    bundle = export(OPTIMUM / "bert", tmp_path / "b", transform=flow.eval(), normalize=False)
    with torch.no_grad():
        expected = flow(torch.from_numpy(EXPECTED["bert"])).numpy()
    assert_close(encode(bundle.path), expected)


def test_prompts_can_be_given_for_graphs_without_prompts(tmp_path) -> None:
    bundle = export(
        OPTIMUM / "bert", tmp_path / "b", prompts={"query": "a man ", "passage": "the "},
        default_prompt_name="passage",
    )  # fmt: skip
    plain = encode(export(OPTIMUM / "bert", tmp_path / "plain").path, ["the cat", "a man cat"])
    assert np.abs(plain[0] - plain[1]).max() > 1e-2
    with Encoder.load(bundle.path, provider="cpu", compute="float32") as encoder:
        found = [encoder.encode("cat"), encoder.encode_query("cat"), encoder.encode_document("cat")]
    np.testing.assert_allclose(found, plain[[0, 1, 0]], atol=1e-5)


# --- without torch --------------------------------------------------------------------------------


def test_no_torch_is_needed(python, tmp_path) -> None:
    code = """
import sys
import importlib.util
hidden = ("torch", "transformers", "onnxscript")
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
    done = python(code, OPTIMUM / "bert", "-o", "b", "--pooling", "cls", "--weights", "float16")
    assert done.returncode == 0, done.stderr
    assert "differs from its source by at most" in done.stdout
    plain = Path(shutil.copytree(OPTIMUM / "bert", tmp_path / "plain"))
    (plain / "model.safetensors").touch()
    refused = python(code, plain, "-o", "c")
    assert refused.returncode == 2
    needed = "needs torch, transformers, onnxscript: python -m pip install"
    assert needed in refused.stderr
    for more in ([OPTIMUM / "hub"], [OPTIMUM / "bert", "--transform", "flow.safetensors"]):
        refused = python(code, *more, "-o", "c")
        assert (refused.returncode, len(refused.stderr.strip().splitlines()[-1:])) == (2, 1)
        assert needed in refused.stderr


# --- refusals -------------------------------------------------------------------------------------


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def rubbish(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"rubbish")


def contrib(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].domain = "com.microsoft"
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def fixed(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


def another_input(proto: onnx.ModelProto) -> None:
    proto.graph.input.append(
        helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["b", "s"])
    )


def no_mask(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        node.input[:] = ["input_ids" if n == "attention_mask" else n for n in node.input]
    kept = [value for value in proto.graph.input if value.name != "attention_mask"]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)


def contrib_within(proto: onnx.ModelProto) -> None:
    within = branch("last_hidden_state")
    within.node[0].domain = "com.microsoft"
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    proto.graph.node.append(
        helper.make_node("If", ["yes"], ["unused"], then_branch=within, else_branch=within)
    )
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def sparse(proto: onnx.ModelProto) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "sparse")
    places = numpy_helper.from_array(np.zeros(1, np.int64), "sparse_places")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4]))


def cut_on_the_left(folder: Path) -> None:
    edit_json(folder / "tokenizer_config.json", truncation_side="left")


def cut_on_the_left_by_itself(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["truncation"] = {
        "direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")


def no_vocabulary(folder: Path) -> None:
    edit_json(folder / "config.json", vocab_size=0)


def a_vocabulary_of_true(folder: Path) -> None:
    edit_json(folder / "config.json", vocab_size=True)


def fewer_than_no_layers(folder: Path) -> None:
    edit_json(folder / "config.json", num_hidden_layers=-5)


def logits(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(helper.make_node("Identity", ["last_hidden_state"], ["logits"]))
    proto.graph.output[0].name = "logits"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (no_tokenizer, r"tokenizer\.json is missing"),
        (no_config, r"config\.json is missing"),
        (rubbish, "cannot read .*model.onnx|no sound graph"),
        (contrib, "operators of com.microsoft"),
        (contrib_within, "operators of com.microsoft"),
        (sparse, "sparse weights"),
        (cut_on_the_left, "cuts long texts on the left"),
        (cut_on_the_left_by_itself, "cuts long texts on the left"),
        (no_vocabulary, "vocab_size 0; it must be at least 2"),
        (a_vocabulary_of_true, "vocab_size True, which is not a whole number"),
        (fewer_than_no_layers, "num_hidden_layers -5"),
        (fixed, "free axes"),
        (another_input, "needs the input position_ids"),
        (no_mask, "no input attention_mask"),
        (logits, "gives logits; it should give last_hidden_state"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_graph_that_cannot_be_followed_is_refused(tmp_path, copy, fault, message) -> None:
    folder = copy("bert")
    if "folder" in fault.__code__.co_varnames[:1]:
        fault(folder)
    else:
        change(folder, fault)
    with pytest.raises(ExportError, match=message):
        export(folder, tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("pooling", ["first_last_mean", "last2_mean", "pooler"])
def test_what_a_graph_does_not_give_is_refused(tmp_path, pooling) -> None:
    with pytest.raises(ExportError, match=r"last layer|no pooler_output"):
        export(OPTIMUM / "bert", tmp_path / "b", pooling=pooling)


def with_external_data(folder: Path, location: str) -> Path:
    proto = onnx.load(folder / "model.onnx")
    onnx.save(
        proto, folder / "model.onnx", save_as_external_data=True, location="weights.bin",
        size_threshold=0,
    )  # fmt: skip
    if location != "weights.bin":
        proto = onnx.load(folder / "model.onnx", load_external_data=False)
        for init in proto.graph.initializer:
            for entry in init.external_data:
                if entry.key == "location":
                    entry.value = location
        (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return folder


def test_weights_in_files_beside_the_graph_come_into_it(tmp_path, copy) -> None:
    folder = with_external_data(copy("bert"), "weights.bin")
    bundle = export(folder, tmp_path / "b", normalize=False)
    assert_close(encode(bundle.path), EXPECTED["bert"])
    assert not any(init.external_data for init in onnx.load(bundle.model).graph.initializer)
    (folder / "weights.bin").unlink()
    with pytest.raises(ExportError, match=r"weights\.bin is missing"):
        export(folder, tmp_path / "c")


@pytest.mark.parametrize("within", [False, True])
def test_all_that_is_read_counts(tmp_path, copy, within) -> None:
    """A tensor without a length takes the whole file, also one of a branch without nodes."""
    folder = with_external_data(copy("bert"), "weights.bin")
    proto = onnx.load(folder / "model.onnx", load_external_data=False)
    (tensor, *_) = (init for init in proto.graph.initializer if init.external_data)
    fields = [e for e in tensor.external_data if e.key == "location"]
    del tensor.external_data[:]
    tensor.external_data.extend(fields)
    if within:
        out = helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, None)
        alone = helper.make_graph([], "branch", [], [out], [tensor])
        proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
        proto.graph.node.append(
            helper.make_node("If", ["yes"], ["unused"], then_branch=alone, else_branch=alone)
        )
        proto.graph.initializer.remove(tensor)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    with (folder / "weights.bin").open("ab") as file:
        file.truncate(1 << 31)  # it takes no space
    with pytest.raises(ExportError, match="more weights than the 2 GiB"):
        export(folder, tmp_path / "b")


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "a/../../secret"])
def test_weights_elsewhere_are_refused(tmp_path, copy, location) -> None:
    (tmp_path / "secret").write_bytes(b"\0" * (1 << 20))
    with pytest.raises(ExportError, match="leads out of it"):
        export(with_external_data(copy("bert"), location), tmp_path / "b")


def test_links_that_lead_out_are_refused_and_others_followed(tmp_path, copy) -> None:
    folder = copy("bert")
    shutil.move(folder / "model.onnx", tmp_path / "model.onnx")
    (folder / "model.onnx").symlink_to(tmp_path / "model.onnx")
    with pytest.raises(ExportError, match="link that leads out"):
        export(folder, tmp_path / "b")
    (folder / "model.onnx").unlink()
    shutil.move(tmp_path / "model.onnx", folder / "real.onnx")
    (folder / "model.onnx").symlink_to("real.onnx")
    assert_close(encode(export(folder, tmp_path / "b", normalize=False).path), EXPECTED["bert"])


def test_a_downloads_links_into_its_blobs_are_followed(tmp_path, copy) -> None:
    folder = copy("bert")
    home = tmp_path / "models--somebody--model"
    snapshot = home / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (home / "blobs").mkdir()
    for number, file in enumerate(folder.iterdir()):
        shutil.move(file, home / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    bundle = export(snapshot, tmp_path / "b", normalize=False)
    assert_close(encode(bundle.path), EXPECTED["bert"])


@pytest.mark.process
@pytest.mark.parity
@pytest.mark.skipif(
    importlib.util.find_spec("optimum") is None, reason="needs optimum, which has its environment"
)
def test_real_optimum_still_writes_the_same(tmp_path) -> None:
    import subprocess
    import sys

    script = OPTIMUM.parent / "make_optimum.py"
    subprocess.run([sys.executable, script, tmp_path / "optimum"], check=True, timeout=900)
    fresh = dict(np.load(tmp_path / "optimum" / "expected.npz"))
    for form, expected in EXPECTED.items():
        np.testing.assert_allclose(fresh[form], expected, atol=1e-4)
        normalize = None if form in ("sentence", "hub") else False
        bundle = export(tmp_path / "optimum" / form, tmp_path / form, normalize=normalize)
        assert_close(encode(bundle.path), expected)
