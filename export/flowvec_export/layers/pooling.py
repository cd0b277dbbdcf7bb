"""Pools the token vectors of the encoder's layers into one vector per text."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flowvec.errors import ExportError

__all__ = ["Pooling"]

_LAYERS = {"first_last_mean": (1, -1), "last2_mean": (-2, -1)}


class Pooling(nn.Module):
    """One or several pooling modes, concatenated.

    Args:
        modes: from `names.POOLINGS`.
        pooler: the checkpoint's dense layer over the first token, for the mode `pooler`.
        word_weights: weight of each token id in the mean, float32 (vocabulary,); None weighs all
            equally.

    Raises:
        ExportError: a pooler is missing, or word weights are given with another mode than `mean`.
    """

    def __init__(
        self,
        modes: tuple[str, ...],
        pooler: nn.Linear | None = None,
        word_weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.modes = modes
        if word_weights is not None and modes != ("mean",):
            raise ExportError(f"word weights need mean pooling, not {'+'.join(modes)}")
        self.word_weights: Tensor | None
        self.register_buffer("word_weights", word_weights)
        if "pooler" in modes and pooler is None:
            raise ExportError("this checkpoint has no pooler; choose another pooling")
        self.pooler = pooler if "pooler" in modes else None

    def out_dim(self, width: int) -> int:
        """Length of the pooled vector for an encoder of this width."""
        return width * len(self.modes)

    def forward(
        self,
        hidden_states: list[Tensor],
        attention_mask: Tensor,
        input_ids: Tensor | None = None,
    ) -> Tensor:
        """Pool.

        Args:
            hidden_states: the embedding output and each layer's, (batch, sequence, width) each.
            attention_mask: int64 (batch, sequence), 1 for tokens.
            input_ids: int64 (batch, sequence), needed with word weights.

        Returns:
            (batch, width * modes).
        """
        mask = attention_mask.to(hidden_states[-1].dtype).unsqueeze(-1)
        if self.word_weights is not None:
            assert input_ids is not None
            mask = mask * self.word_weights[input_ids].unsqueeze(-1)
        parts = [self._pool(mode, hidden_states, mask) for mode in self.modes]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _pool(self, mode: str, hidden_states: list[Tensor], mask: Tensor) -> Tensor:
        last = hidden_states[-1]
        if mode in _LAYERS:
            first, second = (hidden_states[i] for i in _LAYERS[mode])
            return masked_mean((first + second) * 0.5, mask)
        if mode == "mean":
            return masked_mean(last, mask)
        if mode == "mean_sqrt_len":
            return (last * mask).sum(1) / mask.sum(1).clamp(min=1e-9).sqrt()
        if mode == "weighted_mean":
            return masked_mean(last, mask * mask.cumsum(1))
        if mode == "max":
            # Not the lowest float32, which is infinity in float16.
            return torch.where(mask > 0, last, torch.full_like(last, -1e4)).amax(1)
        if mode == "last_token":
            # The product with a one-hot row instead of a gather: one small operator.
            positions = mask.cumsum(1) * mask
            is_last = (positions == mask.sum(1, keepdim=True)).to(last.dtype)
            return (last * is_last).sum(1)
        first_token = last[:, 0]
        if mode == "cls":
            return first_token
        assert self.pooler is not None
        return torch.tanh(self.pooler(first_token))


def masked_mean(hidden: Tensor, weights: Tensor) -> Tensor:
    """Mean over the sequence of (batch, sequence, width), weighted by (batch, sequence, 1)."""
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
