"""What a bulk job records: its finished shards, and its description in the manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flowvec.errors import BulkError, InputTypeError, InputValueError
from flowvec.texts.window import DeadLetter

__all__ = [
    "VERSION",
    "ShardRecord",
    "check_share",
    "comparable",
    "dead_letter_lines",
    "differences",
    "differences_of_shares",
    "job_digest",
    "journal_line",
    "journal_records",
    "manifest_bytes",
    "records_of",
    "shares_in",
]

VERSION = 1


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A finished shard.

    Attributes:
        shard: its number.
        file: name of its file; empty if the rows went into a collection.
        rows: rows that were written.
        dead: rows that are dead letters.
        blank: blank lines of jsonl.
        bytes: size of the file.
        sha256: SHA-256 of the file.
        map_sha256: SHA-256 of the row map beside a .npy shard.
        duplicates: rows that were left out because another row has the same id.
        codes: dead letters of each kind.
        texts_sha256: SHA-256 of the texts file, with `dedupe` or `changed_since`.
    """

    shard: int
    file: str
    rows: int
    dead: int
    blank: int
    bytes: int
    sha256: str
    map_sha256: str | None = None
    duplicates: int = 0
    codes: Mapping[str, int] = field(default_factory=dict)
    texts_sha256: str | None = None

    @property
    def rows_in(self) -> int:
        """Input rows of the shard."""
        return self.rows + self.dead + self.blank + self.duplicates


def journal_line(record: ShardRecord) -> bytes:
    """A finished shard as a line of a journal."""
    return json.dumps(asdict(record)).encode() + b"\n"


def journal_records(lines: Iterable[bytes]) -> list[ShardRecord]:
    """The shards of a journal's lines, up to the first damaged one."""
    records: list[ShardRecord] = []
    for line in lines:
        try:
            records.append(ShardRecord(**json.loads(line)))
        except (ValueError, TypeError):
            break
    return records


def dead_letter_lines(dead_letters: Sequence[DeadLetter]) -> bytes:
    """Dead letters as lines of JSON."""
    return b"".join(json.dumps(asdict(letter)).encode() + b"\n" for letter in dead_letters)


def manifest_bytes(content: Mapping[str, Any]) -> bytes:
    """A manifest as it is written."""
    text = json.dumps({"flowvec_bulk": VERSION, **content}, indent=1, ensure_ascii=False)
    # Lone surrogates of a name that is not UTF-8 become escapes, which JSON reads as they were.
    return (text + "\n").encode("utf-8", "backslashreplace")


def shares_in(names: Iterable[str]) -> list[tuple[int, int]]:
    """Shares with a manifest among the names of a folder's files, as (i, n)."""
    shares = set()
    for name in names:
        if not (name.startswith("_manifest") and name.endswith(".json")):
            continue
        middle = name.removeprefix("_manifest").removesuffix(".json")
        index, _, count = middle.removeprefix(".").partition("-of-")
        if not middle:
            shares.add((1, 1))
        elif index.isdecimal() and count.isdecimal():
            shares.add((int(index), int(count)))
    return sorted(shares)


def differences(before: dict[str, Any], now: dict[str, Any], at: str = "") -> Iterator[str]:
    """Differences between two manifests' descriptions, in words."""
    for key in dict.fromkeys((*before, *now)):
        name = f"{at}{key}"
        if key not in before or key not in now:
            yield f"{name} is {'new' if key in now else 'gone'}"
        elif isinstance(before[key], dict) and isinstance(now[key], dict):
            yield from differences(before[key], now[key], f"{name}.")
        elif before[key] != now[key]:
            yield f"{name} was {_short(before[key])} and is {_short(now[key])}"


def differences_of_shares(one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    """Differences between the manifests of two shares of a job, apart from their progress."""

    def common(manifest: dict[str, Any]) -> dict[str, Any]:
        options = dict(manifest.get("options", {}))
        counts.append(options.pop("share", [1, 1])[-1])
        return {**comparable(manifest), "options": options}

    counts: list[int] = []
    yield from differences(common(one), common(other))
    if counts[0] != counts[1]:
        yield f"it is divided into {counts[0]} shares, and not into {counts[1]}"


def comparable(manifest: dict[str, Any]) -> dict[str, Any]:
    """The part of a manifest that decides the bytes; it does not include modification times.

    Raises:
        BulkError: it is damaged.
    """
    try:
        inputs = {
            one["path"]: {key: value for key, value in one.items() if key != "modified"}
            for one in manifest.get("inputs", [])
        }
    except (AttributeError, KeyError, TypeError):
        raise BulkError("a manifest of the job does not name its inputs") from None
    described = {key: value for key, value in manifest.items() if key != "shards"}
    return {**described, "inputs": inputs, "order": list(inputs)}


def job_digest(manifest: Mapping[str, Any]) -> bytes:
    """What tells a job apart from others: 64 hexadecimal digits."""
    described = json.dumps(comparable(dict(manifest)), sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest().encode()


def records_of(shards: Any, manifest: str) -> list[ShardRecord]:
    """The shards of a manifest.

    Raises:
        BulkError: it is damaged.
    """
    try:
        return [ShardRecord(**one) for one in shards]
    except TypeError:
        raise BulkError(f"{manifest} does not describe its shards") from None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def check_share(share: tuple[int, int]) -> None:
    """Refuse a share that is not valid.

    Raises:
        InputValueError: i is not from 1 to n.
    """
    if not (
        isinstance(share, tuple | list)
        and len(share) == 2
        and all(isinstance(part, int) and not isinstance(part, bool) for part in share)
    ):
        raise InputTypeError(f"a share is two whole numbers, as (2, 8), not {share!r}")
    if not 1 <= share[0] <= share[1]:
        raise InputValueError(f"a share is i/n with i from 1 to n, not {share[0]}/{share[1]}")
