"""`flowvec serve` as a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.waiting import wait_until

__all__ = ["health_port_of", "port_of", "served", "start_server", "url_of"]


def start_server(log: Path, *words: object, **options: object) -> subprocess.Popen[bytes]:
    """Start `flowvec serve` on a free port; it may not answer yet."""
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-c", "from flowvec.cli.main import main; main()", "serve",
             *map(str, words), "--port", "0"],
            stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            **options,  # type: ignore[call-overload]
        )  # fmt: skip


def url_of(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address of a server, as soon as it listens."""

    def url() -> str | None:
        assert process.poll() is None, log.read_text()
        address = re.search(r"running on (http://127\S+:\d+)", log.read_text())
        return address and address[1]

    wait_until(url)
    return str(url())


def health_port_of(log: Path) -> int:
    """The port of a server's probes, which its log names before the server listens."""
    found = re.search(r"probes at http://\S+:(\d+)", log.read_text())
    assert found is not None, log.read_text()
    return int(found[1])


def port_of(url: str) -> int:
    """The port of an address."""
    port = urlsplit(url).port
    assert port is not None, url
    return port


@contextmanager
def served(folder: Path, *words: object) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    """`flowvec serve` until the end of the block: its address, process and log."""
    log = folder / "log"
    process = start_server(log, *words)
    try:
        yield url_of(process, log), process, log
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(600)
