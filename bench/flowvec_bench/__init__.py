"""flowvec's benchmarks, on real text; every result records seed, machine and versions.

The races against other libraries (`peers`) ship in the same wheel and need the extra `[bench]`. The
runtime imports nothing from this package.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# As `flowvec.engine.telemetry` does, which is imported later here: before any module imports
# onnxruntime, so that its telemetry is off.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from flowvec_bench.speed import Throughput, measure_throughput

__all__ = ["Throughput", "measure_throughput"]


def __getattr__(name: str) -> Any:
    # When they are asked for: `flowvec_bench.gpu` begins before numpy and others are installed.
    if name in __all__:
        from flowvec_bench import speed

        return getattr(speed, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
