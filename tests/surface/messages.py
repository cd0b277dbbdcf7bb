"""The wording of errors and warnings, as text: tests assert the type and the thing that is named.

A change of wording is then a change of one line of messages.txt. It lists what the source gives to
errors, to warnings and to standard error, and what functions return for them. `{name}` is filled
in, `{name(text | text)}` is a call with texts, and `{a | b}` is one of two texts.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from tests.surface.source import FOLDERS, ROOT, Function, tree_of

ERRORS = ("Error", "Warning", "Refusal")  # how the names of their classes end
WARNINGS = ("warn", "warning", "error", "exception")
RAISERS = ("need", "require", "_refuse")  # functions that raise an error with the text they get
# What has no words of its own: `{name}`, `{function()}` and signs.
NO_WORDS = re.compile(r"\{[\w.]*(\(\))?\}|[^a-zA-Z]")


def message_lines() -> Iterator[str]:
    """The lines of messages.txt: each file, and below it its messages, sorted."""
    paths = [path for one in FOLDERS for path in sorted((ROOT / one).glob("flowvec*/**/*.py"))]
    trees = {path: list(ast.walk(tree_of(path))) for path in paths}
    messages = {path: list(_messages(nodes)) for path, nodes in trees.items()}
    given = [part for found in messages.values() for _, parts in found for part in parts]
    calls = (node for part in given for node in ast.walk(part) if isinstance(node, ast.Call))
    called = {_name(call.func) for call in calls}
    for path, nodes in trees.items():
        lines = set()
        for kind, parts in [*messages[path], *_returned(nodes, called)]:
            # `InputError("must be ", spelled)` has parts; others have arguments.
            text = ("" if kind.startswith("Input") else ", ").join(map(_shown, parts))
            if NO_WORDS.sub("", text):
                lines.add(f"{kind}: {text}".replace("\n", "\\n"))
        if lines:
            yield path.relative_to(ROOT).as_posix()
            yield from (f"  {line}" for line in sorted(lines))


def _messages(nodes: list[ast.AST]) -> Iterator[tuple[str, list[ast.expr]]]:
    """The arguments of the calls that make errors, and what is assigned to names among them."""
    texts: dict[str, list[ast.expr]] = defaultdict(list)
    raised = set()
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                texts[name].append(value)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                texts[name].append(value)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                texts[name].append(value)
            case ast.Raise(exc=ast.Call() as call):
                raised.add(call)
    for node in nodes:
        if isinstance(node, ast.Call) and (kind := _kind(node, is_raised=node in raised)):
            yield kind, node.args
            for part in node.args:
                if isinstance(part, ast.Name):
                    yield from ((kind, [text]) for text in texts[part.id])


def _returned(nodes: list[ast.AST], names: set[str]) -> Iterator[tuple[str, list[ast.expr]]]:
    """The sentences that functions of these names return; errors are listed where they are made."""
    for function in nodes:
        if isinstance(function, Function) and function.name in names:
            for node in ast.walk(function):
                match node:
                    case ast.Return(value=ast.JoinedStr() | ast.Constant() | ast.BinOp() as text):
                        if " " in _shown(text):
                            yield f"{function.name}()", [text]


def _kind(call: ast.Call, *, is_raised: bool) -> str:
    """The error or warning that a call makes; empty for another call."""
    name = _name(call.func)
    owner = _name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if name in WARNINGS and owner.endswith(("logger", "warnings", "parser")):
        return name
    if name == "echo" and any(keyword.arg == "err" for keyword in call.keywords):
        return "stderr"
    return name if is_raised or name.endswith(ERRORS) or name in RAISERS else ""


def _name(node: ast.expr) -> str:
    """The last name of `a`, `b.a` and `a[0]`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _name(value)
    return "..."


def _shown(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_shown, parts))
        case ast.FormattedValue(value=value):
            return _shown(value)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _shown(left) + _shown(right)
        case ast.IfExp(body=first, orelse=second) | ast.BoolOp(values=[first, second]):
            return f"{{{_shown(first)} | {_shown(second)}}}"
        case ast.Call(func=function, args=arguments):
            texts = (text for text in map(_shown, arguments) if NO_WORDS.sub("", text))
            return f"{{{_name(function)}({' | '.join(texts)})}}"
    return f"{{{_name(node)}}}"
