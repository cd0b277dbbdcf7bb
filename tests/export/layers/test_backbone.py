"""Our backbone against transformers' modules, and poolings against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from flowvec.errors import ExportError
from flowvec_export.assembly.parity import Parity
from flowvec_export.layers.backbone import Backbone, TransformersBackbone, from_transformers
from flowvec_export.layers.names import POOLINGS, parse_pooling
from flowvec_export.layers.pooling import Pooling
from tests.export.conftest import DEEP, POSITIONS, WIDTH

OURS = ["bert", "roberta", "xlm-roberta", "distilbert", "electra", "mpnet"]


@pytest.fixture
def checkpoint(checkpoint):
    return lambda architecture, **changes: checkpoint(
        architecture, **{"num_hidden_layers": DEEP} | changes
    )


# Without a projection of its embeddings.
CHANGES = {"electra": {"embedding_size": WIDTH}}


@pytest.fixture
def bert(checkpoint):
    return checkpoint("bert")


def load(folder):
    return transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()


def ragged(model, rows: int, longest: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    pad = model.config.pad_token_id
    ids = rng.integers(pad + 1, model.config.vocab_size, size=(rows, longest))
    lengths = rng.integers(2, longest, size=rows, endpoint=True)
    lengths[0] = longest
    mask = (np.arange(longest) < lengths[:, None]).astype(np.int64)
    return torch.from_numpy(np.where(mask, ids, pad)), torch.from_numpy(mask)


@pytest.mark.parametrize("fold_scale", [True, False])
@pytest.mark.parametrize("architecture", OURS)
@pytest.mark.parametrize(("rows", "longest"), [(1, 2), (1, POSITIONS), (7, 13), (64, 40)])
def test_hidden_states_are_transformers(checkpoint, architecture, rows, longest, fold_scale):
    model = load(checkpoint(architecture, **CHANGES.get(architecture, {})))
    ours = from_transformers(model, fold_scale)
    assert isinstance(ours, Backbone)
    assert ours.max_positions >= POSITIONS
    ids, mask = ragged(model, rows, longest, seed=rows)
    with torch.inference_mode():
        theirs = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        states = ours(ids, mask)
    assert len(states) == DEEP + 1
    keep = mask.bool()
    for a, b in zip(states, theirs.hidden_states, strict=True):
        parity = Parity.of(a[keep].numpy(), b[keep].numpy())
        assert parity.max_relative_error <= 1e-5
        assert parity.min_cosine >= 0.999999


@pytest.mark.parametrize("activation", ["relu", "gelu_new"])
def test_other_activations_and_epsilons_are_followed(checkpoint, activation) -> None:
    model = load(checkpoint("bert", hidden_act=activation, layer_norm_eps=1e-2))
    ids, mask = ragged(model, 5, 17, seed=0)
    with torch.inference_mode():
        theirs = model(input_ids=ids, attention_mask=mask).last_hidden_state
        ours = from_transformers(model)(ids, mask)[-1]
    np.testing.assert_allclose(ours[mask.bool()], theirs[mask.bool()], atol=2e-5)


def test_other_architectures_run_as_transformers_module(checkpoint) -> None:
    for other in ("modernbert", "electra"):  # one whose embeddings are projected
        assert isinstance(from_transformers(load(checkpoint(other))), TransformersBackbone)


def test_a_padded_row_is_the_row_alone(checkpoint) -> None:
    model = load(checkpoint("bert"))
    ours = from_transformers(model)
    ids, mask = ragged(model, 6, 20, seed=3)
    with torch.inference_mode():
        together = ours(ids, mask)[-1]
        for i in range(6):
            length = int(mask[i].sum())
            alone = ours(ids[i : i + 1, :length], mask[i : i + 1, :length])[-1]
            np.testing.assert_allclose(alone[0], together[i, :length], atol=1e-5)


# --- pooling --------------------------------------------------------------------------------------


def by_definition(mode: str, states: list[np.ndarray], length: int) -> np.ndarray:
    """A pooling of one text, as it is defined; hidden states are (sequence, width) a layer."""
    last = states[-1][:length]
    return {
        "mean": lambda: last.mean(0),
        "cls": lambda: last[0],
        "max": lambda: last.max(0),
        "mean_sqrt_len": lambda: last.sum(0) / np.sqrt(length),
        "weighted_mean": lambda: np.average(last, axis=0, weights=np.arange(1, length + 1)),
        "last_token": lambda: last[-1],
        "last2_mean": lambda: ((states[-2] + states[-1])[:length] / 2).mean(0),
        # BERT-flow's "last2avg": the first and the last LAYER, not the embedding output.
        "first_last_mean": lambda: ((states[1] + states[-1])[:length] / 2).mean(0),
    }[mode]()


@pytest.mark.parametrize("mode", [mode for mode in POOLINGS if mode != "pooler"])
def test_a_pooling_is_its_definition(mode: str) -> None:
    rng = np.random.default_rng(0)
    lengths = [1, 2, 5, 9]
    mask = torch.from_numpy((np.arange(9) < np.array(lengths)[:, None]).astype(np.int64))
    states = [rng.standard_normal((4, 9, 6)).astype(np.float32) * 3 for _ in range(4)]
    pooled = Pooling((mode,))([torch.from_numpy(state) for state in states], mask)
    for i, length in enumerate(lengths):
        expected = by_definition(mode, [state[i] for state in states], length)
        np.testing.assert_allclose(pooled[i], expected, atol=1e-5)


def test_max_pooling_takes_negative_tokens_not_padding() -> None:
    states = [torch.full((1, 3, 2), -5.0)]
    assert Pooling(("max",))(states, torch.tensor([[1, 0, 0]])).tolist() == [[-5.0, -5.0]]


def test_concatenated_poolings_come_in_their_order() -> None:
    states = [torch.randn(2, 4, 3) for _ in range(3)]
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    both = Pooling(("cls", "mean"))
    assert both.out_dim(3) == 6
    parts = [Pooling((mode,))(states, mask) for mode in ("cls", "mean")]
    torch.testing.assert_close(both(states, mask), torch.cat(parts, dim=1))


def test_the_pooler_is_transformers(checkpoint) -> None:
    model = load(checkpoint("bert"))
    ids, mask = ragged(model, 4, 11, seed=1)
    with torch.inference_mode():
        output = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        pooled = Pooling(("pooler",), model.pooler.dense)(list(output.hidden_states), mask)
    torch.testing.assert_close(pooled, output.pooler_output)


def test_unknown_and_impossible_poolings_are_refused() -> None:
    with pytest.raises(ExportError, match="'median' is unknown"):
        parse_pooling("mean+median")
    with pytest.raises(ExportError, match="no pooler"):
        Pooling(("pooler",))
    assert Pooling(("mean", "max")).out_dim(WIDTH) == 2 * WIDTH
