"""Fixtures for tests of the runtime."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def arrow() -> Any:
    return pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")
