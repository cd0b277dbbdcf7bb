"""flowvec's benchmarks, on real text; every result records seed, machine and versions.

The races against other libraries (`peers`) ship in the same wheel and need the extra `[bench]`. The
runtime imports nothing from this package.
"""

from __future__ import annotations

from flowvec_bench.speed import Throughput, measure_throughput

__all__ = ["Throughput", "measure_throughput"]
