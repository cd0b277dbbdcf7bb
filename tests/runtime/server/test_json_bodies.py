"""Bodies are JSON as RFC 8259 has it. A lone surrogate in a text, such as half an emoji, becomes
U+FFFD and is counted, as in process."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from flowvec import Collection, Encoder, Reranker
from flowvec.texts.unicode import without_surrogates
from tests.runtime.server.conftest import running

pytest.importorskip("msgspec", reason="needs the extra [serve]")

import msgspec

from flowvec.server import create_app
from flowvec.server.lone_surrogates import strings_at, without_lone_surrogates


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory, mini: Encoder, reranker: Reranker
) -> Iterator[Any]:
    with Collection.create(tmp_path_factory.mktemp("c") / "c", encoder=mini) as collection:
        app = create_app({"m": mini}, {"r": reranker}, {"c": collection})
        with running(app) as server, server.client() as client:
            yield client


def sent(client: Any, path: str, body: Any) -> Any:
    """The answer to a body in which lone surrogates are escaped, as most languages write them."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(path, content=content)
    answer.read().decode()  # UTF-8
    return answer


PIECES = [
    r"\ud83d", r"\uDE00", r"\\", r"\"", "u", "d83d", "a", "é", r"\u0041", r"\n", r"\/", r"\udbff",
    r"\uDfff", "ude00", r"\uD7ff",
]  # fmt: skip


def test_json_with_lone_surrogates_is_read_as_python_reads_it() -> None:
    draw = random.Random(0)
    for _ in range(4000):
        key, text, other = ("".join(draw.choices(PIECES, k=draw.randint(0, 6))) for _ in range(3))
        body = f'{{"{key}":["{text}",1, "{other}"]}}'
        try:
            expected = json.loads(body)
        except ValueError:  # a quotation mark that the backslash before it escapes
            expected = None
        content, places = without_lone_surrogates(body.encode())
        assert len(content) == len(body.encode())
        if expected is None:
            with pytest.raises(msgspec.DecodeError):
                msgspec.json.decode(content)
            continue
        assert msgspec.json.decode(content) == without_surrogates(expected)
        ((found, (first, _, second)),) = expected.items()
        held = {item for item in (found, first, second) if without_surrogates(item) != item}
        assert (strings_at(content, places) if places.size else set()) == set(
            map(without_surrogates, held)
        )


HALF, WHOLE = "cut \ud83d", "cut \ufffd"
TEXT_PART = {"type": "text", "text": "fine"}


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        ("/v1/embeddings", {"input": ["fine", HALF, "\ude00\ud83d", "fine"]}, 2),
        ("/v1/embeddings", {"input": "fine", "user": HALF, HALF: [HALF]}, 0),
        ("/embed", {"inputs": HALF}, 1),
        ("/v2/embed", {"texts": [HALF, HALF], "embedding_types": ["float"]}, 2),
        ("/v2/embed", {"inputs": [{"content": [TEXT_PART | {"text": HALF}, TEXT_PART]}]}, 1),
        ("/api/embed", {"model": "m", "input": HALF}, 1),
        ("/similarity", {"inputs": {"source_sentence": HALF, "sentences": ["fine"]}}, 1),
        ("/rerank", {"query": "fine", "texts": [HALF, "fine"], "return_text": True}, 1),
        ("/v1/rerank", {"query": HALF, "documents": [{"text": "fine"}, "fine"]}, 2),
        ("/predict", {"inputs": [["fine", HALF]]}, 1),
        ("/tokenize", {"inputs": HALF}, None),
        ("/decode", {"ids": [[5, 6]], "user": HALF}, None),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_half_an_emoji_is_answered_as_its_replacement(
    client: Any, path: str, body: Any, count: int | None
) -> None:
    answer = sent(client, path, body)
    assert answer.status_code == 200, answer.text
    expected = sent(client, path, without_surrogates(body))
    if path in ("/embed", "/rerank", "/predict", "/tokenize", "/v1/embeddings", "/similarity"):
        assert answer.text == expected.text  # the others hold an id, or times
    if "x-flowvec-replaced" in answer.headers:
        assert answer.headers["x-flowvec-replaced"] == str(count)
        assert expected.headers["x-flowvec-replaced"] == "0"


def test_what_is_quoted_in_an_error_is_valid(client: Any) -> None:
    answer = sent(client, "/v1/embeddings", {"input": "a", "model": HALF})
    assert answer.status_code == 404
    assert WHOLE in answer.json()["error"]["message"]


def test_a_stream_reads_half_an_emoji(client: Any) -> None:
    lines = [{"id": HALF, "text": HALF}, {"text": "fine", HALF: 1}, "\udc00", "\\ud83d"]
    before = replaced(client)
    answer = sent(
        client, "/v1/embed-stream", b"\n".join(json.dumps(line).encode() for line in lines)
    )
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [row.get("id") for row in rows] == [WHOLE, None, None, None]
    expected = sent(client, "/embed", {"inputs": [WHOLE, "fine", "\ufffd", "\\ud83d"]}).json()
    for row, vector in zip(rows, expected, strict=True):
        assert row["embedding"] == pytest.approx(vector, abs=1e-5)
    assert replaced(client) == before + 2


def replaced(client: Any) -> float:
    """Texts of the model whose lone surrogates were replaced so far."""
    (line,) = (
        line
        for line in client.get("/metrics").text.splitlines()
        if line.startswith('flowvec_replaced_texts_total{model="m"}')
    )
    return float(line.split()[-1])


def test_collections_take_half_an_emoji_in_texts_and_metadata(client: Any) -> None:
    before = replaced(client)
    for ids in (7, "a", [7]):
        answer = sent(client, "/v1/collections/c/rows/update", {"ids": ids, "changes": {"x": HALF}})
        assert (answer.status_code, answer.json()) == (200, {"updated": 0}), answer.text
    rows = [{"id": "a", "text": HALF, "metadata": {"title": HALF, HALF: [HALF]}}]
    assert sent(client, "/v1/collections/c/rows", {"rows": rows}).status_code == 200
    assert replaced(client) == before + 1
    for body in (
        {"query": HALF, "k": 1},
        {"query": "x", "k": 1, "filter": {"title": HALF}},
        {"query": "x", "k": 1, "filter": {"$id": "a"}, "hybrid": True},
    ):
        answer = sent(client, "/v1/collections/c/search", body)
        assert answer.status_code == 200, answer.text
        (hit,) = answer.json()["hits"]
        assert (hit["text"], hit["metadata"]) == (WHOLE, {"title": WHOLE, WHOLE: [WHOLE]})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("rows", {"rows": [{"id": HALF, "text": "a"}]}),
        ("rows/get", {"ids": [1, HALF]}),
        ("rows/get", {"ids": HALF}),
        ("rows/delete", {"ids": [HALF]}),
        ("rows/delete", {"ids": HALF}),
        ("rows/delete", {"filter": {"not": {"$id": {"in": [1, HALF]}}}}),
    ],
)
def test_an_id_with_half_an_emoji_is_refused_as_in_process(
    client: Any, path: str, body: Any
) -> None:
    """Replaced, it could be another row's."""
    answer = sent(client, f"/v1/collections/c/{path}", body)
    assert answer.status_code == 400
    assert "id holds a lone surrogate" in answer.text


@pytest.mark.parametrize(
    ("body", "about"),
    [
        (b'\xef\xbb\xbf{"inputs": "a"}', ""),
        (b'{"inputs": "a", "more": [1e400, 123456789012345678901234567890, 1E-400]}', ""),
        (b'{"inputs": "b", "inputs": "a"}', ""),
        (b'{"inputs": "a", "more": NaN}', "numbers cannot be NaN (byte 24)"),
        (b'{"inputs": "a", "more": -Infinity}', "numbers cannot be Infinity"),
        (b'{"inputs": "\xed\xa0\xbd"}', "not UTF-8: byte 12 is 0xed"),
        ('{"inputs": "a"}'.encode("utf-16"), "not UTF-8"),
        (b'{"inputs": "a', "it ends too early"),
        (b'{"inputs": "\\ud83d"', "it ends too early"),
        (b'{"inputs": "\\ud83"}', "unicode escape"),
        (b" ", "it is empty"),
        (b'{"inputs": "a", "more": ' + b"[" * 10**5 + b"]" * 10**5 + b"}", "nested too deeply"),
    ],
)
def test_what_is_json_is_read_and_what_is_not_is_said(client: Any, body: bytes, about: str) -> None:
    answer = sent(client, "/embed", body)
    assert answer.status_code == (400 if about else 200), answer.text
    assert about in answer.text
    if not about:
        assert answer.json() == sent(client, "/embed", {"inputs": "a"}).json()
