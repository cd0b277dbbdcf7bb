"""Measures speed and memory of flowvec on this machine."""

from flowvec_bench.speed.throughput import Throughput, measure_throughput

__all__ = ["Throughput", "measure_throughput"]
