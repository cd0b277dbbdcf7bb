"""Encoders beyond BERT's family, through transformers' own module; and SimCSE's checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from flowvec import Encoder
from flowvec.errors import ExportError
from flowvec_export import export
from flowvec_export.assembly.parity import Parity
from tests.export.conftest import POSITIONS, TEXTS, WIDTH, mean_in_torch

# Tiny random configurations, each with what distinguishes its architecture from BERT.
ENCODERS: dict[str, dict[str, Any]] = {
    "camembert": {},
    "albert": {"embedding_size": 16},
    "electra": {"embedding_size": 16},
    "deberta-v2": {
        "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8,
        "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "modernbert": {
        "num_hidden_layers": 3, "global_attn_every_n_layers": 2, "local_attention": 8,
        "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3,
    },
    "nomic_bert": {},
    "t5": {"d_model": WIDTH, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4},
}  # fmt: skip


def made(checkpoint: Any, architecture: str) -> Path:
    if architecture not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {architecture}")
    folder: Path = checkpoint(architecture, **ENCODERS[architecture])
    return folder


@pytest.mark.exports
@pytest.mark.parity
@pytest.mark.parametrize("architecture", ENCODERS)
def test_a_bundle_gives_transformers_vectors(checkpoint, tmp_path, architecture) -> None:
    folder = made(checkpoint, architecture)
    bundle = export(folder, tmp_path / "b", calibration=())
    assert (bundle.manifest.dim, bundle.manifest.max_length) == (WIDTH, POSITIONS)
    kind = transformers.T5EncoderModel if architecture == "t5" else transformers.AutoModel
    expected = mean_in_torch(folder, TEXTS, kind)
    with Encoder.load(bundle.path, provider="cpu") as encoder:
        parity = Parity.of(encoder.encode(TEXTS), expected)
        assert parity.max_relative_error <= 1e-4
        assert parity.min_cosine >= 0.99999
        # A text has the same vector alone and in a batch.
        alone = np.stack([encoder.encode(text) for text in TEXTS])
        assert Parity.of(alone, expected).max_relative_error <= 1e-4


@pytest.mark.exports
@pytest.mark.parity
def test_alberts_pooler_and_layers_are_its_own(checkpoint, tmp_path) -> None:
    folder = made(checkpoint, "albert")
    bundle = export(
        folder, tmp_path / "b", pooling="pooler+last2_mean", normalize=False, calibration=()
    )
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        output = model(**tokenizer("the cat", return_tensors="pt"), output_hidden_states=True)
    states = output.hidden_states
    last2 = ((states[-2] + states[-1]) / 2)[0].mean(0)
    expected = torch.cat([output.pooler_output[0], last2]).numpy()
    with Encoder.load(bundle.path, provider="cpu") as encoder:
        np.testing.assert_allclose(encoder.encode("the cat"), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.exports
def test_a_decoder_passes_by_its_last_token(checkpoint, tmp_path) -> None:
    """Anything that AutoModel loads is tried: Qwen's decoders are embedding models, too."""
    folder = checkpoint("qwen3", num_key_value_heads=2, head_dim=12)
    bundle = export(folder, tmp_path / "b", pooling="last_token", calibration=())
    assert bundle.manifest.parity["max_relative_error"] <= 1e-4


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("bart", {"d_model": WIDTH, "encoder_layers": 1, "decoder_layers": 1,
                  "encoder_attention_heads": 4, "decoder_attention_heads": 4},
         "not an encoder that goes from token ids and a mask to one vector per token"),
        ("vit", {}, "is not an encoder"),
    ],
)  # fmt: skip
def test_a_model_that_is_not_a_text_encoder_is_refused(
    checkpoint, tmp_path, architecture, changes, message
) -> None:
    with pytest.raises(ExportError, match=message) as failure:
        export(checkpoint(architecture, **changes), tmp_path / "b")
    assert "\n" not in str(failure.value)
    assert not (tmp_path / "b").exists()


@pytest.mark.exports
def test_a_model_whose_padding_leaks_is_refused(
    checkpoint, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source itself mixes texts of a batch, so that parity with it would hold."""
    from flowvec_export.assembly import from_torch

    class Leaking(from_torch.TransformersBackbone):
        def forward(self, input_ids, attention_mask):
            states = super().forward(input_ids, attention_mask)
            return [*states[:-1], states[-1] + states[-1].mean(1, keepdim=True)]

    monkeypatch.setattr(from_torch, "TransformersBackbone", Leaking)
    monkeypatch.setattr(from_torch, "from_transformers", lambda model, **_: Leaking(model))
    with pytest.raises(ExportError, match="batched with"):
        export(checkpoint("bert"), tmp_path / "b")


# --- SimCSE ---------------------------------------------------------------------------------------


def simcse(checkpoint: Any, tmp_path: Path) -> tuple[Path, torch.nn.Linear]:
    """What SimCSE's own training saves: BERT under `bert.`, and its head as `mlp.dense`."""
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "simcse"))
    weights = load_file(folder / "model.safetensors")
    kept = {f"bert.{n}": w for n, w in weights.items() if not n.startswith("pooler.")}
    torch.manual_seed(3)
    head = torch.nn.Linear(WIDTH, WIDTH)
    kept |= {"mlp.dense.weight": head.weight.data, "mlp.dense.bias": head.bias.data}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertForCL"]}))
    return folder, head


@pytest.mark.exports
@pytest.mark.parity
def test_simcse_before_and_after_its_head(checkpoint, tmp_path) -> None:
    folder, head = simcse(checkpoint, tmp_path)
    model = transformers.BertModel.from_pretrained(checkpoint("bert")).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint("bert"))
    with torch.no_grad():
        cls = model(**tokenizer("the cat", return_tensors="pt")).last_hidden_state[:, 0]
        expected = {"cls": cls[0].numpy(), "pooler": torch.tanh(head(cls))[0].numpy()}
    for pooling, vector in expected.items():
        bundle = export(
            folder, tmp_path / pooling, pooling=pooling, normalize=False, calibration=()
        )
        with Encoder.load(bundle.path, provider="cpu") as encoder:
            np.testing.assert_allclose(encoder.encode("the cat"), vector, rtol=1e-4, atol=1e-4)


def test_simcse_needs_a_pooling_from_its_user(checkpoint, tmp_path) -> None:
    folder, _ = simcse(checkpoint, tmp_path)
    with pytest.raises(ExportError, match=r"cls .*, or pooler"):
        export(folder, tmp_path / "b")
