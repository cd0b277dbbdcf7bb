"""The routes and schemas of `/openapi.json`, as lines of text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from flowvec.server.openapi import document_of
from flowvec.server.routes import ROUTES

# Bounds and forms of a value, as a reader writes them.
BOUNDS = {
    "exclusiveMaximum": "<", "exclusiveMinimum": ">", "maximum": "<=", "maxItems": "items<=",
    "maxLength": "length<=", "minItems": "items>=", "minLength": "length>=", "minimum": ">=",
    "pattern": "pattern ",
}  # fmt: skip
WORDING = {"title", "description", "examples"}


def route_lines() -> Iterator[str]:
    """The lines of routes.txt."""
    document = document_of(ROUTES)
    for path, methods in sorted(document["paths"].items()):
        for method, operation in sorted(methods.items()):
            yield from _operation_lines(f"{method.upper()} {path}", operation)
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from _schema_lines(name, schema)


def _operation_lines(title: str, operation: dict[str, Any]) -> Iterator[str]:
    key = "open" if operation["security"] == [] else "key"
    yield f"{title} ({', '.join([*operation['tags'], key])})"
    for one in sorted(operation.get("parameters", []), key=lambda one: (one["in"], one["name"])):
        if one["in"] != "path":
            yield f"    {one['in']} {one['name']}: {_type(one['schema'])}"
    for kind, content in sorted(operation.get("requestBody", {}).get("content", {}).items()):
        yield f"    takes {kind}: {_type(content['schema'])}"
    for status, answer in sorted(operation["responses"].items()):
        what = "error" if status == "default" else status
        for kind, content in sorted(answer["content"].items()):
            yield f"    {what} {kind}: {_type(content['schema'])}"


def _schema_lines(name: str, schema: dict[str, Any]) -> Iterator[str]:
    if "properties" not in schema:
        yield f"{name} = {_type(schema)}"
        return
    rest = {k: v for k, v in schema.items() if k not in ("type", "properties", "required")}
    yield f"{name}{_rest(rest)}"
    for field, kind in sorted(schema["properties"].items()):
        default = f" = {json.dumps(kind['default'])}" if "default" in kind else ""
        mark = " (required)" if field in schema.get("required", ()) else ""
        yield f"    {field}: {_type(kind)}{default}{mark}"


def _type(schema: dict[str, Any]) -> str:
    """A schema in one line; what this does not know stands as JSON."""
    left = {k: v for k, v in schema.items() if k not in WORDING and k != "default"}
    if "$ref" in left:
        name = left.pop("$ref").rpartition("/")[2]
    elif "anyOf" in left:
        name = " | ".join(_type(one) for one in left.pop("anyOf"))
    elif "enum" in left:
        name = " | ".join(json.dumps(one) for one in left.pop("enum"))
        left.pop("type", None)
    elif "const" in left:
        name = json.dumps(left.pop("const"))
    elif left.get("type") == "array" and isinstance(left.get("items"), dict):
        name = f"[{_type(left.pop('items'))}]"
        del left["type"]
    elif left.get("type") == "object" and isinstance(left.get("additionalProperties"), dict):
        name = f"{{string: {_type(left.pop('additionalProperties'))}}}"
        del left["type"]
    else:
        kind = left.pop("type", "any")
        name = " | ".join(kind) if isinstance(kind, list) else str(kind)
    return name + _rest(left)


def _rest(left: dict[str, Any]) -> str:
    """Bounds, and all else that a schema says."""
    known = [f"{BOUNDS[name]}{left[name]}" for name in sorted(left) if name in BOUNDS]
    other = {k: v for k, v in left.items() if k not in BOUNDS and k not in WORDING}
    if other.get("additionalProperties") is False:
        del other["additionalProperties"]
        known.append("no other field")
    known += [json.dumps(other, sort_keys=True)] if other else []
    return f" ({', '.join(known)})" if known else ""
