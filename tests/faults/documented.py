"""Requests that the OpenAPI document allows, and requests that it forbids, by schemathesis.

    python -m tests.faults.documented --requests 2000 --seed 0 [--routes PART]

It needs schemathesis. No answer may be 500, and each must be as the document says.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.core.failures import FailureGroup
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance

from tests.faults.hostile import WORDS
from tests.serving import served

__all__ = ["Result", "campaign"]


@schemathesis.serializer("application/x-ndjson")
def line_of(_: Any, value: Any) -> bytes:
    """A stream of one line."""
    return json.dumps(value).encode()


@schemathesis.deserializer("application/x-ndjson")
def first_line(_: Any, response: Any) -> Any:
    """What a stream of one line answers."""
    return json.loads(response.content.splitlines()[0])


@dataclass
class Result:
    """Counts of a campaign.

    Attributes:
        sent: requests by operation.
        statuses: of answers.
        wrong: requests with an answer that must not be.
    """

    sent: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def aim(case: Any, draw: random.Random) -> None:
    """Name a model and a collection that are there, mostly: the document cannot say which."""
    if draw.random() < 0.1:
        return
    if case.path_parameters:
        case.path_parameters["name"] = "notes" if "collections" in case.path else "mini"
    if isinstance(case.body, dict) and "model" in case.body:
        if "api/" in case.path:
            case.body["model"] = "mini"
        else:
            del case.body["model"]
    if isinstance(case.body, dict) and isinstance(case.body.get("sparse"), str):
        case.body["sparse"] = "words"


def check(case: Any, session: requests.Session, url: str, result: Result) -> None:
    """Send a request, and look at its answer."""
    result.sent[f"{case.method} {case.operation.path}"] += 1
    try:
        answer = case.call(base_url=url, session=session, timeout=60)
    except requests.exceptions.ChunkedEncodingError as error:
        # float32 that ends early has no other way to say so.
        if "format" not in (case.query or {}):
            result.wrong.append(f"{case.as_curl_command()}: {error}")
        return
    status = answer.status_code
    result.statuses[str(status)] += 1
    is_hurried = "x-request-timeout-ms" in (case.headers or {})
    if status >= 500 and not (status == 504 and is_hurried):
        result.wrong.append(f"{case.as_curl_command()}: {status} {answer.text[:300]}")
        return
    try:
        case.validate_response(answer, checks=[response_schema_conformance])
    except FailureGroup as error:
        result.wrong.append(f"{case.as_curl_command()}: {status} {answer.text[:300]}: {error}")


def attack(url: str, examples: int, seed: int, result: Result, part: str) -> None:
    """That many requests of each operation: half of them as documented, half otherwise."""
    draw = random.Random(seed)
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    with requests.Session() as session:
        session.trust_env = False
        for found in schema.get_all_operations():
            operation = found.ok()
            if part not in operation.path:
                continue
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

                @hypothesis.seed(seed)
                @settings(
                    max_examples=max(1, examples // 2), deadline=None, database=None,
                    phases=[Phase.generate], suppress_health_check=list(HealthCheck),
                )  # fmt: skip
                @given(case=operation.as_strategy(generation_mode=mode))
                def sent(case: Any) -> None:
                    aim(case, draw)
                    check(case, session, url, result)

                try:
                    sent()
                except Unsatisfiable:  # a GET without parameters cannot be wrong
                    continue


def campaign(examples: int, seed: int, folder: Path, part: str = "") -> Result:
    """Requests of each operation whose path contains `part`."""
    result = Result()
    with served(folder, *WORDS, "--collection", f"notes={folder / 'notes'}") as (url, process, log):
        attack(url, examples, seed, result, part)
        if process.poll() is not None:
            result.wrong.append(f"the server ended: {process.returncode}")
        if "Traceback" in log.read_text():
            result.wrong.append(log.read_text()[-3000:])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--routes", default="")
    arguments = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        folder = Path(temporary)
        result = campaign(arguments.requests, arguments.seed, folder, arguments.routes)
    figures = {
        "seed": arguments.seed, "operations": len(result.sent), "sent": sum(result.sent.values()),
        "statuses": dict(result.statuses.most_common()), "wrong": len(result.wrong),
        "examples": result.wrong[:10], "fewest": result.sent.most_common()[-3:],
        "seconds": round(time.monotonic() - begun), "when": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip
    print(json.dumps(figures, indent=1))
    if result.wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
