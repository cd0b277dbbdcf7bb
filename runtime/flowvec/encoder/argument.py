"""Checks that an argument is an Encoder."""

from __future__ import annotations

from flowvec.encoder.encoder import Encoder
from flowvec.errors import InputTypeError

__all__ = ["check_encoder", "check_encoder_or_none"]


def check_encoder(encoder: object) -> None:
    """Check that an argument is an Encoder.

    Raises:
        InputTypeError: it is not.
    """
    if not isinstance(encoder, Encoder):
        raise InputTypeError(
            f"encoder must be an Encoder, as Encoder.load returns, not {type(encoder).__name__}"
        )


def check_encoder_or_none(encoder: object) -> None:
    """Check that an argument is an Encoder or None.

    Raises:
        InputTypeError: it is neither.
    """
    if encoder is not None:
        check_encoder(encoder)
