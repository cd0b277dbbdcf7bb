"""Tuning: which provider, streams and token budget are fastest for a bundle on this machine."""

from flowvec.tuning.measuring import Candidate, Measured, winner
from flowvec.tuning.search import tune
from flowvec.tuning.workloads import KINDS, kinds_of_pairs, kinds_of_texts, workload_of

__all__ = [
    "KINDS",
    "Candidate",
    "Measured",
    "kinds_of_pairs",
    "kinds_of_texts",
    "tune",
    "winner",
    "workload_of",
]
