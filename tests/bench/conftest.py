"""Exports of these tests share their traces, see `tests/trace_memo.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from flowvec import MultiVectorEncoder, SparseEncoder
from tests import trace_memo

# Two files run at a time, and what torch does here is small.
torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _traces_are_remembered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with trace_memo.traces_are_remembered(tmp_path_factory):
        yield


@pytest.fixture(scope="session")
def sparse(sparse_dir: Path) -> Iterator[SparseEncoder]:
    with SparseEncoder.load(sparse_dir, provider="cpu", streams=2) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def multi_vector(multi_vector_dir: Path) -> Iterator[MultiVectorEncoder]:
    with MultiVectorEncoder.load(multi_vector_dir, provider="cpu", streams=2) as loaded:
        yield loaded
