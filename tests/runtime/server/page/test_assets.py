"""The page's files: for browsers alone, small, and from nowhere else."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from typing import Any

import pytest

from flowvec import Encoder, InputValueError

pytest.importorskip("msgspec", reason="needs the extra [serve]")
pytest.importorskip("starlette", reason="needs the extra [serve]")

from starlette.testclient import TestClient

from flowvec.server import Settings, create_app
from flowvec.server.keys import Key, Keys, make_key
from flowvec.server.page.assets import FOLDER, POLICY

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FILES = [*FOLDER.iterdir(), *(FOLDER / "vendor").iterdir()]
TEXTS = {file.name: file.read_text() for file in FILES if file.is_file()}


@pytest.fixture(scope="module")
def client(mini: Encoder) -> Iterator[Any]:
    with TestClient(create_app(mini)) as client:
        yield client


def test_a_browser_gets_the_page_and_a_probe_its_health(client: Any) -> None:
    page = client.get("/", headers=BROWSER)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"] == POLICY.decode()
    assert "accept" in page.headers["vary"]
    for accept in ("*/*", "application/json", ""):
        probe = client.get("/", headers={"accept": accept})
        assert probe.json() == {"status": "healthy"}
    assert client.head("/", headers=BROWSER).status_code == 200


def test_every_file_that_the_page_names_is_there(client: Any) -> None:
    page = client.get("/", headers=BROWSER).text
    named = set(re.findall(r'(?:src|href)="(page/[^"]+)"', page))
    for name, text in TEXTS.items():
        if name.endswith(".js"):
            named |= {
                f"page/{m}" for m in re.findall(r"""(?:from|import\()\s*["']\./([^"']+)""", text)
            }
            named |= set(re.findall(r'"(page/[^"]+)"', text))
    assert len(named) > 12
    for path in named:
        answer = client.get(f"/{path}")
        assert answer.status_code == 200, path
        assert answer.headers["x-content-type-options"] == "nosniff"
        tag = answer.headers["etag"]
        assert client.get(f"/{path}", headers={"if-none-match": tag}).status_code == 304
    for path in ("page/nothing.js", "page/../assets.py", "page/index.html", "page/"):
        assert client.get(f"/{path}").status_code == 404


def test_what_the_first_tab_takes_is_asked_for_at_once() -> None:
    """Every module that `app.js` imports, by itself or by others, is preloaded; no other one is."""
    wanted, waiting = {"app.js"}, ["app.js"]
    while waiting:
        text = TEXTS[waiting.pop().rpartition("/")[2]]
        new = set(re.findall(r"""^import .*from "\./([^"]+)";""", text, re.MULTILINE)) - wanted
        wanted |= new
        waiting += new
    preloaded = re.findall(r'modulepreload" href="page/([^"]+)"', TEXTS["index.html"])
    assert sorted(preloaded) == sorted(wanted)


def test_all_that_ships_is_below_100_kb_compressed() -> None:
    sizes = {name: len(gzip.compress(text.encode(), 9)) for name, text in TEXTS.items()}
    assert sum(sizes.values()) < 100_000, sizes


def test_nothing_is_loaded_from_elsewhere_and_no_script_is_inline() -> None:
    page = TEXTS["index.html"]
    assert re.findall(r"<script(?![^>]*\ssrc=)", page) == []
    assert not re.search(r"\son\w+=|style=", page)
    assert "unsafe" not in POLICY.decode()
    for name, text in TEXTS.items():
        if not name.startswith(("LICENSE", "uplot.")):  # which names its home
            assert set(re.findall(r"https?://[\w./-]+", text)) <= {"http://www.w3.org/2000/svg"}
    # What would turn a text into markup or a program.
    ours = "".join(
        text for name, text in TEXTS.items() if "uplot" not in name and "htm" not in name
    )
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", ours)
    assert "dangerouslySet" not in ours


def test_licences_of_what_is_not_ours() -> None:
    assert {"LICENSE-htm.txt", "LICENSE-preact.txt", "LICENSE-uplot.txt"} <= TEXTS.keys()


def test_without_a_page(mini: Encoder) -> None:
    with TestClient(create_app(mini, settings=Settings(page=False))) as client:
        assert client.get("/", headers=BROWSER).json() == {"status": "healthy"}
        for path in ("/page/app.js", "/v1/live", "/v1/collections/x/map"):
            assert client.get(path).json()["error"]["message"].startswith("there is no route")
        paths = client.get("/openapi.json").json()["paths"]
        assert "/v1/live" not in paths
        assert "/v1/models" in paths
    with pytest.raises(InputValueError, match="page_may_write"):
        Settings(page=False, page_may_write=True)


def test_the_page_is_open_and_its_data_is_not(mini: Encoder) -> None:
    token, line = make_key("alice")
    keys = Keys([Key("alice", bytes.fromhex(line.rpartition(":")[2]))])
    with TestClient(create_app(mini, settings=Settings(keys=keys))) as client:
        page = client.get("/", headers=BROWSER)
        assert 'data-needs-key="1"' in page.text
        assert 'data-may-write="0"' in page.text
        assert client.get("/page/app.js").status_code == 200
        assert client.get("/v1/live").status_code == 401
        key = {"authorization": f"Bearer {token}"}
        assert client.get("/v1/live", headers=key).status_code == 200
