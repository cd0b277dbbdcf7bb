"""The campaign of schemathesis against the OpenAPI document, in short."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("schemathesis", reason="needs schemathesis, which has its environment")

from tests.faults import documented


def test_no_request_of_any_form_is_an_internal_error(tmp_path: Path) -> None:
    result = documented.campaign(8, int(os.environ.get("FLOWVEC_SEED", "1")), tmp_path)
    assert not result.wrong, result.wrong[:3]
    assert sum(result.sent.values()) > 150
    assert result.statuses["200"] > 0
    assert result.statuses["400"] > 0
