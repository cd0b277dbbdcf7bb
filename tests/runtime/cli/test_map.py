"""`flowvec map`: one file, without texts unless they are asked for."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from flowvec import Collection
from tests.conftest import RunCommand

TEXT = "a secret </script><script>alert(1)</script>"


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    made = json.loads(found[1])
    assert isinstance(made, dict)
    return made


def test_a_map_as_one_file(flowvec: RunCommand, tmp_path: Path) -> None:
    with Collection.create(tmp_path / "notes", dim=4) as notes:
        vectors = np.random.default_rng(0).normal(size=(30, 4))
        notes.add_vectors(range(30), vectors, [TEXT] * 30, [{"n": i % 3} for i in range(30)])
    done = flowvec("map", "notes", "-o", "map.html", "--color-by", "n")
    assert (done.returncode, done.stdout) == (0, "map.html: 30 points\n"), done.stderr
    page = (tmp_path / "map.html").read_text()
    data = data_of(page)
    assert data["ids"] == list(range(30))
    assert data["fields"]["n"]["values"] == ["0", "1", "2"]
    assert len(base64.b64decode(data["positions"])) == 30 * 8
    assert "secret" not in page
    # Its policy allows its own script and style, by their hashes, and nothing else.
    policy = re.search(r'content-security-policy" content="([^"]*)"', page)
    script = re.search(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    assert policy is not None
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy[1]
    assert not re.search(r"^(import|export) ", script[1], re.MULTILINE)
    assert not re.search(r"https?://", page)
    for out, said in (("map.html", "--overwrite"), ("notes/map.html", "is in the input")):
        done = flowvec("map", "notes", "-o", out)
        assert (done.returncode, said in done.stderr) == (2, True)
    done = flowvec("map", "notes", "-o", "map.html", "--texts", "--rows", "10", "--overwrite")
    assert done.stdout == "map.html: 10 points\n"
    page = (tmp_path / "map.html").read_text()
    assert data_of(page)["texts"] == [TEXT] * 10
    assert page.count("</script>") == 2


def test_what_it_refuses(flowvec: RunCommand, tmp_path: Path) -> None:
    Collection.create(tmp_path / "notes", dim=2).close()
    done = flowvec("map", "notes", "-o", "map.png")
    assert done.returncode != 0
    assert "the output is an .html file, not map.png" in done.stderr
    done = flowvec("map", "notes", "-o", "map.html", "--color-by", 'a"b')
    assert "cannot be filtered by" in done.stderr
    with Collection.open(tmp_path / "notes") as notes:
        notes.add_vectors([1, 2], np.eye(2), None, [{"n": 1, "list": [2]}] * 2)
    for field in ("m", "list"):
        done = flowvec("map", "notes", "-o", "map.html", "--color-by", field)
        said = f"no row on the map has a text, number or flag in the field '{field}'"
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "map.html").exists()
