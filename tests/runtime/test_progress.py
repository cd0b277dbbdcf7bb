"""Long work shows what it does on standard error, and nothing where that is turned off."""

from __future__ import annotations

import io
import os
import sys
import types
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from flowvec import Collection, Encoder, InputTypeError, progress
from flowvec.encoder.loaded_model import wants_bar
from flowvec.texts.window import WINDOW


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Inside a test: pytest sets standard error again after its fixtures."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_a_line_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    progress.say("reading")
    assert capsys.readouterr() == ("", "reading\n")


def test_nothing_is_shown_where_it_is_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.hidden():
        progress.say("reading")
        with progress.bar("encode", 3, "texts", shown=True) as drawn:
            drawn.update(3)
    progress.say("written")
    assert capsys.readouterr().err == "written\n"


def test_hidden_inside_what_is_not_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.hidden(), progress.hidden(False):
        progress.say("reading")
    assert capsys.readouterr().err == ""


def test_a_closed_stream_ends_no_work() -> None:
    stream = io.StringIO()
    stream.close()
    only_writes = types.SimpleNamespace(write=lambda text: None)
    for broken in (stream, None, only_writes):
        with redirect_stderr(broken):
            progress.say("reading")
            assert not progress.shows_bars()


def test_a_bar_on_a_terminal_and_lines_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with progress.bar("encode", 3, "texts") as drawn:
        progress.say("a step")
        drawn.update(3)
    shown = terminal.getvalue()
    assert "a step\n" in shown
    assert "encode: 100%" in shown


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="pseudo terminals are POSIX's")
def test_a_terminal_without_a_size_has_bars() -> None:
    ours, theirs = os.openpty()  # of 0 columns and 0 lines
    with os.fdopen(ours, "rb", buffering=0) as screen:
        with os.fdopen(theirs, "w") as terminal, redirect_stderr(terminal):
            with progress.bar("encode", 3, "texts") as drawn:
                drawn.update(3)
            print("the end", file=terminal, flush=True)
            shown = b""
            while b"the end" not in shown:  # one read may return a part of what was written
                shown += screen.read(4096)
        assert b"3/3" in shown


def test_no_bar_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bar("encode", 3, "texts") as drawn:
        drawn.update(3)
        drawn.set_postfix_str("half")
    assert capsys.readouterr().err == ""


def test_a_notebook_shows_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = types.SimpleNamespace(kernel=object())
    fake = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", fake)
    assert progress.shows_bars()
    del shell.kernel  # IPython in a terminal; standard error decides
    assert not progress.shows_bars()
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))  # half imported
    assert not progress.shows_bars()


def test_long_calls_want_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    assert wants_bar(None, 500)
    assert not wants_bar(None, 5)
    assert not wants_bar(False, 500)
    assert wants_bar(True, 1)


def test_a_bar_is_drawn_once_the_work_has_taken_long(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    now = 0.0
    # The clock of this module alone: other threads go by the real one.
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: now))
    with progress.bar("encode", 30, "texts", after=2) as drawn:
        drawn.update(10)
        assert terminal.getvalue() == ""
        now = 3.0
        drawn.update(10)
        assert "encode:  67%" in terminal.getvalue()
        drawn.update(10)
    assert "30/30" in terminal.getvalue()
    with progress.bar("encode", 30, "texts", after=2) as drawn:
        drawn.update(30)
    assert terminal.getvalue().count("30/30") == 1


def test_many_texts_are_added_with_a_line(
    tmp_path: Path, mini: Encoder, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["a"] * (WINDOW + 1)
    with Collection.create(tmp_path / "c", encoder=mini) as collection:
        collection.add(range(2), texts[:2])
        collection.add(range(len(texts)), texts, show_progress_bar=False)
        assert capsys.readouterr().err == ""
        added = collection.add(range(len(texts)), texts)
        assert added.rows == len(texts)
        assert capsys.readouterr().err == f"embedding {len(texts):,} texts\n"
        collection.add(range(2), texts[:2], show_progress_bar=True)
        assert "2/2" in capsys.readouterr().err
        with pytest.raises(InputTypeError, match="show_progress_bar"):
            collection.add(range(2), texts[:2], show_progress_bar="yes")  # type: ignore[arg-type]
