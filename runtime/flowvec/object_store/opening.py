"""Opens the object store of a URL."""

from __future__ import annotations

import re
from typing import Any

from flowvec.errors import BulkError, InputValueError, MissingDependencyError, first_line
from flowvec.object_store.s3 import S3Store
from flowvec.object_store.store import ObjectStore
from flowvec.optional import imported_whole, require
from flowvec.texts.urls import name_of, public, without_secrets

__all__ = ["open_store"]

_S3 = ("s3", "s3a")
# Options of s3:// URLs, as those of inputs by URL.
_S3_OPTIONS = ("endpoint_override", "region", "scheme")
# Seconds until a connection, or an answer, is given up and tried again.
_CONNECT_SECONDS = 10
_READ_SECONDS = 60


def open_store(url: str) -> ObjectStore:
    """Open the objects below a URL; nothing is read yet.

    Args:
        url: `s3://bucket/prefix?region=eu-central-1`, or a URL of another fsspec scheme, whose
            options are given to its library.

    Raises:
        InputValueError: the URL has no bucket, an unknown option, or an unknown scheme.
        MissingDependencyError: the scheme's library is not installed.
        BulkError: the library cannot open it.
    """
    base = name_of(url)
    options = _options_of(url[len(base) + 1 :])
    scheme = base.partition("://")[0]
    is_s3 = scheme in _S3
    if is_s3 and public(base) != base:
        raise InputValueError(
            f"an {scheme}:// URL has no keys: they come from the environment, a profile or the "
            "machine's role"
        )
    base = public(base)
    if not base.partition("://")[2].strip("/"):
        raise InputValueError(f"{base} does not name a place, such as {scheme}://bucket/dir")
    if is_s3:
        require(f"{scheme}://", "s3", "fsspec", "s3fs")
    else:
        require(f"{scheme}://", "files", "fsspec")
    import fsspec

    if scheme not in fsspec.available_protocols():
        raise InputValueError(f"{base}: fsspec does not know {scheme}://")
    try:
        # Folders of a machine do not appear by themselves, as those of a bucket do.
        made = {"auto_mkdir": True} if scheme in ("file", "local") else {}
        system = _s3_system(options) if is_s3 else fsspec.filesystem(scheme, **made, **options)
        root = str(system._strip_protocol(base))
    except ImportError as error:
        reason = without_secrets(first_line(error), url)
        raise MissingDependencyError(f"cannot open {base}: {reason}") from None
    except InputValueError:
        raise
    except Exception as error:
        # Without the library's error, whose message can have the URL's secrets.
        raise BulkError(f"cannot open {base}: {without_secrets(first_line(error), url)}") from None
    return S3Store(base, system, root) if is_s3 else ObjectStore(base, system, root)


def _options_of(text: str) -> dict[str, str]:
    """Options such as `region=eu-central-1&scheme=http`, with escapes such as %2F decoded."""

    def decoded(value: str) -> str:
        return re.sub("%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), value)

    pairs = (one.partition("=") for one in text.split("&") if one)
    return {decoded(name): decoded(value) for name, _, value in pairs}


def _s3_system(options: dict[str, str]) -> Any:
    """s3fs, without its own retries and its cache of listings."""
    s3fs = imported_whole("s3fs")
    if unknown := sorted(options.keys() - set(_S3_OPTIONS)):
        raise InputValueError(
            f"an s3:// URL has the options {', '.join(_S3_OPTIONS)}, not {', '.join(unknown)}"
        )
    client: dict[str, str] = {}
    if "region" in options:
        client["region_name"] = options["region"]
    if endpoint := options.get("endpoint_override"):
        with_scheme = "://" in endpoint
        client["endpoint_url"] = (
            endpoint if with_scheme else f"{options.get('scheme', 'https')}://{endpoint}"
        )
    system = s3fs.S3FileSystem(
        client_kwargs=client,
        config_kwargs={
            "retries": {"total_max_attempts": 1},
            # S3Store sends digests of its own with what it writes; a CRC beside them costs time.
            "request_checksum_calculation": "when_required",
            "connect_timeout": _CONNECT_SECONDS,
            "read_timeout": _READ_SECONDS,
        },
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    system.retries = 1
    return system
