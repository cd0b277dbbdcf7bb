"""flowvec's benchmarks, on real text; every result records seed, machine and versions."""

from __future__ import annotations

from flowvec_bench.speed.throughput import Throughput, measure_throughput

__all__ = ["Throughput", "measure_throughput"]
