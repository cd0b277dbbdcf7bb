"""Every command takes --quiet, which hides its progress and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from flowvec.cli.main import app
from tests.export.test_sts import HEADER


@pytest.mark.process
@pytest.mark.parametrize("place", [None, 0, 4], ids=["without", "first", "last"])
def test_quiet_hides_the_steps_of_a_command(tmp_path: Path, place: int | None) -> None:
    (tmp_path / "a.tsv").write_text(f"{HEADER}1\ta cat\ta dog\n2\ta cat\ta house\n3\ta\tb\n")
    words = ["eval", "sts", "mini", str(tmp_path)]
    if place is not None:
        words.insert(place, "--quiet")
    command = [sys.executable, "-m", "flowvec", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ("embedding" in done.stderr) == (place is None)
    assert "mini" in done.stdout


def leaves(command: object, name: str) -> list[tuple[str, object]]:
    commands = getattr(command, "commands", None)
    if commands is None:
        return [(name, command)]
    return [leaf for key, inner in commands.items() for leaf in leaves(inner, f"{name} {key}")]


def test_every_command_takes_it() -> None:
    group = get_command(app)
    names = group.list_commands(None)
    found = [leaf for name in names for leaf in leaves(group.get_command(None, name), name)]
    without = [
        name
        for name, command in found
        if not any("--quiet" in parameter.opts for parameter in command.params)
    ]
    assert len(found) > 20
    assert not without
