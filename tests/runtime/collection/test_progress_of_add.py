"""The progress bar of `Collection.add`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flowvec import Collection, Encoder, InputTypeError
from flowvec.encoder.loaded_model import wants_bar


def test_adding_texts_shows_a_bar_if_it_is_asked_for(
    tmp_path: Path, tiny: Encoder, capsys: pytest.CaptureFixture[str]
) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        ids, texts = list(range(5000)), ["the cat"] * 5000
        c.add(ids, texts)  # standard error is not a terminal here
        c.add(ids[:9], texts[:9], show_progress_bar=False)
        assert capsys.readouterr().err == ""
        c.add(ids, texts, show_progress_bar=True)
        assert "5000/5000" in capsys.readouterr().err
        with pytest.raises(InputTypeError, match="show_progress_bar"):
            c.add(ids, texts, show_progress_bar="yes")  # type: ignore[arg-type]


def test_a_notebook_shows_bars_as_a_terminal_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not wants_bar(None, 5000)
    for config, is_shown in ({}, False), ({"IPKernelApp": {}}, True):
        shell = SimpleNamespace(config=config)
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda s=shell: s))
        assert wants_bar(None, 5000) == is_shown
        assert not wants_bar(None, 5)
        assert not wants_bar(False, 5000)
