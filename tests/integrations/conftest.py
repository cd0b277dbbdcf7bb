"""What the tests of integrations share. Each is skipped where its library is not installed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

# The libraries reach no network, and report nothing.
os.environ.update(
    ANONYMIZED_TELEMETRY="False",
    DSPY_CACHEDIR=str(Path(tempfile.gettempdir(), "flowvec-dspy-cache")),
    HAYSTACK_TELEMETRY_ENABLED="False",
    LANGSMITH_TRACING="false",
    LITELLM_LOCAL_MODEL_COST_MAP="True",
)


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> None:
    """Run asynchronous tests of the official suites, which carry no mark."""
    if hasattr(collector.config.option, "asyncio_mode"):
        collector.config.option.asyncio_mode = "auto"
