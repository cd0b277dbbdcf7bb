"""MTEB: an encoder, a cross-encoder, and searches (extra `[mteb]`)."""

from __future__ import annotations

from flowvec.optional import require

require("flowvec.integrations.mteb", "mteb", "mteb")

from flowvec.integrations.mteb.exact_search import FlowvecExactSearch  # noqa: E402
from flowvec.integrations.mteb.models import FlowvecCrossEncoder, FlowvecEncoder  # noqa: E402
from flowvec.integrations.mteb.search import FlowvecSearch  # noqa: E402

__all__ = ["FlowvecCrossEncoder", "FlowvecEncoder", "FlowvecExactSearch", "FlowvecSearch"]
