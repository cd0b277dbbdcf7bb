"""The shipped model: the vectors that it gave when it was shipped; what its words share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flowvec import Encoder
from flowvec.engine.providers import CPU, CUDA, NATIVE, OPENVINO
from flowvec.engine.selection import available_providers

GOLDEN = json.loads(
    (Path(__file__).resolve().parents[2] / "data/golden/mini.json").read_text(encoding="utf-8")
)
PROVIDERS = (CPU, OPENVINO, NATIVE, CUDA)


@pytest.mark.parametrize("compute", ["float32", "auto"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_engine_gives_the_shipped_vectors(provider: str, compute) -> None:
    if provider not in available_providers():
        pytest.skip(f"{provider} cannot run on this machine")
    expected = np.array(GOLDEN["vectors"], dtype=np.float32)
    with Encoder.load("mini", provider=provider, compute=compute) as encoder:
        assert encoder.fingerprint == GOLDEN["fingerprint"]
        vectors = encoder.encode(GOLDEN["texts"])
    cosine = (vectors * expected).sum(1)
    if compute == "float32" and provider != CUDA:
        np.testing.assert_allclose(vectors, expected, atol=2e-6)
    assert cosine.min() >= 0.999


def test_mini_runs_as_a_model_without_layers() -> None:
    with Encoder.load("mini") as encoder:
        info = encoder.info()
        assert encoder.bundle.manifest.layers == 0
    able = available_providers()
    if info.tuned is None and CUDA not in able:
        best = NATIVE if NATIVE in able else CPU
        assert (info.provider, info.compute, info.max_batch_tokens) == (best, "float32", 2048)


@pytest.mark.process
def test_mini_needs_no_other_engine(tmp_path: Path) -> None:
    if NATIVE not in available_providers():
        pytest.skip("flowvec's own engine cannot run on this machine")
    code = """
import sys
sys.modules["onnxruntime"] = sys.modules["openvino"] = None
from flowvec import Collection, Encoder
from flowvec.cli.doctor import examine
with (
    Encoder.load("mini") as encoder,
    Collection.create(sys.argv[1], encoder=encoder) as collection,
):
    collection.add(["a", "b"], ["a cat", "stocks fell"])
    print(collection.search("an animal", k=1)[0].id, encoder.info().provider)
report = examine()
print(report.problems, [proof.proved for proof in report.proofs])
print(report.without_onnxruntime)
"""
    arguments = [sys.executable, "-c", code, str(tmp_path / "c")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("a FlowvecNative\n[] [True]\nflowvec needs ONNX"), done.stderr


@pytest.fixture(scope="module")
def words(mini: Encoder) -> dict[str, np.ndarray]:
    names = [
        "kitten", "kittens", "run", "running", "ran", "slice", "slicing", "important", "import",
        "evening", "even", "ground", "grind", "animal", "animation", "car", "automobile", "piano",
    ]  # fmt: skip
    return dict(zip(names, mini.encode(names), strict=True))


@pytest.mark.parametrize(
    ("form", "other"),
    [("kitten", "kittens"), ("run", "ran"), ("run", "running"), ("slice", "slicing")],
)
def test_forms_of_a_word_share_a_vector(words, form: str, other: str) -> None:
    assert words[form] @ words[other] >= 0.9999


@pytest.mark.parametrize(
    ("word", "other"),
    [("important", "import"), ("evening", "even"), ("ground", "grind"), ("animal", "animation")],
)
def test_words_that_only_look_alike_are_not_found(words, word: str, other: str) -> None:
    assert words[word] @ words[other] <= 0.8


def test_what_is_related_is_nearer_than_what_is_not(words) -> None:
    assert words["car"] @ words["automobile"] >= words["car"] @ words["piano"] + 0.3
