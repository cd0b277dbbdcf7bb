"""Fixtures for tests of the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def arrow() -> Any:
    return pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of tuned settings and proofs."""
    monkeypatch.setenv("FLOWVEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
