"""Every public name of the packages with its signature, as lines of text.

A class shows what a caller can use of it and of its private bases together, so that a method may
move between files. Annotations and defaults stand as in the source; a constant as its value.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.surface.source import (
    Function,
    Module,
    Place,
    all_names,
    bases,
    decorators,
    fields,
    find,
    find_class,
    module_of,
)

MODULES = (
    "flowvec",
    "flowvec.bulk",
    "flowvec.convert",
    "flowvec.integrations.chroma",
    "flowvec.integrations.columns",
    "flowvec.integrations.dspy",
    "flowvec.integrations.filters",
    "flowvec.integrations.haystack",
    "flowvec.integrations.langchain",
    "flowvec.integrations.llama_index",
    "flowvec.integrations.mteb",
    "flowvec.integrations.ray",
    "flowvec.integrations.spark",
    "flowvec.projection",
    "flowvec.server",
    "flowvec.sharded",
    "flowvec_export",
)
# Methods that a caller uses by syntax.
BY_SYNTAX = {
    f"__{name}__"
    for name in (
        "aenter", "aexit", "aiter", "anext", "call", "contains", "enter", "eq", "exit", "getitem",
        "hash", "iter", "len", "lt", "next",
    )
}  # fmt: skip
SHOWN_DECORATORS = ("asynccontextmanager", "classmethod", "contextmanager", "staticmethod")
# A name that differs between versions, and is public as a name alone.
WITHOUT_VALUE = ("__version__",)
WIDTH = 100


def python_lines() -> Iterator[str]:
    """The lines of python.txt."""
    for name in MODULES:
        module = module_of(name)
        assert module is not None, f"there is no module {name}"
        for public in all_names(name):
            place = find(module, public)
            assert place is not None, f"{name}.{public} is not defined in the packages"
            yield from _name_lines(f"{name}.{public}", place)


def _name_lines(title: str, place: Place) -> Iterator[str]:
    node = place.node
    if isinstance(node, ast.ClassDef):
        yield from _class_lines(title, place)
    elif isinstance(node, Function):
        yield from _function_lines(title, node, place.module, is_method=False)
    elif place.name in WITHOUT_VALUE:
        yield title
    else:
        yield f"{title} = {_value(node, place.module)}"


def _class_lines(title: str, place: Place) -> Iterator[str]:
    assert isinstance(place.node, ast.ClassDef)
    chain = list(bases(place))
    shown = ", ".join(dict.fromkeys(_shown_bases(place)))
    bracket = f"({shown})" if shown else ""
    about = [decorators(one.node).get("dataclass") for one in chain]
    is_dataclass = any(about)
    frozen = any(one is not None and "frozen=True" in ast.unparse(one) for one in about)
    kind = ("frozen dataclass" if frozen else "dataclass") if is_dataclass else "class"
    yield f"{title}: {kind}{bracket}"
    members: dict[str, list[str]] = {}
    for name, (line, module) in fields(place).items():
        if not name.startswith("_"):
            value = f" = {_value(line.value, module)}" if line.value is not None else ""
            annotation = ast.unparse(line.annotation)
            members[name] = [f"{title}.{name}: {annotation}{value}"]
    own: dict[str, list[str]] = {}
    for one in chain:
        assert isinstance(one.node, ast.ClassDef)
        for name, lines in _method_lines(title, one.node, one.module).items():
            own.setdefault(name, lines)
    # A dataclass's fields stand in their order, which is that of its arguments.
    order = list(members) if is_dataclass else sorted(members)
    for name in order:
        yield from members[name]
    for name in sorted(own.keys() - members.keys()):
        yield from own[name]


def _shown_bases(place: Place) -> Iterator[str]:
    """Bases that are public or of other packages; for a private one, its own."""
    assert isinstance(place.node, ast.ClassDef)
    for base in place.node.bases:
        found = find_class(place.module, base)
        if found is None or _is_public(found):
            yield ast.unparse(base)
        else:
            yield from _shown_bases(found)


def _is_public(place: Place) -> bool:
    return any(place.name in all_names(module) for module in MODULES)


def _method_lines(title: str, node: ast.ClassDef, module: Module) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    overloads: set[str] = set()
    for line in node.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            name = line.targets[0].id
            if not name.startswith("_"):
                found[name] = [f"{title}.{name} = {_value(line.value, module)}"]
        if not isinstance(line, Function):
            continue
        if line.name == "__init__":
            found[line.name] = list(_function_lines(title, line, module, is_method=True))
            found |= {k: v for k, v in _attributes(title, line) if k not in found}
            continue
        if line.name.startswith("_") and line.name not in BY_SYNTAX:
            continue
        by_name = decorators(line)
        if "overload" in by_name:
            overloads.add(line.name)
        elif line.name in overloads:
            continue  # what runs; callers see the overloads
        if {"property", "cached_property"} & by_name.keys():
            returns = ast.unparse(line.returns) if line.returns else "?"
            found[line.name] = [f"{title}.{line.name}: property -> {returns}"]
        elif "setter" in by_name:
            found.setdefault(line.name, []).append(f"{title}.{line.name}: can be set")
        else:
            lines = list(_function_lines(f"{title}.{line.name}", line, module, is_method=True))
            found.setdefault(line.name, []).extend(lines)
    return found


def _attributes(title: str, init: Function) -> Iterator[tuple[str, list[str]]]:
    """The public attributes that `__init__` sets."""
    for node in ast.walk(init):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
                and not target.attr.startswith("_")
            ):
                yield target.attr, [f"{title}.{target.attr}: attribute"]


def _function_lines(
    title: str, node: Function, module: Module, *, is_method: bool
) -> Iterator[str]:
    """A signature: one line, or one for each parameter where it is long."""
    names = decorators(node)
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + [*given.defaults]
    shown = [_parameter(*one, module) for one in zip(positional, defaults, strict=True)]
    if given.posonlyargs:
        shown.insert(len(given.posonlyargs), "/")
    if is_method and "staticmethod" not in names:
        del shown[0]
        if shown[:1] == ["/"]:
            del shown[0]
    if given.vararg is not None:
        shown.append(f"*{_parameter(given.vararg, None, module)}")
    elif given.kwonlyargs:
        shown.append("*")
    shown += [
        _parameter(*one, module) for one in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    if given.kwarg is not None:
        shown += _keywords(given.kwarg, module)
    end = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    end += "".join(f" @{name}" for name in SHOWN_DECORATORS if name in names)
    end += " @async" if isinstance(node, ast.AsyncFunctionDef) else ""
    line = f"{title}({', '.join(shown)}){end}"
    if len(line) <= WIDTH:
        yield line
        return
    yield f"{title}(...){end}"
    for one in shown:
        yield f"    {one}"


def _parameter(argument: ast.arg, default: ast.expr | None, module: Module) -> str:
    shown = argument.arg
    if argument.annotation is not None:
        shown += f": {ast.unparse(argument.annotation)}"
    return shown if default is None else f"{shown} = {_value(default, module)}"


def _keywords(argument: ast.arg, module: Module) -> list[str]:
    """`**options`, or the keys of the TypedDict that it unpacks."""
    annotation = argument.annotation
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Unpack":
        place = find_class(module, annotation.slice)
        if place is not None and _is_public(place):
            return [f"**{place.name}"]
        if place is not None:
            keys = {k: ast.unparse(line.annotation) for k, (line, _) in fields(place).items()}
            return [f"**{name}: {keys[name]}" for name in sorted(keys)]
    return [f"**{_parameter(argument, None, module)}"]


def _value(node: ast.expr, module: Module) -> str:
    """A value as in the source; that of a constant where it is named."""
    if isinstance(node, ast.Name):
        place = find(module, node.id)
        if place is not None and isinstance(place.node, ast.expr):
            with_value = ast.unparse(place.node)
            if _is_plain(place.node) and len(with_value) < WIDTH:
                return with_value
    return ast.unparse(node)


def _is_plain(node: ast.expr) -> bool:
    plain = (ast.Constant, ast.Tuple, ast.List, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop)
    return all(isinstance(one, (*plain, ast.expr_context)) for one in ast.walk(node))
