"""flowvec's benchmarks: measured on real text, with seed, machine and versions in every result."""

from __future__ import annotations

from flowvec_bench.speed.throughput import Throughput, measure_throughput

__all__ = ["Throughput", "measure_throughput"]
