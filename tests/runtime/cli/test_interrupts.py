"""Ctrl-C while the command starts, also during the import of an engine."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.job_folders import write_job
from tests.makers import unit_vectors


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.1, 0.2, 0.3, 0.4])
def test_ctrl_c_during_startup_shows_no_traceback(tmp_path: Path, delay: float) -> None:
    code = (
        "import builtins, signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from flowvec_command import main\n"
        "known = builtins.__import__\n"
        "def tell(name, *given, **more):\n"
        "    if name == 'flowvec.cli.main': print('begun', flush=True)\n"
        "    return known(name, *given, **more)\n"
        "builtins.__import__ = tell\n"
        "main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "index", "c", "-", "--model", "mini"], cwd=tmp_path,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=600)
    assert (process.returncode, b"Traceback" in told) == (130, False), told


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize(
    ("file", "function", "event"),
    [
        ("flowvec/cli/main.py", "main", "call"),
        ("typer/core.py", "main", "call"),
        ("flowvec/cli/main.py", "invoke", "call"),
        ("importlib._bootstrap>", "cb", "call"),  # a callback of a weak reference
        ("flowvec/cli/info.py", "info", "return"),
        ("flowvec/cli/main.py", "invoke", "return"),
        ("typer/core.py", "main", "return"),
        ("flowvec/cli/interrupts.py", "starting", "return"),
        ("flowvec/cli/main.py", "main", "return"),
    ],
)
def test_ctrl_c_before_and_after_a_command_shows_no_traceback(
    tmp_path: Path, file: str, function: str, event: str
) -> None:
    """The signal comes as a function begins or ends, so the moment is the same in each run."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from flowvec_command import main\n"
        "import flowvec.cli.main\n"
        f"last = {function == 'starting'}\n"
        "def look(frame, event, _):\n"
        "    global last\n"
        "    code = frame.f_code\n"
        f"    if (event, code.co_name) == ({event!r}, {function!r}):\n"
        f"        if code.co_filename.endswith({file!r}):\n"
        "            if last:  # the generator returns twice, and the second time is the end\n"
        "                last = False\n"
        "                return\n"
        "            sys.setprofile(None)\n"
        "            os.write(2, b'sent')\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.setprofile(look)\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "info", "mini"], cwd=tmp_path, capture_output=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, b"sent"), done.stderr


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize(
    ("words", "file", "function", "what"),
    [
        ("convert job v.parquet", "convert/sorting.py", "sorted_by_id", "starts again"),
        ("index c t.txt --model mini --engine ray --shards 2",
         "sharded/building.py", "index_shards", "completes the shards"),
        ("index c t.txt --model mini --engine ray --shards 2 --rebuild",
         "sharded/building.py", "index_shards", "rebuilds the shards"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_stopped_says_how_to_continue(
    tmp_path: Path, words: str, file: str, function: str, what: str, number: signal.Signals
) -> None:
    """The signal comes as a function begins, so the moment is the same in each run."""
    pytest.importorskip("pyarrow", reason="needs the extra [files]")
    write_job(tmp_path / "job", unit_vectors(5, 4), ["b", "a", "c", "e", "d"])
    (tmp_path / "t.txt").write_text("a\nb\n")
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from flowvec_command import main\n"
        "def look(frame, event, _):\n"
        "    code = frame.f_code\n"
        f"    if (event, code.co_name) == ('call', {function!r}):\n"
        f"        if code.co_filename.endswith({file!r}):\n"
        "            sys.setprofile(None)\n"
        f"            os.kill(os.getpid(), {int(number)})\n"
        "sys.setprofile(look)\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()], cwd=tmp_path, capture_output=True,
        timeout=600, text=True, check=False,
    )  # fmt: skip
    first = ["stopping; a second Ctrl-C ends at once"] if number == signal.SIGINT else []
    expected = [*first, f"stopped; the same command {what}:", f"flowvec {words}"]
    assert done.stderr.splitlines() == expected
    assert (done.returncode, done.stdout) == (128 + number, "")
    assert not (tmp_path / "v.parquet").exists()


@pytest.fixture
def interrupted() -> Iterator[threading.Event]:
    """Set once this process was interrupted; cleared for other tests."""
    from flowvec.cli import interrupts

    yield interrupts._INTERRUPTED
    interrupts._INTERRUPTED.clear()


@pytest.mark.usefixtures("interrupted")
def test_an_interrupt_that_an_import_has_dropped_still_stops_a_job() -> None:
    """Extension modules of engines drop a KeyboardInterrupt while they are imported."""
    from flowvec.cli import interrupts

    before = signal.getsignal(signal.SIGINT)
    try:
        with interrupts.stopping() as stop:
            assert not stop.event.is_set()
        with pytest.raises(KeyboardInterrupt):
            interrupts.interrupt()
        with pytest.raises(KeyboardInterrupt), interrupts.stopping():
            pass
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_an_import_has_made_an_error_is_not_a_mistake(
    interrupted: threading.Event, flowvec: Any
) -> None:
    """onnxruntime then says that its initialization failed."""
    before = signal.getsignal(signal.SIGINT)
    try:
        mistake = flowvec("info", "nowhere")
        interrupted.set()
        stopped = flowvec("info", "nowhere")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (mistake.returncode, stopped.returncode) == (2, 128 + signal.SIGINT)
    assert len((mistake.stderr + stopped.stderr).splitlines()) == 1
