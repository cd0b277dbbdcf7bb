"""Exports of these tests share their traces, see `tests/trace_memo.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests import trace_memo

# Two files run at a time, and what torch does here is small.
torch.set_num_threads(1)


@pytest.fixture
def flowvec(flowvec_quickly):
    return flowvec_quickly


@pytest.fixture(autouse=True, scope="session")
def _traces_are_remembered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with trace_memo.traces_are_remembered(tmp_path_factory):
        yield
