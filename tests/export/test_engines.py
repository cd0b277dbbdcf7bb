"""Fitted transforms on engines that round: bfloat16 must not cost what a transform amplifies.

OpenVINO itself computes here, with the bfloat16 hint that flowvec gives its plugin: the plugin
offers a device on Intel processors only, OpenVINO runs on others too. The model is
the first layer of the backbone: trained, and anisotropic (a mean cosine of .6 and more).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flowvec import Bundle, Encoder
from flowvec.demo import load_passages
from flowvec.encoder.batching import pad, plan
from flowvec.engine.providers import OPENVINO, has_bfloat16
from flowvec.machine import cpu_features
from flowvec.texts.sentences import split_sentences
from flowvec_export import export
from flowvec_export.fitting.corpus import embed_raw
from flowvec_export.fitting.fit import FitSettings, fit, mean_cosine
from flowvec_export.fitting.flow import FlowTraining
from flowvec_export.transforms.file import save_transform
from tests.conftest import first_layers_of_backbone

SENTENCES = [s for passage in load_passages() for s in split_sentences(passage.text)]
# Halves of sentences as well, since a flow wants more than a thousand texts.
HALVES = [s[len(s) // 2 :] for s in SENTENCES] + [s[: len(s) // 2] for s in SENTENCES]
METHODS = ["none", "whitening", "soft-zca", "flow", "pca+flow"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return first_layers_of_backbone(tmp_path_factory.mktemp("backbone") / "checkpoint", 1)


@pytest.fixture(scope="module", params=METHODS)
def bundle(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, checkpoint: Path
) -> Bundle:
    folder, transform = tmp_path_factory.mktemp("fitted"), None
    if request.param != "none":
        settings = FitSettings(training=FlowTraining(epochs=4))
        texts = list(dict.fromkeys([*SENTENCES, *HALVES]))
        fitted = fit(request.param, checkpoint, texts, encoder_only=True, settings=settings)
        transform = folder / "fitted.safetensors"
        save_transform(fitted.transform, fitted.recipe, transform)
    return export(
        checkpoint, folder / "bundle", transform=transform, encoder_only=True, calibration=()
    )


def test_what_is_straightened_is_crooked(checkpoint: Path) -> None:
    raw = embed_raw(checkpoint, SENTENCES, encoder_only=True)
    assert mean_cosine(raw) >= 0.6


def test_the_cpu_provider_meets_parity_with_torch(bundle: Bundle) -> None:
    # `export` refuses anything else; the figures are in the manifest.
    assert bundle.manifest.parity["max_relative_error"] <= 1e-4
    assert bundle.manifest.parity["min_cosine"] >= 0.99999


def test_bfloat16_on_openvino_keeps_the_cosine(bundle: Bundle) -> None:
    openvino = pytest.importorskip("openvino", reason="needs openvino, which has no wheel here")
    core = openvino.Core()
    # OpenVINO names it even where ONEDNN_MAX_CPU_ISA takes it away.
    capable = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if not (capable and has_bfloat16(cpu_features())):
        pytest.skip("this processor has no bfloat16")
    with Encoder.load(bundle.path, provider="cpu") as encoder:
        exact = encoder.encode(SENTENCES)
        ids = encoder.tokenize(SENTENCES).ids
    compiled = core.compile_model(bundle.model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
    rounded = np.empty_like(exact)
    for batch in plan([len(row) for row in ids], 1024, 256):
        inputs = pad(ids, batch, bundle.manifest.pad_id)
        names = dict(zip(bundle.manifest.inputs, inputs, strict=True))
        rounded[list(batch.rows)] = compiled(names)[0][: len(batch.rows)]
    cosine = (exact * rounded).sum(1) / np.linalg.norm(rounded, axis=1)
    assert cosine.min() >= 0.999
    # The outliers among the reference texts stay within the limit, too.
    with Encoder.load(bundle.path, provider=OPENVINO, compute="bfloat16") as encoder:
        assert encoder.proof.proved
