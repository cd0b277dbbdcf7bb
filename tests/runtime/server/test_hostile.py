"""Bodies that no client sends: each is answered with a reason, none with 500."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import Collection, Encoder, Reranker

pytest.importorskip("msgspec", reason="needs the extra [serve]")
pytest.importorskip("starlette", reason="needs the extra [serve]")

import msgspec
from starlette.testclient import TestClient

from flowvec.server import create_app
from flowvec.server.answer_types import ERRORS
from flowvec.server.described import description_of
from flowvec.server.routes import ROUTES
from flowvec.sparse import SparseEncoder
from tests.drawing import examples
from tests.runtime.server.test_openapi import BODIES, path_of

ROUTES_WITH_BODIES = [route for route in ROUTES if description_of(route.run).takes]

ODD_TEXTS = st.sampled_from(["", "a cat", "\0", "\N{PILE OF POO}" * 3, "x" * 3000, "2020", "*"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 2, 16, 10_000, 1 << 31, 1 << 63, -(1 << 70), 1 << 2000])
    | st.sampled_from([0.5, -0.0, 1e308, -1e39, 1e-320])
    | ODD_TEXTS
)
# Sparse vectors, of which some are valid.
SPARSE = st.fixed_dictionaries(
    {
        "indices": st.lists(st.sampled_from([0, 1, 5, 105, -1, 106, (1 << 31) - 1, 1 << 63, 0.5])),
        "values": st.lists(st.sampled_from([1, -2.5, 0.0, 1e308, 1e-320, None, "1"])),
    }
)
VALUES = st.recursive(
    SCALARS | SPARSE,
    lambda values: (
        st.lists(values, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["a", "id", "text", "vector", "sparse", "$id", "and", "not", "in", "<", "x.y", ""]
            ),
            values,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def client(
    tiny: Encoder,
    mini: Encoder,
    sparse_encoder: SparseEncoder,
    reranker: Reranker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    with Collection.create(tmp_path_factory.mktemp("h") / "notes", encoder=mini) as notes:
        models = {"tiny": tiny, "mini": mini, "words": sparse_encoder}
        app = create_app(models, {"sorts": reranker}, {"notes": notes})
        with TestClient(app, raise_server_exceptions=False) as client:
            yield client


def fields_of(route: Any) -> dict[str, Any]:
    """Every field that a route takes."""
    return {
        field.encode_name: field.type
        for kind in description_of(route.run).takes
        if kind is not str
        for field in msgspec.structs.fields(kind)
    }


@pytest.mark.parametrize("route", ROUTES_WITH_BODIES, ids=lambda route: route.path)
@examples(30)
@given(data=st.data())
def test_any_body_has_an_answer(client: Any, route: Any, data: st.DataObject) -> None:
    body = dict(BODIES.get(route.path, {"inputs": "a"}))
    odd = st.dictionaries(st.sampled_from(sorted(fields_of(route))), VALUES, max_size=3)
    body |= data.draw(odd)
    answer = client.post(path_of(route), content=msgspec.json.encode(body))
    assert answer.status_code < 500, (body, answer.text)
    if answer.status_code >= 400:
        errors = [ERRORS[route.dialect], ERRORS["jina"]]  # the second form of /rerank
        msgspec.convert(
            answer.json(), errors[route.path == "/rerank" and "detail" in answer.json()]
        )


SPARSE_BODIES = {
    "rows": lambda sparse: {"rows": [{"id": 1, "vector": [1] * 384, "sparse": sparse}]},
    "rows/set_sparse": lambda sparse: {"ids": [1], "sparse": [sparse]},
    "search": lambda sparse: {"query": "a", "hybrid": True, "sparse": sparse},
    "search_batch": lambda sparse: {"queries": ["a"], "hybrid": True, "sparse": [sparse]},
    "search_sparse": lambda sparse: {"sparse": sparse},
    "search_sparse_batch": lambda sparse: {"sparse": [sparse, sparse]},
}


@pytest.mark.parametrize("path", SPARSE_BODIES)
@examples(60)
@given(sparse=SPARSE)
def test_a_sparse_vector_is_taken_or_refused_for_what_it_is(
    client: Any, path: str, sparse: dict[str, Any]
) -> None:
    body = SPARSE_BODIES[path](sparse)
    if path.startswith("rows"):
        body["sparse_dim"] = 106
    else:  # so that there are some
        row = {"id": 1, "text": "a"}
        client.post("/v1/collections/notes/rows", json={"rows": [row], "sparse": True})
    answer = client.post(f"/v1/collections/notes/{path}", content=msgspec.json.encode(body))
    indices, values = sparse["indices"], sparse["values"]
    is_valid = (
        len(indices) == len(values) == len(set(indices))
        and all(isinstance(i, int) and 0 <= i < 106 for i in indices)
        and all(isinstance(v, int | float) and abs(v) < 1e38 for v in values)
    )
    assert (answer.status_code == 200) == is_valid, (body, answer.text)
    assert answer.status_code in (200, 400)


@examples(300)
@given(route=st.sampled_from(ROUTES_WITH_BODIES), body=st.binary(max_size=60))
def test_any_bytes_have_an_answer(client: Any, route: Any, body: bytes) -> None:
    assert client.post(path_of(route), content=body).status_code < 500
