"""`/docs`: a page that shows and calls every route, and loads nothing from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server.routes import ROUTES
from flowvec.server.viewer.files import FOLDER

NODE = shutil.which("node")


def test_it_is_small_and_its_own(client: Any) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    files = [*re.findall(r'(?:src|href)="([^"]+)"', page.text)]
    assert len(files) == 2
    size = len(page.content)
    for name in files:
        answer = client.get(f"/{name}")
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"
        tag = answer.headers["etag"]
        again = client.get(f"/{name}", headers={"if-none-match": tag})
        assert (again.status_code, again.content) == (304, b"")
        size += len(answer.content)
        assert "//" not in re.sub(r"^\s*//.*$|; // .*$", "", answer.text, flags=re.M)
    assert size < 300_000
    assert client.get("/docs/nothing").status_code == 404


def test_its_policy_forbids_what_it_does_not_need(client: Any) -> None:
    page = client.get("/docs")
    policy = dict(
        part.split(" ", 1) for part in page.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert {policy[k] for k in ("script-src", "style-src", "connect-src")} == {"'self'"}
    # Nothing in it needs more: no inline script or style, no handler, no markup from texts.
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=", page.text)
    script = client.get("/docs/viewer.js").text
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|\.style\b", script
    )


@pytest.mark.process
@pytest.mark.skipif(NODE is None, reason="needs node")
def test_it_shows_every_route_and_calls_it(client: Any, server: Any, tmp_path: Path) -> None:
    """In node, with as much of a document as the script uses."""
    assert NODE is not None
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(str(FOLDER / "viewer.js"), tmp_path / "viewer.js")
    shutil.copy(Path(__file__).with_name("viewer_in_node.js"), tmp_path / "run.js")
    done = subprocess.run(
        [NODE, "run.js", server.url], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert sorted(shown["routes"]) == sorted(
        f"{route.method} {route.path.replace('*}', '}')}" for route in ROUTES
    )
    for name in ("/embed", "/v1/embeddings", "/v1/embed-stream", "/similarity"):
        assert shown["answers"][f"POST {name}"].startswith("200 "), shown["answers"]
    assert "flowvec-fingerprint" in shown["answers"]["POST /embed"]
    assert shown["filtered"] == ["POST /v1/embed-stream"]
