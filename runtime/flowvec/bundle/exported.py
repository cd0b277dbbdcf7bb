"""Opens a bundle by any name: a bundle itself, or a checkpoint that is exported at first use.

An export happens in a process of its own (`flowvec.bundle.child`), and its result is kept in the
user's cache (`flowvec.bundle.cached`). Later loads need neither torch nor the network.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flowvec.arguments import flag, text_or_none
from flowvec.bundle.bundle import Bundle, absolute_path, shipped_bundles
from flowvec.bundle.cached import (
    Entry,
    checkpoint_record,
    entry_of,
    exclusive,
    new_entry,
    recorded_commit,
    remember_commit,
)
from flowvec.bundle.checkpoint import digest_of, is_checkpoint, root_of_graph, signature_of
from flowvec.bundle.child import ExportRequest, export_in_child
from flowvec.bundle.hub import (
    HubUnreachableError,
    commit_in_client_cache,
    commit_on_hub,
    is_offline,
)
from flowvec.bundle.names import HubName, first_folder_exists, parse_hub_name
from flowvec.bundle.origin import Origin
from flowvec.errors import BundleError, ExportError, InputValueError, MissingDependencyError
from flowvec.progress import is_shown, say
from flowvec.version import __version__

__all__ = ["open_bundle"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Trust:
    """What the caller allows a checkpoint to do when it is exported."""

    remote_code: bool
    pickle: bool

    def origin(self, name: str, commit: str, *, is_hub: bool) -> Origin:
        """The origin of a bundle that is made under these conditions."""
        return Origin(
            kind="hub" if is_hub else "directory",
            name=name,
            commit=commit,
            trust_remote_code=self.remote_code,
            allow_pickle=self.pickle,
            made_by=__version__,
        )


def open_bundle(
    name_or_dir: str | Path,
    *,
    revision: str | None = None,
    local_files_only: bool = False,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> Bundle:
    """Open a shipped model, a bundle, a checkpoint or a model of the Hugging Face hub.

    A name is looked up in this order: a shipped model; a bundle's directory; a checkpoint's
    directory (or one of its .onnx files); a model on the hub. What begins with `.`, `/` or `~`, and
    what begins with a folder that exists, is never looked up on the hub, and neither is a `Path`.

        >>> open_bundle("mini").manifest.dim
        384

    Args:
        name_or_dir: the name or directory. `organization/name@revision` names a revision too.
        revision: branch, tag or commit of a model on the hub; None is its main branch.
        local_files_only: make no request to the hub. HF_HUB_OFFLINE does the same.
        trust_remote_code: let an export run Python files of the checkpoint, which can do anything.
        allow_pickle: let an export read weights that are stored as a pickle.

    Raises:
        BundleError: there is nothing of this name, it is damaged, or it is not on this machine and
            the hub cannot be reached.
        ExportError: the checkpoint cannot be exported, or needs something that is not allowed.
        MissingDependencyError: the export needs a package that is not installed.
        CacheError: the bundle cannot be kept.
        InputTypeError, InputValueError: an argument is not valid.
    """
    text_or_none("revision", revision)
    is_local = flag("local_files_only", local_files_only)
    trust = _Trust(flag("trust_remote_code", trust_remote_code), flag("allow_pickle", allow_pickle))
    if isinstance(name_or_dir, str):
        if not name_or_dir.strip():
            raise InputValueError(
                "name_or_dir is empty: give a shipped model's name, a directory or the name of a "
                "model on the Hugging Face hub"
            )
        if name_or_dir in shipped_bundles():
            _refuse_revision(revision, name_or_dir)
            return Bundle.load(name_or_dir)
    path = absolute_path(name_or_dir)
    if _exists(path):
        _refuse_revision(revision, name_or_dir)
        return _from_path(path, trust)
    model = parse_hub_name(name_or_dir, revision) if isinstance(name_or_dir, str) else None
    if model is None:
        return Bundle.load(name_or_dir)  # says that there is none
    if model.commit is not None and (entry := _recorded_entry(model, trust)) is not None:
        return _load(entry)
    if first_folder_exists(model.name):
        return Bundle.load(name_or_dir)  # says that there is none
    return _from_hub(model, trust, is_offline=is_local or is_offline())


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # too long for a name
        return False


def _refuse_revision(revision: str | None, name: str | Path) -> None:
    if revision is not None:
        raise InputValueError(
            f"revision is for a model on the hub, and {str(name)!r} is on this machine"
        )


def _from_path(path: Path, trust: _Trust) -> Bundle:
    """Open a bundle's directory, or export a checkpoint's.

    Raises:
        As `open_bundle`.
    """
    is_graph = path.is_file() and path.suffix == ".onnx"
    if not is_graph and not is_checkpoint(path):
        return Bundle.load(path)
    root = root_of_graph(path) if is_graph else path
    # Resolved: the record belongs to the files and not to a link's name.
    real = root.resolve()
    before = signature_of(real)
    digest = digest_of(real, checkpoint_record(real))

    def check() -> None:
        if signature_of(real) != before:
            raise ExportError(f"{root} has changed while it was exported: load it again")

    return _opened(trust.origin(str(path), digest, is_hub=False), check, is_offline=True)


def _from_hub(model: HubName, trust: _Trust, *, is_offline: bool) -> Bundle:
    """Open the bundle of a model on the hub, and export it if it is not cached.

    Raises:
        As `open_bundle`.
    """
    if is_offline:
        return _without_hub(model, trust, "requests to the hub are turned off", logging.DEBUG)
    commit = model.commit
    if commit is None:
        try:
            commit = commit_on_hub(model)
        except (HubUnreachableError, MissingDependencyError) as error:
            problem = f"the hub cannot be asked ({error})"
            return _without_hub(model, trust, problem, logging.WARNING)
        except BundleError as error:
            if _recorded_entry(model, trust) is None:
                raise
            raise BundleError(
                f"{error}; local_files_only=True loads the bundle that is cached"
            ) from None
    bundle = _opened(trust.origin(model.name, commit, is_hub=True), is_offline=False)
    remember_commit(model.name, model.revision, commit)
    return bundle


def _recorded_entry(model: HubName, trust: _Trust) -> Entry | None:
    """The cached bundle of what a name meant when the hub was asked last, if there is one."""
    commit = model.commit or recorded_commit(model.name, model.revision)
    if commit is None:
        return None
    entry = entry_of(trust.origin(model.name, commit, is_hub=True))
    return entry if entry.exists else None


def _without_hub(model: HubName, trust: _Trust, problem: str, level: int) -> Bundle:
    """Open the bundle of what is on this machine: a cached bundle, else the client's download.

    Raises:
        BundleError: there is neither.
    """
    entry = _recorded_entry(model, trust)
    if entry is not None:
        logger.log(level, "%s: %s, so the cached %s is used", model, problem, entry.origin)
        return _load(entry)
    commit = commit_in_client_cache(model)
    if commit is None:
        raise BundleError(
            f"there is no bundle {str(model)!r}: it is neither a directory nor a model that ships "
            f"with flowvec ({', '.join(sorted(shipped_bundles()))}), {problem}, and this machine "
            "has no copy of it"
        )
    logger.log(level, "%s: %s, so the download of %s is used", model, problem, commit)
    return _opened(trust.origin(model.name, commit, is_hub=True), is_offline=True)


def _opened(origin: Origin, check: Callable[[], None] | None = None, *, is_offline: bool) -> Bundle:
    """Open the cached bundle of an origin, and make it first if there is none."""
    entry = entry_of(origin)
    if not entry.exists:
        with exclusive(entry, lambda: _announce(f"waiting for another export of {origin}")):
            if not entry.exists:  # the process that this one waited for has made it
                _make(entry, check, is_offline=is_offline)
    return _load(entry)


def _make(entry: Entry, check: Callable[[], None] | None, *, is_offline: bool) -> None:
    """Export into the cache; the caller holds the entry's lock."""
    origin = entry.origin
    is_hub = origin.kind == "hub"
    _announce(f"exporting {origin} for the first time; later loads take its bundle from the cache")
    started = time.monotonic()
    with new_entry(entry) as out:
        export_in_child(
            ExportRequest(
                source=origin.name,
                revision=origin.commit if is_hub else None,
                out=str(out),
                trust_remote_code=origin.trust_remote_code,
                allow_pickle=origin.allow_pickle,
                offline=is_offline,
                shows_steps=is_shown(),
            )
        )
        if check is not None:
            check()
    seconds = time.monotonic() - started
    _announce(f"exported {origin} in {seconds:.1f} s into {entry.folder}")


def _load(entry: Entry) -> Bundle:
    try:
        bundle = Bundle.load(entry.bundle)
    except BundleError as error:
        raise BundleError(
            f"the cached bundle of {entry.origin} cannot be used: {error}. Delete it with `flowvec "
            f"cache remove {entry.origin}`; the next load makes it again"
        ) from error
    entry.touch()
    return bundle


def _announce(line: str) -> None:
    """Log a line, and print it if such lines of the log go nowhere."""
    logger.info("%s", line)
    if not logger.isEnabledFor(logging.INFO):
        say(line)
