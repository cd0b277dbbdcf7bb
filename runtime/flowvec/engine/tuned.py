"""Settings that `flowvec tune` found, kept in the user's cache by machine and bundle."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from flowvec.machine import available_cores, cpu_features, cpu_name, gpu_names
from flowvec.user_cache import cache_folder, installed_versions, write_cached

__all__ = [
    "Tuned",
    "cache_file",
    "forget",
    "load_tuned",
    "machine_key",
    "save_tuned",
    "why_not_kept",
]

logger = logging.getLogger(__name__)

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Tuned:
    """The winner of one tuning.

    Attributes:
        provider: full name.
        compute: type of the matrix products.
        streams: batches at the same time.
        threads: cores for one batch.
        max_batch_tokens: most padded tokens in a batch.
        fused_attention: whether OpenVINO computes attention in one fused kernel.
        texts_per_second: by kind of text (`short`, `natural`, `long`), as measured; of a reranker,
            pairs per second.
        measured: when, ISO 8601, UTC.
    """

    provider: str
    compute: str
    streams: int
    threads: int
    max_batch_tokens: int
    fused_attention: bool
    texts_per_second: dict[str, float]
    measured: str


def machine_key() -> str:
    """What settings are valid for: processor, available cores, GPUs, versions of the engines."""
    material = [cpu_name(), cpu_features(), available_cores(), gpu_names(), installed_versions()]
    return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()[:16]


def cache_file(fingerprint: str) -> Path:
    """The cache file of a bundle's settings on this machine.

    It is in the folder of the environment variable FLOWVEC_CACHE, else in the user's cache.
    """
    return cache_folder() / "tuned" / f"{fingerprint[:16]}-{machine_key()}.json"


def load_tuned(fingerprint: str) -> Tuned | None:
    """The settings of a bundle on this machine, or None. Content of the cache never makes it
    raise."""
    try:
        raw = json.loads(cache_file(fingerprint).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, RuntimeError) as error:
        logger.warning("tuned settings are ignored: %s", error)
        return None
    if not isinstance(raw, Mapping) or raw.get("format") != _FORMAT or not _is_tuned(raw):
        logger.warning(
            "tuned settings are ignored: the file is of another version; run `flowvec tune` again"
        )
        return None
    return Tuned(**{field.name: raw[field.name] for field in fields(Tuned)})


def _is_tuned(raw: Mapping[str, object]) -> bool:
    counts = [raw.get(name) for name in ("streams", "threads", "max_batch_tokens")]
    rates = raw.get("texts_per_second")
    return (
        all(isinstance(raw.get(name), str) for name in ("provider", "compute", "measured"))
        and isinstance(raw.get("fused_attention"), bool)
        and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in counts)
        and isinstance(rates, dict)
        and all(isinstance(rate, int | float) for rate in rates.values())
    )


def why_not_kept(fingerprint: str) -> str | None:
    """Why settings cannot be cached here, or None."""
    try:
        path = cache_file(fingerprint)
        probe = path.with_name(f"{path.name}.probe")
        write_cached(probe, b"\n")
        probe.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        return str(error)
    return None


def save_tuned(fingerprint: str, tuned: Tuned) -> Path:
    """Cache settings, atomically. Returns the file."""
    path = cache_file(fingerprint)
    text = json.dumps({"format": _FORMAT, **asdict(tuned)}, indent=2)
    write_cached(path, (text + "\n").encode())
    return path


def forget(fingerprint: str) -> bool:
    """Delete settings; returns whether there were any."""
    path = cache_file(fingerprint)
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed
