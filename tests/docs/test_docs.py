"""Code in README.md and docs/ runs, or is at least such as the command line and the packages take.

Blocks of ```python and ```sh of a page run in order, in one folder that holds what a reader is told
to have (`readers_files.py`). An HTML comment on a line of its own right before a block says more:

    <!-- not run: REASON -->      its commands are parsed, its imports looked up, and that is all
    <!-- prints: TEXT -->         the output contains that

A ```text block that follows a python block with nothing between is all that the block prints.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SHARED
from tests.docs.forking import CLIENT
from tests.docs.pages import (
    DOCS,
    MISSPELT,
    PAGES,
    ROOT,
    Block,
    anchors,
    links,
    read_page,
    shell_of_console,
)
from tests.docs.parsing import check_python, commands, parse
from tests.docs.readers_files import READERS_FILES

pytest.importorskip("torch", reason="needs the extra [export]")

SECONDS = 1800
each_page = pytest.mark.parametrize(
    "page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES]
)


@pytest.fixture(scope="session")
def my_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of `my-checkpoint`, made once because it takes long."""
    from flowvec_export import export

    folder = tmp_path_factory.mktemp("exported")
    READERS_FILES["my-checkpoint"](folder / "my-checkpoint")
    logging.disable(logging.INFO)  # torch's tracing logs a lot, which would hide what fails later
    try:
        export(folder / "my-checkpoint", folder / "my-bundle")
    finally:
        logging.disable(logging.NOTSET)
    return folder / "my-bundle"


@pytest.fixture(scope="session")
def fork() -> Iterator[list[str]]:
    """The words before a piece of code and its arguments that run it in a process of its own."""
    # The path of a socket is limited to about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="flowvec-docs-") as folder:
        place = Path(folder) / "socket"
        command = [sys.executable, "-m", "tests.docs.forking", str(place)]
        environment = {"FLOWVEC_TRACES": str(Path(folder) / "traces"), **os.environ}
        with subprocess.Popen(command, cwd=ROOT, env=environment) as server:
            try:
                while not place.exists():
                    assert server.poll() is None
                    time.sleep(0.05)
                yield [sys.executable, "-S", "-E", "-c", CLIENT, str(place)]
            finally:
                server.terminate()


@pytest.fixture
def commands_on_path(tmp_path: Path, fork: list[str]) -> Path:
    """A folder whose `python` and `flowvec` are those that run the tests."""
    folder = tmp_path / "bin"
    folder.mkdir()
    flowvec = shlex.join([*fork, "from flowvec.cli.main import main; main()"])
    for name, start in {"python": shlex.quote(sys.executable), "flowvec": flowvec}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {start} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@each_page
def test_the_pages_code_runs(
    page: Path,
    tmp_path: Path,
    commands_on_path: Path,
    fork: list[str],
    request: pytest.FixtureRequest,
) -> None:
    blocks = [b for b in read_page(page)[0] if (b.is_python or b.is_shell) and b.not_run is None]
    folder = tmp_path / "reader"
    folder.mkdir()
    _prepare(folder, "".join(block.code for block in blocks), request)
    environment = {
        **os.environ,
        "PATH": f"{commands_on_path}{os.pathsep}{os.environ['PATH']}",
        "FLOWVEC_CACHE": str(tmp_path / "cache"),
        "COLUMNS": "200",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    left_out = []
    for block in blocks:
        if "../shared/data" in block.code and not (SHARED / "data").is_dir():
            left_out.append(block.where)
            continue
        _run(block, folder, environment, fork)
    if left_out:
        pytest.skip(
            "needs the data folder ../shared/data, which is not here: " + "; ".join(left_out)
        )


def _prepare(folder: Path, code: str, request: pytest.FixtureRequest) -> None:
    """Provide the files that a page's code names, except those it creates."""
    (folder.parent / "shared").symlink_to(SHARED)
    for name, write in READERS_FILES.items():
        if re.search(rf"(?<![\w./-])(\./)?{re.escape(name)}(?![\w.-])", code):
            write(folder / name)
    makes_bundle = re.search(r'(-o\s+|--out\s+|export\([^)]*, ")(\./)?my-bundle\b', code)
    if "my-bundle" in code and not makes_bundle:
        shutil.copytree(request.getfixturevalue("my_bundle"), folder / "my-bundle")


def _run(block: Block, folder: Path, environment: dict[str, str], fork: list[str]) -> None:
    if block.is_python:
        words = [*fork, block.code]
    else:
        code = shell_of_console(block.code) if block.language == "console" else block.code
        words = ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        timeout=SECONDS,
    )
    if done.returncode != 0:
        pytest.fail(
            f"{block.where}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}",
            pytrace=False,
        )
    for text in block.prints:
        if text not in done.stdout:
            pytest.fail(f"{block.where} must print {text!r}, not\n{done.stdout}", pytrace=False)
    if block.printed is not None and _trimmed(done.stdout) != _trimmed(block.printed):
        pytest.fail(f"{block.where} must print\n{block.printed}\nnot\n{done.stdout}", pytrace=False)


def _trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").rstrip().splitlines()]


@each_page
def test_blocks_that_do_not_run_are_checked_against_the_command_line(page: Path) -> None:
    wrong = []
    for block in read_page(page)[0]:
        if block.not_run is None or not (block.is_python or block.is_shell):
            continue
        assert block.not_run, f"{block.where}: a comment `not run` gives a reason"
        wrong += [f"{block.where}: {error}" for error in _mistakes(block)]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


def _mistakes(block: Block) -> Iterator[Exception]:
    """Mistakes in a block that can be found without running it."""
    try:
        if block.is_python:
            check_python(block.code, block.where)
            return
        mistakes = list(
            commands(shell_of_console(block.code) if block.language == "console" else block.code)
        )
    except (ImportError, SyntaxError, ValueError) as error:
        yield error
        return
    for words in mistakes:
        try:
            parse(words)
        except ValueError as error:
            yield error


@each_page
def test_every_code_block_names_its_language(page: Path) -> None:
    for block in read_page(page)[0]:
        if block.language in MISSPELT:
            code = re.search(
                r"^(\$ |flowvec \w|import |from \w+ import )", block.code, re.MULTILINE
            )
            assert not code, f"{block.where}: call it python, sh, or text if it is output"


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(read_page(page)[1]):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_relative_to(ROOT) or not target.exists():
            broken.append(f"{link}: there is no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            broken.append(f"{link}: there is no such heading")
    if broken:
        pytest.fail(f"{page.relative_to(ROOT)}: " + "\n".join(broken), pytrace=False)


def test_every_page_can_be_found() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in (ROOT / "README.md", DOCS / "README.md")
        for link in links(read_page(page)[1])
    }
    for page in set(DOCS.glob("*.md")) - {DOCS / "README.md"}:
        assert page in linked, f"neither README.md nor docs/README.md links to {page.name}"
