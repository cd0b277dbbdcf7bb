"""Measures what proof at load costs: loads without it, with it, and from the cache.

    python bench/proof_cost.py mini PATH ... [--rounds 7]

For each bundle and engine the median milliseconds of `Encoder.load` with proof="never" (loading
alone), "always" (a first load on a machine) and "cached" (every later load), in interleaved rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from typing import Any

from flowvec import Encoder
from flowvec.engine.providers import TENSORRT, computes_of
from flowvec.engine.selection import available_providers
from flowvec.errors import ProviderUnavailableError

MODES = ("never", "always", "cached")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", nargs="+")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FLOWVEC_CACHE"] = cache
        print("| bundle | engine | load alone, ms | first load | proof | later loads | figure |")
        print("|---|---|---:|---:|---:|---:|---|")
        for bundle in arguments.bundles:
            for provider in available_providers():
                for compute in computes_of(provider):
                    if provider != TENSORRT:
                        _print(bundle, provider, compute, arguments.rounds)


def _print(bundle: str, provider: str, compute: Any, rounds: int) -> None:
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    try:
        Encoder.load(
            bundle, provider=provider, compute=compute
        ).close()  # reads the files into the system's cache
        for _ in range(rounds):
            for mode in MODES:
                started = time.perf_counter()
                encoder = Encoder.load(bundle, provider=provider, compute=compute, proof=mode)  # type: ignore[arg-type]
                seconds[mode].append(time.perf_counter() - started)
                encoder.close()
    except ProviderUnavailableError as error:
        print(f"| {bundle} | {provider}, {compute} | {error} |")
        return
    never, always, cached = (1000 * statistics.median(seconds[mode]) for mode in MODES)
    cost = 1000 * statistics.median(
        a - n for a, n in zip(seconds["always"], seconds["never"], strict=True)
    )
    info = encoder.info()
    print(
        f"| {info.name} | {provider}, {compute} | {never:.0f} | {always:.0f} | {cost:.0f} | "
        f"{cached:.0f} | {info.proof} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
