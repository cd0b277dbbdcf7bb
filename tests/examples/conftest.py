"""Exports of these tests share their traces, see `tests/trace_memo.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="needs the extra [export]")

from tests import trace_memo


@pytest.fixture(autouse=True, scope="session")
def _traces_are_remembered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with trace_memo.traces_are_remembered(tmp_path_factory):
        yield
