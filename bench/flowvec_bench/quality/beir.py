"""Reads retrieval sets in BEIR's layout: corpus, queries and judgements, checked line by line."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowvec.errors import InputValueError
from flowvec.files import lfs_advice
from flowvec.texts.encodings import OtherEncodingError, check_encoding
from flowvec.texts.joining import join_texts
from flowvec.texts.lines import json_reason

__all__ = ["RetrievalSet", "read_retrieval"]

_FILES = ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")


@dataclass(frozen=True, slots=True)
class RetrievalSet:
    """One set: its documents, and its queries that have a relevant document.

    Attributes:
        name: the folder's name.
        document_ids: ids in the file's order.
        documents: title, a space and text; without a title only the text.
        query_ids: ids in the file's order.
        queries: their texts.
        qrels: relevance (0 and up) by query id and document id.
        warnings: what could not be used, one sentence each.
        queries_that_are_documents: ids of queries whose text is also a document of the same id, as
            in ArguAna. Finding that document does not count.
    """

    name: str
    document_ids: list[str]
    documents: list[str]
    query_ids: list[str]
    queries: list[str]
    qrels: dict[str, dict[str, int]]
    warnings: list[str]
    queries_that_are_documents: frozenset[str] = frozenset()


def read_retrieval(folder: str | Path) -> list[RetrievalSet]:
    """Read one folder in BEIR's layout, or each such folder in a folder, sorted by name.

    The layout: `corpus.jsonl` (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`) and
    `qrels/test.tsv` (header, then query id, document id and a whole number, with tabs between).
    Queries without a relevant document are left out; judged documents that are not in the corpus
    count as not found. `warnings` mentions both.

    Raises:
        InputValueError: no such folder, a file is missing or is not as above, an id occurs twice
            or holds a character that trec_eval cannot read, or a judged query is missing; the
            message names file and line.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputValueError(f"{folder} is not a directory of retrieval sets")
    if any((root / name).exists() for name in _FILES):
        return [_read_set(root)]
    folders = [path for path in sorted(root.iterdir()) if (path / _FILES[0]).exists()]
    if not folders:
        raise InputValueError(
            f"{folder} is not a retrieval set ({', '.join(_FILES)}) and contains none"
        )
    return [_read_set(path) for path in folders]


def _read_set(folder: Path) -> RetrievalSet:
    corpus, queries, judged = (folder / name for name in _FILES)
    documents = {
        i: join_texts((record.get("title") or None, text)) or ""
        for i, text, record in _jsonl(corpus)
    }
    texts_by_query = {i: text for i, text, _ in _jsonl(queries)}
    qrels = _read_qrels(judged, texts_by_query.keys())
    relevant = [i for i in texts_by_query if any(qrels.get(i, {}).values())]
    if not relevant or not documents:
        raise InputValueError(f"{folder} has no documents, or no query with a relevant one")
    warnings = []
    if left_out := len(texts_by_query) - len(relevant):
        warnings.append(f"{left_out} queries without a relevant document were left out")
    if missing := {d for i in relevant for d in qrels[i]} - documents.keys():
        warnings.append(
            f"{len(missing)} judged documents are not in the corpus ({min(missing)} is one) and "
            "count as not found"
        )
    return RetrievalSet(
        name=folder.resolve().name,
        document_ids=list(documents),
        documents=list(documents.values()),
        query_ids=relevant,
        queries=[texts_by_query[i] for i in relevant],
        qrels={i: qrels[i] for i in relevant},
        warnings=warnings,
        queries_that_are_documents=frozenset(
            i for i in relevant if texts_by_query[i] and texts_by_query[i] in documents.get(i, "")
        ),
    )


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a UTF-8 file, each with its position."""
    if advice := lfs_advice(path):
        raise InputValueError(advice)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputValueError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        check_encoding(data)
    except OtherEncodingError as error:
        raise InputValueError(f"{path} {error}") from None
    for number, line in enumerate(data.split(b"\n"), 1):
        where = f"{path}, line {number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputValueError(f"{where} is not UTF-8: {error}") from None
        if text.strip():
            yield where, text.rstrip("\r")


def _jsonl(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Id, text and the whole record of each line."""
    seen: set[str] = set()
    for where, line in _lines(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputValueError(f"{where} is not JSON: {json_reason(error)}") from None
        if not isinstance(record, dict):
            raise InputValueError(f"{where} is not a JSON object")
        for field in ("_id", "text"):
            if not isinstance(record.get(field), str):
                raise InputValueError(f"{where} has no text in the field {field!r}")
        _check_id(record["_id"], where)
        if record["_id"] in seen:
            raise InputValueError(f"{where} has the _id {record['_id']!r} of an earlier line")
        seen.add(record["_id"])
        yield record["_id"], record["text"], record


def _check_id(key: str, where: str) -> None:
    """Check an id: trec_eval takes UTF-8 C strings only, and ends the process for others."""
    if "\0" in key or any("\ud800" <= character <= "\udfff" for character in key):
        raise InputValueError(f"{where} has the id {key!r}, which is not plain text")


def _read_qrels(path: Path, queries: Collection[str]) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for number, (where, line) in enumerate(_lines(path)):
        fields = line.split("\t")
        if len(fields) != 3:
            raise InputValueError(f"{where} has {len(fields)} columns instead of 3")
        if number == 0:
            if fields[2].lstrip("-").isdigit():
                raise InputValueError(f"{where} must be the header query-id, corpus-id, score")
            continue
        query, document, score = fields
        _check_id(document, where)
        if not re.fullmatch("[0-9]{1,9}", score):
            raise InputValueError(f"{where}: the score {score!r} is not a whole number from 0 on")
        if query not in queries:
            raise InputValueError(f"{where} judges the query {query!r}, which queries.jsonl lacks")
        qrels.setdefault(query, {})[document] = int(score)
    return qrels
