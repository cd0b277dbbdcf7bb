"""wrk, an independent load generator: what it says of the same calls."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowvec.errors import FlowvecError
from flowvec_bench.workers.http_routes import ROUTES

__all__ = ["WrkError", "has_wrk", "parsed_rate", "wrk_calls_per_second"]

_SCRIPT = """\
local bodies, place = {}, 0
for line in io.lines("%s") do bodies[#bodies + 1] = line end
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
request = function()
  place = place + 1
  return wrk.format(nil, nil, nil, bodies[place %% #bodies + 1])
end
"""


class WrkError(FlowvecError, RuntimeError):
    """wrk failed."""


def has_wrk() -> bool:
    """Whether it is installed."""
    return shutil.which("wrk") is not None


def wrk_calls_per_second(
    target: Mapping[str, Any], texts: Path, callers: int, seconds: float, folder: Path
) -> float:
    """Calls per second of callers who each wait for their answer, by one thread of wrk.

    Args:
        target: where calls are sent, see `flowvec_bench.workers.http_load`.
        texts: a JSON file with a list of texts for each call.
        callers: connections.
        seconds: duration.
        folder: folder for temporary files.

    Raises:
        WrkError: it failed, or an answer had another status than 200.
    """
    route = ROUTES[target["route"]]
    groups = json.loads(texts.read_text(encoding="utf-8"))
    bodies = folder / "wrk-bodies.txt"
    lines = [json.dumps(route.body(group, target["model"])) for group in groups]
    bodies.write_text("\n".join(lines) + "\n", encoding="ascii")
    script = folder / "wrk.lua"
    script.write_text(_SCRIPT % bodies, encoding="utf-8")
    headers = [part for k, v in target["headers"].items() for part in ("-H", f"{k}: {v}")]
    url = f"http://{target['host']}:{target['port']}{target['path']}"
    program = shutil.which("wrk") or "wrk"
    done = subprocess.run(
        [program, "-t1", f"-c{callers}", f"-d{max(1, round(seconds))}s", "--timeout", "60s",
         "-s", str(script), *headers, url],
        capture_output=True,
        text=True,
    )  # fmt: skip
    return parsed_rate(done.stdout, done.stderr)


def parsed_rate(printed: str, errors: str) -> float:
    """Calls per second, from what wrk printed; WrkError if a call failed."""
    rate = re.search(r"^Requests/sec:\s*([\d.]+)", printed, re.MULTILINE)
    if rate is None:
        raise WrkError(f"wrk failed: {(errors or printed).strip()[-200:]}")
    if wrong := re.search(r"Non-2xx or 3xx responses: (\d+)", printed):
        raise WrkError(f"{wrong[1]} answers to wrk had another status than 200")
    return float(rate[1])
