"""Exports of these tests share their traces, see `tests/trace_memo.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowvec_export import torch_draft

from .. import trace_memo


@pytest.fixture(autouse=True, scope="session")
def _traces_are_remembered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_draft, "to_onnx", trace_memo.remembering(torch_draft.to_onnx))
        yield
