"""Token ids over HTTP: the ids themselves go to the model, on every route that takes texts."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flowvec import Encoder, MultiVectorEncoder, SparseEncoder
from flowvec.tokenizer.tokenizer import Tokenizer
from tests.makers import with_added_token

pytest.importorskip("msgspec", reason="needs the extra [serve]")
pytest.importorskip("starlette", reason="needs the extra [serve]")

from starlette import testclient

from flowvec.server import Settings, create_app

# [UNK], [MASK] and [SEP] inside; a word that decoding would join; a text above max_length.
TEXTS = ["the cat", "the 日 [MASK] sleeps", "cat [SEP] dog", "x" * 150, "red dog runs " * 60]


@pytest.fixture(scope="module")
def client(
    tiny: Encoder, sparse_encoder: SparseEncoder, multi_vector: MultiVectorEncoder, mini: Encoder
) -> Iterator[Any]:
    models = {"tiny": tiny, "words": sparse_encoder, "tokens": multi_vector, "mini": mini}
    app = create_app(models, settings=Settings(accept_token_ids=True))
    with testclient.TestClient(app) as opened:
        yield opened


def ids_of(model: Any, text: str, *, special: bool) -> list[int]:
    tokenizer = Tokenizer(model.bundle.tokenizer, model.max_length)
    return [piece.id for piece in tokenizer.pieces(text, special=special)]


@pytest.mark.parametrize("special", [True, False])
def test_ids_give_the_vector_and_the_counts_of_their_text(
    client: Any, tiny: Encoder, mini: Encoder, special: bool
) -> None:
    for name, model in (("tiny", tiny), ("mini", mini)):
        ids = [ids_of(model, text, special=special) for text in TEXTS]
        for options in (
            {},
            {"dimensions": 8},
            {"prompt_name": "query"} if name == "tiny" else {"normalize": False},
        ):
            body = {"model": name, **options}
            texts = client.post("/v1/embeddings", json={"input": TEXTS, **body}).json()
            for given in (ids, [ids[0], *TEXTS[1:3], *ids[3:]]):
                done = client.post("/v1/embeddings", json={"input": given, **body}).json()
                assert done["usage"] == texts["usage"]
                for one, other in zip(done["data"], texts["data"], strict=True):
                    np.testing.assert_allclose(one["embedding"], other["embedding"], atol=1e-5)
        body = {"input": ids[2], "model": name, "encoding_format": "base64"}
        alone = client.post("/v1/embeddings", json=body).json()
        vector = np.frombuffer(base64.b64decode(alone["data"][0]["embedding"]), np.float32)
        expected = model.encode(TEXTS[2], normalize_embeddings=True)
        np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_every_route_takes_them(client: Any, tiny: Encoder) -> None:
    for route, name in (("/embed", "tiny"), ("/embed_sparse", "words"), ("/embed_all", "tokens")):
        ids = [ids_of(tiny, text, special=False) for text in TEXTS]
        body = {"model": name}
        expected = client.post(route, json={"inputs": TEXTS, **body}).json()
        done = client.post(route, json={"inputs": ids, **body}).json()
        assert len(done) == len(TEXTS)
        for one, other in zip(done, expected, strict=True):
            if route == "/embed_sparse":
                assert [w["index"] for w in one] == [w["index"] for w in other]
                one, other = ([w["value"] for w in each] for each in (one, other))
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("[5, 106, 7]", "input[1]"),
        ("[[5], [5, 7, -1]]", "input[1][2]"),
        ('["the cat", [5, 1000000000]]', "input[1][1]"),
        ("[[5], [7, 1000000000000000000000000000000]]", "input[1][1]"),
        ("[5, true]", "input[1]"),
        ("[[5], [7, 8, 9.5]]", "input[1][2]"),
        ("[[5], [7, 8.0]]", "input[1][1]"),
        ('[[5], [7, "a"]]', "input[1][1]"),
        ("[[5], null]", "input[1]"),
        ("[[5], [[7]]]", "input[1][0]"),
        ("[[5], []]", "input[1]"),
        ("[[]]", "input[0]"),
        ("[]", "input"),
        ('[5, "a"]', "input"),
        ("[5, [7]]", "input"),
    ],
)
def test_an_id_that_the_model_does_not_have_is_named(client: Any, given: str, place: str) -> None:
    body = f'{{"model": "tiny", "input": {given}}}'
    answer = client.post("/v1/embeddings", content=body)
    assert answer.status_code == 400
    assert place in answer.json()["error"]["message"], answer.text
    if place != "input":
        answer = client.post("/embed", content=body.replace("input", "inputs"))
        assert answer.status_code == 422
        assert place.replace("input", "inputs") in answer.json()["error"], answer.text


def test_ids_that_are_too_long_are_refused_if_requested(client: Any, tiny: Encoder) -> None:
    ids = [ids_of(tiny, text, special=False) for text in TEXTS]
    answer = client.post("/embed", json={"inputs": ids, "model": "tiny", "truncate": False})
    assert answer.status_code == 422
    assert "4" in answer.json()["error"]


def test_a_text_with_a_token_without_a_row_is_refused(
    tiny_dir: Any, tmp_path: Any, client: Any
) -> None:
    with Encoder.load(with_added_token(tiny_dir, tmp_path / "lacking", "<ent>")) as encoder:
        app = create_app({"m": encoder}, settings=Settings(accept_token_ids=True))
        with testclient.TestClient(app) as opened:
            answer = opened.post("/v1/embeddings", json={"input": ["the cat", "a <ent>"]})
            assert answer.status_code == 400
            assert "item 1 " in answer.json()["error"]["message"]
            assert opened.post("/v1/embeddings", json={"input": [106]}).status_code == 400
            lines = "".join(json.dumps({"text": text}) + "\n" for text in ("a <ent>", "the cat"))
            rows = opened.post("/v1/embed-stream?on_error=skip", content=lines).text.splitlines()
            assert ["error" in json.loads(row) for row in rows] == [True, False]
