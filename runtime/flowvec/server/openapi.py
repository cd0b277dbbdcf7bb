"""`/openapi.json`: the routes as an OpenAPI document, made of what the routes say of themselves."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import msgspec

from flowvec.server.answer_types import ERRORS, JinaReranked
from flowvec.server.described import BYTES, NDJSON, description_of
from flowvec.server.route import Route
from flowvec.version import __version__

__all__ = ["document_of"]

_REF = "#/components/schemas/{name}"
_TIMEOUT = {
    "name": "x-request-timeout-ms",
    "in": "header",
    "description": "After it, the answer is 504.",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}


def document_of(routes: Sequence[Route]) -> dict[str, Any]:
    """An OpenAPI 3.1 document of routes.

    Raises:
        KeyError: one of them is not described.
    """
    types: list[Any] = list(ERRORS.values())
    for route in routes:
        description = description_of(route.run)
        types += [*description.takes, *description.answers]
    kinds = [kind for kind in dict.fromkeys(types) if kind is not bytes]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schema_of = [(kind, schema) for kind, schema in zip(kinds, schemas, strict=True)]

    def schema(kinds: tuple[Any, ...]) -> dict[str, Any]:
        if not kinds:  # it always refuses
            return {}
        found = [next(s for kind, s in schema_of if kind == wanted) for wanted in kinds]
        return found[0] if len(found) == 1 else {"anyOf": found}

    paths: dict[str, Any] = {}
    for route in routes:
        path = route.path.replace("*}", "}")
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schema)
    return {
        "openapi": "3.1.0",
        "info": {"title": "flowvec serve", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, schema: Any) -> dict[str, Any]:
    description = description_of(route.run)
    summary = (inspect.getdoc(route.run) or "").partition("\n\n")[0].replace("\n", " ")
    content: dict[str, Any] = {}
    if description.answers != (bytes,):
        content[description.kind] = {"schema": schema(description.answers)}
    if description.answers == (bytes,) or description.kind == NDJSON:
        content[BYTES] = {"schema": {"type": "string", "format": "binary"}}
    errors: tuple[Any, ...] = (ERRORS[route.dialect],)
    if route.dialect != "jina" and JinaReranked in description.answers:
        errors += (ERRORS["jina"],)  # a request of Jina's form is refused as Jina does
    error = {"application/json": {"schema": schema(errors)}}
    operation: dict[str, Any] = {
        "summary": summary,
        "operationId": f"{route.method.lower()}{route.path.replace('*', '')}",
        "tags": [route.dialect],
        "responses": {"default": {"description": "An error.", "content": error}},
        "security": [] if route.is_open else [{}, {"key": []}],
    }
    if description.answers:
        answer = {"description": "The answer.", "content": content}
        operation["responses"] = {"200": answer, **operation["responses"]}
    names = [part.strip("{*}") for part in route.path.split("/") if part.startswith("{")]
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
    ]
    if description.query is not None:
        parameters += _query(description.query)
    if route.is_work:
        parameters.append(_TIMEOUT)
    if parameters:
        operation["parameters"] = parameters
    if description.takes:
        body = {description.kind: {"schema": schema(description.takes)}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _query(kind: Any) -> list[dict[str, Any]]:
    """Parameters of the URL, as the fields of a Struct."""
    (_,), schemas = msgspec.json.schema_components([kind], ref_template=_REF)
    (schema,) = schemas.values()
    return [
        {"name": name, "in": "query", "schema": field}
        for name, field in schema["properties"].items()
    ]
