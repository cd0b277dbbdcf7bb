"""Texts to vectors: tokens, batches, streams, and queues that many callers share."""

from flowvec.encoder.encoder import Encoder, EncoderInfo

__all__ = ["Encoder", "EncoderInfo"]
