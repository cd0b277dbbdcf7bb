"""Races flowvec against other libraries: same weights and texts, each in its own environment."""

from flowvec_bench.peers.registry import FLOWVEC, PEERS, STATIC, Forms, Peer

__all__ = ["FLOWVEC", "PEERS", "STATIC", "Forms", "Peer"]
