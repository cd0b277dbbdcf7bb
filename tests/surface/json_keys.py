"""The keys of what commands print with `--json` or write with `--json-out`, and of a manifest.

They are read from the source: from the dictionaries that are given to `print_json` and `write_json`
and from the fields of the dataclasses in them, so no command runs. A key is listed if it may occur.
What cannot be read stands as the expression, in braces.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from tests.surface.commands import commands
from tests.surface.source import Function, Module, Place, bases, fields, find, find_class, module_of

PRINTERS = {"print_json": "--json", "write_json": "--json-out"}
# Types of several values, and those whose keys are data.
MANY = ("list", "tuple", "Sequence", "Iterator", "Iterable", "Generator", "set", "frozenset")
BY_NAME = ("dict", "Mapping", "MutableMapping")
MOST_DEEP = 40


@dataclass(frozen=True)
class Of:
    """A value of a type, which is an annotation in a module."""

    module: Module
    annotation: ast.expr


@dataclass(frozen=True)
class Many:
    """A list of values of one form."""

    one: Value


# An object by its keys; "*" is any key. None is a value without keys.
Keys = dict[str, "Value"]
Value = Keys | Many | Of | None


@dataclass(frozen=True)
class Scope:
    """A function whose names are known."""

    module: Module
    function: Function | None
    bound: dict[str, Value] = field(default_factory=dict)
    depth: int = 0

    def inside(self, module: Module, function: Function, bound: dict[str, Value]) -> Scope:
        """The scope of a function that is called here."""
        return Scope(module, function, bound, self.depth + 1)


def key_lines() -> Iterator[str]:
    """The lines of keys.txt."""
    manifest = module_of("flowvec.bundle.manifest")
    assert manifest is not None
    for path in sorted(set(_paths(_as_json(Of(manifest, ast.Name("Manifest")))))):
        yield f"manifest.json {path}"
    for title, command in commands():
        function = inspect.unwrap(command.callback)
        module = module_of(function.__module__)
        place = None if module is None else find(module, function.__name__)
        assert place is not None, f"the source of {title} was not found"
        by_option: dict[str, set[str]] = {}
        for option, value in _outputs(place, set()):
            by_option.setdefault(option, set()).update(_paths(value))
        for option, paths in sorted(by_option.items()):
            for path in sorted(paths):
                yield f"{title} {option} {path}"


def _outputs(place: Place, seen: set[tuple[str, str]]) -> Iterator[tuple[str, Value]]:
    """What a function and those of the command line that it names give to a printer."""
    if (place.module.name, place.name) in seen or not isinstance(place.node, Function):
        return
    seen.add((place.module.name, place.name))
    for node in _nodes(place.node):
        match node:
            case ast.Call(func=ast.Name(id=printer)) if printer in PRINTERS:
                value = value_of(node.args[0], Scope(place.module, place.node))
                yield PRINTERS[printer], _as_json(value)
        if isinstance(node, ast.Name) and node.id not in PRINTERS:
            source = place.module.imports.get(node.id, (place.module.name, ""))[0]
            named = find(place.module, node.id) if ".cli." in source else None
            if named is not None:
                yield from _outputs(named, seen)


@cache
def _nodes(function: Function) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(function))


def _paths(value: Value, before: str = "") -> Iterator[str]:
    """The keys of a value and of those in it: `hits[].id`."""
    if isinstance(value, Many):
        yield from _paths(value.one, f"{before}[]")
    elif isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _paths(inner, f"{before}.{key}" if before else key)
    else:
        yield before or "(a value)"


# --- forms of values ------------------------------------------------------------------------------


def value_of(node: ast.expr, scope: Scope) -> Value:
    """The form of what an expression gives."""
    if scope.depth > MOST_DEEP:
        return None
    scope = replace(scope, depth=scope.depth + 1)
    match node:
        case ast.Dict():
            return _dict(node, scope)
        case ast.List() | ast.Tuple() | ast.Set():
            return Many(_joined([value_of(one, scope) for one in node.elts]))
        case ast.ListComp() | ast.GeneratorExp():
            return Many(value_of(node.elt, _with_targets(node.generators, scope)))
        case ast.DictComp():
            return _dict_of_comprehension(node, scope)
        case ast.BinOp(op=ast.BitOr()):
            left, right = value_of(node.left, scope), value_of(node.right, scope)
            return _joined([_as_json(left), _as_json(right)])
        case ast.IfExp():
            return _joined([value_of(node.body, scope), value_of(node.orelse, scope)])
        case ast.BoolOp():
            return _joined([value_of(one, scope) for one in node.values])
        case ast.Name():
            return _named(node.id, scope)
        case ast.Attribute():
            return _attribute(value_of(node.value, scope), node.attr, scope)
        case ast.Subscript():
            return _one_of(value_of(node.value, scope))
        case ast.Call():
            return _called(node, scope)
    return None


def _dict(node: ast.Dict, scope: Scope) -> Keys:
    found: Keys = {}
    for key, inner in zip(node.keys, node.values, strict=True):
        value = _as_json(value_of(inner, scope))
        if key is None:
            found |= value if isinstance(value, dict) else {f"{{**{ast.unparse(inner)}}}": None}
        elif isinstance(key, ast.Constant):
            found[str(key.value)] = value
        else:
            found["*"] = value
    return found


def _dict_of_comprehension(node: ast.DictComp, scope: Scope) -> Value:
    (loop,) = node.generators
    if ast.unparse(loop.iter) == "self.__slots__":
        return _as_json(scope.bound.get("self"))
    # {k: v for k, v in x.items() if k != "one"}
    match node.key, loop.target, _mapping_of(loop.iter):
        case ast.Name(id=key), ast.Tuple(elts=[ast.Name(id=first), _]), ast.expr() as mapping:
            value = _as_json(value_of(mapping, scope))
            if key == first and isinstance(value, dict) and "*" not in value:
                left = [_left_out(one) for one in loop.ifs]
                return {name: one for name, one in value.items() if name not in left}
    return {"*": _as_json(value_of(node.value, _with_targets(node.generators, scope)))}


def _left_out(condition: ast.expr) -> object:
    """The name of `key != "name"`; None for another condition."""
    match condition:
        case ast.Compare(ops=[ast.NotEq()], comparators=[ast.Constant(value=name)]):
            return name
    return None


def _mapping_of(node: ast.expr) -> ast.expr | None:
    """The mapping of `mapping.items()`; None for another expression."""
    match node:
        case ast.Call(func=ast.Attribute(value=mapping, attr="items")):
            return mapping
    return None


def _with_targets(loops: list[ast.comprehension], scope: Scope) -> Scope:
    for loop in loops:
        scope = replace(scope, bound={**scope.bound, **_targets(loop.target, loop.iter, scope)})
    return scope


def _targets(target: ast.expr, iterable: ast.expr, scope: Scope) -> dict[str, Value]:
    """What a loop's names stand for."""
    if isinstance(target, ast.Name):
        return {target.id: _one_of(value_of(iterable, scope))}
    mapping = _mapping_of(iterable)
    if isinstance(target, ast.Tuple) and mapping is not None:
        inner = _one_of(value_of(mapping, scope))
        return {ast.unparse(target.elts[0]): None, ast.unparse(target.elts[1]): inner}
    match target, iterable:
        case ast.Tuple(), ast.Call(func=ast.Name(id="zip")):
            return {
                ast.unparse(name): _one_of(value_of(one, scope))
                for name, one in zip(target.elts, iterable.args, strict=True)
            }
    return {}


def _named(name: str, scope: Scope) -> Value:
    """What a name stands for: an argument, all that is assigned to it, or a type's annotation."""
    if name in scope.bound:
        return scope.bound[name]
    if scope.function is None:
        return None
    inner = replace(scope, bound={**scope.bound, name: None})  # it may be made of itself
    given: list[Value] = []
    arguments = scope.function.args
    for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        if one.arg == name and one.annotation is not None:
            given.append(Of(scope.module, one.annotation))
    for node in _nodes(scope.function):
        match node:
            case ast.Assign(targets=[ast.Tuple() as names], value=ast.Tuple() as values):
                for target, value in zip(names.elts, values.elts, strict=False):
                    if isinstance(target, ast.Name) and target.id == name:
                        given.append(value_of(value, inner))
            case ast.Assign(targets=[ast.Name(id=target)]) if target == name:
                given.append(value_of(node.value, inner))
            case ast.AnnAssign(target=ast.Name(id=target)) if target == name:
                given.append(
                    (None if node.value is None else value_of(node.value, inner))
                    or Of(scope.module, node.annotation)
                )
            case ast.AugAssign(target=ast.Name(id=target), op=ast.BitOr()) if target == name:
                given.append(_as_json(value_of(node.value, inner)))
            case ast.For():
                given += [
                    v for k, v in _targets(node.target, node.iter, inner).items() if k == name
                ]
            case ast.withitem(optional_vars=ast.Name(id=target)) if target == name:
                given.append(_entered(value_of(node.context_expr, inner)))
            case ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr="append")):
                if target == name:
                    given.append(Many(value_of(node.args[0], inner)))
    return _joined(given)


def _attribute(value: Value, name: str, scope: Scope) -> Value:
    if isinstance(value, dict):
        return value.get(name)
    found: list[Value] = []
    for place in _classes(value):
        if name in fields(place):
            line, module = fields(place)[name]
            found.append(Of(module, line.annotation))
        elif method := _method(place, name):
            found.append(_returned(method, value, [], scope))
    return _joined(found)


def _called(node: ast.Call, scope: Scope) -> Value:
    function = node.func
    if isinstance(function, ast.Name):
        if function.id == "asdict":
            return _as_json(value_of(node.args[0], scope)) or {f"{{{ast.unparse(node)}}}": None}
        if function.id in ("list", "tuple", "sorted"):
            return Many(_one_of(value_of(node.args[0], scope))) if node.args else None
        if function.id == "cast":
            return value_of(node.args[1], scope)
        place = find(scope.module, function.id)
        if place is None:
            return None
        if isinstance(place.node, ast.ClassDef):
            return Of(scope.module, function)
        return _returned(place, None, [(node, scope)], scope)
    if isinstance(function, ast.Attribute):
        if isinstance(function.value, ast.Name):
            owner = find_class(scope.module, function.value)  # Encoder.load(...)
            if owner is not None and (method := _method(owner, function.attr)):
                return _returned(method, Of(scope.module, function.value), [], scope)
        value = value_of(function.value, scope)
        if function.attr == "enter_context":
            return _entered(value_of(node.args[0], scope))
        if function.attr == "values":
            return Many(_one_of(value))
        methods = [_method(place, function.attr) for place in _classes(value)]
        return _joined([_returned(one, value, [], scope) for one in methods if one is not None])
    return None


def _returned(
    place: Place, owner: Value, calls: list[tuple[ast.Call, Scope]], scope: Scope
) -> Value:
    """What a function gives: its annotated type, or what it returns if that is a dictionary."""
    node = place.node
    if not isinstance(node, Function) or node.returns is None:
        return None
    kind = ast.unparse(node.returns)
    if kind in ("Self", ast.unparse(owner.annotation) if isinstance(owner, Of) else "Self"):
        return owner
    if "dict[str, Any]" not in kind and "dict[str, int]" not in kind and kind != "Any":
        return Of(place.module, node.returns)
    bound: dict[str, Value] = {} if owner is None else {"self": owner}
    for call, outside in calls:
        bound |= _arguments(node, call, outside)
    inner = scope.inside(place.module, node, bound)
    found = [one.value for one in _nodes(node) if isinstance(one, ast.Return) and one.value]
    return _joined([value_of(one, inner) for one in found])


def _arguments(function: Function, call: ast.Call, scope: Scope) -> dict[str, Value]:
    names = [one.arg for one in [*function.args.posonlyargs, *function.args.args]]
    bound: dict[str, Value] = {}
    for name, one in zip(names, call.args, strict=False):
        value = value_of(one, scope)
        if value is not None:
            bound[name] = value
    known = {*names, *(one.arg for one in function.args.kwonlyargs)}
    rest: Keys = {}
    for keyword in call.keywords:
        value = value_of(keyword.value, scope)
        if keyword.arg is None:
            value = _as_json(value)
            name = f"{{**{ast.unparse(keyword.value)}}}"
            rest |= value if isinstance(value, dict) else {name: None}
        elif keyword.arg in known:
            bound[keyword.arg] = value
        else:
            rest[keyword.arg] = _as_json(value)
    if function.args.kwarg is not None:
        bound[function.args.kwarg.arg] = rest
    return bound


# --- types ----------------------------------------------------------------------------------------


def _choices(value: Of) -> list[Of]:
    """The types of a union but None; what an alias stands for."""
    node, module = value.annotation, value.module
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    if isinstance(node, ast.BinOp):
        return [one for side in (node.left, node.right) for one in _choices(Of(module, side))]
    if isinstance(node, ast.Name):
        alias = find(module, node.id)
        if alias is not None and isinstance(alias.node, ast.BinOp | ast.Subscript):
            return _choices(Of(alias.module, alias.node))
    return [] if isinstance(node, ast.Constant) else [Of(module, node)]


def _classes(value: Value) -> list[Place]:
    """The classes of a value that is of a type or of one of several."""
    choices = _choices(value) if isinstance(value, Of) else []
    places = [find_class(one.module, one.annotation) for one in choices]
    return [place for place in places if place is not None]


def _method(place: Place, name: str) -> Place | None:
    for one in bases(place):
        assert isinstance(one.node, ast.ClassDef)
        for line in one.node.body:
            if isinstance(line, Function) and line.name == name:
                return Place(one.module, name, line)
    return None


def _entered(value: Value) -> Value:
    """What `with` gives: the same for a class, the one value of a generator."""
    if isinstance(value, Of) and ast.unparse(value.annotation).startswith(
        ("Iterator", "Generator")
    ):
        return _one_of(value)
    return value


def _one_of(value: Value) -> Value:
    """One of several values."""
    if isinstance(value, Many):
        return value.one
    if isinstance(value, dict):
        return value.get("*")
    if isinstance(value, Of):
        for one in _choices(value):
            if isinstance(kind := one.annotation, ast.Subscript):
                inner = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
                return Of(one.module, inner[-1 if ast.unparse(kind.value) in BY_NAME else 0])
    return None


def _as_json(value: Value) -> Value:
    """The keys of a type's fields, as `asdict` gives them."""
    if isinstance(value, Many):
        return Many(_as_json(value.one))
    if not isinstance(value, Of):
        return value
    found: list[Value] = []
    for one in _choices(value):
        if isinstance(kind := one.annotation, ast.Subscript):
            inner = _as_json(_one_of(one))
            name = ast.unparse(kind.value).rpartition(".")[2]
            if name in BY_NAME:
                found.append({"*": inner})
            elif name in MANY and inner is not None:
                found.append(Many(inner))
        elif place := find_class(one.module, kind):
            known = fields(place).items()
            found.append({k: _as_json(Of(m, line.annotation)) for k, (line, m) in known} or None)
    return _joined(found)


def _joined(values: list[Value]) -> Value:
    """One value with the keys of all."""
    left = [one for one in values if one is not None]
    if not left:
        return None
    if all(isinstance(one, dict) for one in left):
        found: Keys = {}
        for one in left:
            assert isinstance(one, dict)
            for key, inner in one.items():
                found[key] = _joined([found.get(key), inner])
        return found
    if all(isinstance(one, Many) for one in left):
        return Many(_joined([one.one for one in left if isinstance(one, Many)]))
    if all(isinstance(one, Of) for one in left) and len(left) > 1:
        as_json = [_as_json(one) for one in left]
        return _joined(as_json) or left[0]
    return left[0]
