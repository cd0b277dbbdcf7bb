"""The comparison with torch that every export passes before anything is written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowvec.errors import ExportError
from flowvec_export import export
from flowvec_export.assembly.parity import Parity
from flowvec_export.layers.backbone import Backbone
from tests.export.conftest import POSITIONS


def test_an_export_that_misses_parity_leaves_nothing_behind(
    checkpoint, tmp_path, traced_as
) -> None:
    def slightly_wrong(backbone: Backbone) -> Backbone:
        with torch.no_grad():
            backbone.layers[0].up.bias[0] += 0.05
        return backbone

    traced_as(slightly_wrong)
    with pytest.raises(ExportError, match="what torch does"):
        export(checkpoint("bert"), tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exports(but=1)
@pytest.mark.parametrize("fault", ["padding", "position", "batch"])
def test_the_gate_sees_faults_of_long_padded_and_batched_texts(
    checkpoint, tmp_path, traced_as, fault
) -> None:
    class Faulty(torch.nn.Module):
        def __init__(self, backbone) -> None:
            super().__init__()
            self.backbone = backbone

        def forward(self, input_ids, attention_mask):
            if fault == "padding":
                attention_mask = torch.ones_like(attention_mask)
            states = self.backbone(input_ids, attention_mask)
            if fault == "position":
                late = (torch.arange(input_ids.shape[1]) >= POSITIONS - 2).to(torch.float32)
                states[-1] = states[-1] + late[None, :, None]
            elif fault == "batch":
                states[-1] = states[-1] + 0.1 * states[-1].mean(0, keepdim=True)
            return states

    traced_as(Faulty)
    with pytest.raises(ExportError, match="what torch does"):
        export(checkpoint("bert"), tmp_path / "b", normalize=False)


def test_only_zeros_agree_with_a_reference_of_zeros() -> None:
    zero, one, nan = (np.full((1, 3), value, np.float32) for value in (0, 1, np.nan))
    same = Parity.of(np.concatenate([zero, one]), np.concatenate([zero, one]))
    assert (same.max_relative_error, same.min_cosine) == (0, pytest.approx(1))
    for ours in (one, nan):
        with pytest.raises(ExportError, match="differs"):
            Parity.of(ours, zero).require("differs")
    with np.errstate(invalid="ignore"), pytest.raises(ExportError, match="differs"):
        Parity.of(zero, one).require("differs")
