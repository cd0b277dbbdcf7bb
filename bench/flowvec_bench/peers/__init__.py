"""Races flowvec against other libraries: same weights and texts, each in its own environment."""

from flowvec_bench.peers.registry import FLOWVEC, PEERS, Forms, Peer

__all__ = ["FLOWVEC", "PEERS", "Forms", "Peer"]
