"""Asks the Hugging Face hub which commit a name means. Files are downloaded by the exporter.

The hub's own client is imported only here, and only when the hub or the client's cache is asked.
It decides the address, the proxy, the cache and the token.
"""

from __future__ import annotations

import os
from pathlib import Path

from flowvec.bundle.names import HubName, is_commit
from flowvec.errors import BundleError, first_line
from flowvec.optional import require

__all__ = ["HubUnreachableError", "commit_in_client_cache", "commit_on_hub", "is_offline"]

# Seconds until the hub counts as unreachable.
_TIMEOUT = 10.0
# How the hub's client reads these variables.
_TRUE = ("1", "ON", "YES", "TRUE")
_SERVER_ERRORS, _TOO_MANY_REQUESTS, _TIMED_OUT = 500, 429, 408


class HubUnreachableError(Exception):
    """The hub does not answer; a bundle that is cached can be used instead."""


def is_offline() -> bool:
    """Whether the environment forbids requests to the hub (HF_HUB_OFFLINE)."""
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in _TRUE


def commit_on_hub(model: HubName) -> str:
    """The commit that a name and revision mean now: one request.

    Raises:
        BundleError: the hub has no such model or revision, or does not give access to it.
        HubUnreachableError: it cannot be reached, or is overloaded.
        MissingDependencyError: the hub's client is not installed.
    """
    require(f"asking the hub for {model}", "cpu,export", "huggingface_hub")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        commit = HfApi().model_info(model.name, revision=model.revision, timeout=_TIMEOUT).sha
    except GatedRepoError:
        raise BundleError(
            f"access to {model.name} must be granted on the hub: ask for it on the model's page, "
            "and log in with `hf auth login`"
        ) from None
    except RepositoryNotFoundError:
        raise BundleError(
            f"there is no bundle {str(model)!r}: it is neither a directory nor a model that ships "
            f"with flowvec, and the hub has no model {model.name}, or it is private (log in with "
            "`hf auth login`)"
        ) from None
    except RevisionNotFoundError:
        raise BundleError(
            f"{model.name} has no revision {model.revision or 'main'!r} on the hub"
        ) from None
    except HfHubHTTPError as error:
        status = 0 if error.response is None else error.response.status_code
        if status >= _SERVER_ERRORS or status in (_TOO_MANY_REQUESTS, _TIMED_OUT):
            raise HubUnreachableError(f"the hub answers {status}") from None
        raise BundleError(f"the hub refuses {model}: {first_line(error)}") from None
    except Exception as error:  # the client's connection errors have changed with its versions
        raise HubUnreachableError(first_line(error)) from None
    if not isinstance(commit, str) or not is_commit(commit):
        raise BundleError(f"the hub names no commit of {model}, but {commit!r}")
    return commit


def commit_in_client_cache(model: HubName) -> str | None:
    """The commit of a revision that the hub's client has downloaded, without a request.

    Returns:
        None if there is none, or the client is not installed.
    """
    try:
        from huggingface_hub import constants
    except ImportError:
        return None
    # The layout that the client documents: models--ORGANIZATION--NAME/refs/REVISION.
    repository = "--".join(("models", *model.name.split("/")))
    folder = Path(constants.HF_HUB_CACHE) / repository
    ref = folder / "refs" / (model.revision or "main")
    try:
        commit = model.commit or ref.read_text(encoding="utf-8").strip()
        return commit if is_commit(commit) and (folder / "snapshots" / commit).is_dir() else None
    except (OSError, UnicodeDecodeError):
        return None
