"""What a user can name is what the files of this folder list."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunCommand
from tests.surface.files import FILES, FOLDER, difference

NEEDED = {
    "commands.txt": ("flowvec_bench", "needs the extra [bench]"),
    "routes.txt": ("msgspec", "needs the extra [serve]"),
    "keys.txt": ("flowvec_bench", "needs the extra [bench]"),
}


@pytest.mark.parametrize("name", FILES)
def test_the_surface_is_as_committed(name: str) -> None:
    if name in NEEDED:
        module, reason = NEEDED[name]
        pytest.importorskip(module, reason=reason)
    changed = difference(name)
    if changed:
        pytest.fail(f"the surface has changed:\n{changed}", pytrace=False)


def test_every_command_has_help_and_an_example() -> None:
    pytest.importorskip("flowvec_bench", reason="needs the extra [bench]")
    from tests.surface.commands import commands

    without = [
        title
        for title, command in commands()
        if not command.help or not (command.epilog or "").startswith(f"Example: {title}")
    ]
    assert not without


def paths(value: Any, before: str = "") -> Iterator[str]:
    """The keys of JSON as keys.txt writes them: `hits[].id`."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from paths(inner, f"{before}.{key}" if before else key)
    elif isinstance(value, list) and value:
        for inner in value:
            yield from paths(inner, f"{before}[]")
    else:
        yield before


def unlisted(value: Any, title: str) -> list[str]:
    """The keys of JSON that keys.txt does not list under a title."""
    lines = (FOLDER / "keys.txt").read_text(encoding="utf-8").splitlines()
    listed = [line.removeprefix(f"{title} ") for line in lines if line.startswith(f"{title} ")]
    # A value without keys in the file may be a list; one that is empty or null shows no keys here.
    forms = [re.escape(one).replace(r"\*", ".+") + r"(\[\].*)?" for one in listed]
    return [
        path
        for path in dict.fromkeys(paths(value))
        if not any(re.fullmatch(form, path) for form in forms)
        and not any(one.startswith((f"{path}.", f"{path}[]")) for one in listed)
    ]


def test_keys_of_real_outputs_are_listed(
    flowvec: RunCommand, tiny_dir: Path, tmp_path: Path
) -> None:
    assert unlisted({"name": 1, "invented": 2, "files": {"a.b": {"x": 3}}}, "manifest.json") == [
        "invented",
        "files.a.b.x",
    ]
    for manifest in tiny_dir.parent.glob("*/manifest.json"):
        content = json.loads(manifest.read_text(encoding="utf-8"))
        assert not unlisted(content, "manifest.json"), manifest
    (tmp_path / "notes.jsonl").write_text('{"id": 1, "text": "the cat", "metadata": {"n": 1}}\n')
    for words in (
        ("index", "notes", "notes.jsonl", "--model", tiny_dir, "--id-field", "id"),
        ("search", "notes", "a cat"),
        ("get", "notes", "1", "--vectors"),
        ("info", "notes"),
        ("info", tiny_dir),
        ("verify", "notes"),
    ):
        done = flowvec(*words, "--json")
        assert done.returncode == 0, done.stderr
        assert not unlisted(json.loads(done.stdout), f"flowvec {words[0]} --json"), words
