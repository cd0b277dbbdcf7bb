"""Definitions of the packages, found in their source: nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("runtime", "export", "bench")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.expr
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """A module: what its names stand for, and where imported names come from."""

    name: str
    tree: ast.Module
    definitions: dict[str, Definition] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """A definition, and the module whose names it uses."""

    module: Module
    name: str
    node: Definition


@cache
def tree_of(file: Path) -> ast.Module:
    """A file, parsed once for all that read it."""
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@cache
def module_of(name: str) -> Module | None:
    """A module of the packages; None for another."""
    for folder in FOLDERS:
        path = ROOT / folder / name.replace(".", "/")
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                tree = tree_of(file)
                module = Module(name, tree)
                _collect(module, tree.body, at_top=True)
                return module
    return None


def _collect(module: Module, body: list[ast.stmt], *, at_top: bool) -> None:
    """Note the definitions at the top, and all imports: commands import what they run."""
    for node in body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                imported = (node.module or "", alias.name)
                module.imports.setdefault(alias.asname or alias.name, imported)
        elif at_top and isinstance(node, ast.ClassDef | Function):
            module.definitions[node.name] = node
        elif at_top and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            module.definitions[node.targets[0].id] = node.value
        elif at_top and isinstance(node, ast.AnnAssign) and node.value is not None:
            module.definitions[ast.unparse(node.target)] = node.value
        is_block = not isinstance(node, ast.ClassDef | Function)
        for part in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(node, part, [])
            _collect(module, inner, at_top=at_top and is_block)


@cache
def all_names(module: str) -> list[str]:
    """The names of a module's `__all__`, sorted."""
    found = module_of(module)
    assert found is not None, f"there is no module {module}"
    return sorted(ast.literal_eval(found.definitions["__all__"]))


def find(module: Module, name: str) -> Place | None:
    """What a name of a module stands for; None if it comes from elsewhere."""
    if name in module.definitions:
        return Place(module, name, module.definitions[name])
    if name in module.imports:
        source, imported = module.imports[name]
        other = module_of(source)
        return None if other is None else find(other, imported)
    return None


def find_class(module: Module, node: ast.expr) -> Place | None:
    """The class of the packages that an expression names, as a base or an annotation does."""
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.Name(node.value)
    place = find(module, node.id) if isinstance(node, ast.Name) else None
    return place if place is not None and isinstance(place.node, ast.ClassDef) else None


def bases(place: Place) -> Iterator[Place]:
    """A class and its bases of the packages, in the order in which attributes are looked up."""
    seen: set[str] = set()
    waiting = [place]
    while waiting:
        one = waiting.pop(0)
        if one.name in seen:
            continue
        seen.add(one.name)
        yield one
        assert isinstance(one.node, ast.ClassDef)
        waiting[:0] = [found for base in one.node.bases if (found := find_class(one.module, base))]


def decorators(node: ast.ClassDef | Function) -> dict[str, ast.expr]:
    """The decorators of a definition by their last name, without arguments."""
    found = {}
    for one in node.decorator_list:
        called = one.func if isinstance(one, ast.Call) else one
        found[ast.unparse(called).rpartition(".")[2]] = one
    return found


def fields(place: Place) -> dict[str, tuple[ast.AnnAssign, Module]]:
    """The annotated names in the bodies of a class and its bases, those of bases first."""
    found: dict[str, tuple[ast.AnnAssign, Module]] = {}
    for one in reversed(list(bases(place))):
        assert isinstance(one.node, ast.ClassDef)
        for line in one.node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                found[line.target.id] = (line, one.module)
    return found
