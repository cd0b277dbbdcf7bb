"""Names of pooling modes, and of encoders with another position numbering."""

from __future__ import annotations

from flowvec.errors import ExportError

__all__ = ["OFFSET_POSITIONS", "POOLINGS", "parse_pooling"]

# These count positions from their padding token's id, so their tables have unused rows.
OFFSET_POSITIONS = (
    "roberta",
    "xlm-roberta",
    "camembert",
    "mpnet",
    "xlm-roberta-xl",
    "data2vec-text",
)


# `first_last_mean` is what BERT-flow's code calls "last2avg": the outputs of the first and the last
# transformer layer, hidden_states[1] and [-1]; hidden_states[0] would be the embedding output, and
# costs about four points of STS. `last2_mean` is [-2] and [-1].
POOLINGS = (
    "mean",
    "cls",
    "max",
    "mean_sqrt_len",
    "weighted_mean",
    "last_token",
    "pooler",
    "last2_mean",
    "first_last_mean",
)


def parse_pooling(name: str) -> tuple[str, ...]:
    """Split `cls+mean` into its modes, concatenated in that order.

    Raises:
        ExportError: a mode is unknown.
    """
    modes = tuple(name.split("+"))
    for mode in modes:
        if mode not in POOLINGS:
            raise ExportError(f"pooling {mode!r} is unknown; choose from {', '.join(POOLINGS)}")
    return modes
