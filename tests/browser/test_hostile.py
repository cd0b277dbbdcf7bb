"""Rows that hold anything: nothing runs, nothing turns the page around, and nothing freezes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowvec import Collection, Encoder
from flowvec.server import Settings, create_app
from tests.browser.conftest import PHONE, Visitor, random_vectors
from tests.runtime.server.conftest import Running, running

SCRIPTS = [
    "<script>window.ran=1</script>",
    "<img src=x onerror='window.ran=1'>",
    "<svg onload=window.ran=1>",
    "\"><iframe srcdoc='<script>parent.ran=1</script>'>",
    "javascript:window.ran=1",
    "</script><script>window.ran=1</script>",
    "${window.ran=1} {{window.ran=1}} `;window.ran=1//",
    "__proto__",
]
BIDI = "safe\u202egnp.exe \u2066\u2067 \u200f\u202d end"
LONG = "x" * 10_000_000


@pytest.fixture(scope="module")
def hostile(mini: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("hostile")
    with (
        Collection.create(folder / "rows", encoder=mini) as rows,
        Collection.create(folder / "long", dim=8) as long,
        Collection.create(folder / "wide", dim=8) as wide,
    ):
        texts = [f"thunder {text}" for text in [*SCRIPTS, BIDI]]
        metadata = [
            {text.replace('"', "'").replace("\\", "/"): text, "field": text} for text in texts
        ]
        rows.add([f"id {text}" for text in texts], texts, metadata)
        long.add_vectors(
            ["a", "b" * 100_000],
            random_vectors(2),
            [LONG, LONG[:1000] + "\n" * 100_000],
            [{"long": LONG, "list": ["y" * 1000] * 10_000}, {"field " + "n" * 100_000: 1}],
        )
        count = 20_000
        wide.add_vectors(
            range(count),
            random_vectors(count),
            ["word"] * count,
            [
                {
                    "distinct": f"value {i}",
                    "million": [f"{i} {j}" for j in range(50)],
                    **{f"f{i}-{j}": j for j in range(5)},
                }
                for i in range(count)
            ],
        )
        app = create_app(
            {"mini<b>": mini}, (), {"rows": rows, "long": long, "wide": wide},
            settings=Settings(page_may_write=True),
        )  # fmt: skip
        with running(app) as server:
            yield server


def test_nothing_runs(hostile: Running, visitor: Visitor, picture: Any) -> None:
    visit = visitor(hostile)
    page = visit.page
    visit.open("search")
    page.get_by_role("searchbox", name="Search").fill("thunder <script>window.ran=1</script>")
    page.locator(".hit").nth(len(SCRIPTS)).wait_for()
    for text in SCRIPTS:
        assert page.locator(".hit .text", has_text=text).count() >= 1
    for name in ("Add a condition", "Copy as curl"):
        page.get_by_role("button", name=name).click()
    page.get_by_role("button", name="Close").click()
    picture(visit, "hostile")
    # Marks that turn direction are shown, and what is beside a text stays where it is.
    assert page.locator(".hit .text", has_text="⟨202E⟩").count() == 1
    assert page.locator("main img, main iframe, main script, main svg").count() == 0
    for tab in ("map", "space"):
        visit.open(tab)
        if tab == "map":
            visit.shows("9 rows.")
            visit.settle()
            page.get_by_label("Colour by").select_option("field")
            page.get_by_role("list", name="Colours").wait_for()
            page.get_by_role("application").press("s")
            visit.shows("9 rows selected")
        else:
            visit.shows("mini<b>")
    assert page.evaluate("window.ran") is None
    assert page.evaluate("({}).ran") is None


def test_long_lines_do_not_freeze_it(hostile: Running, visitor: Visitor) -> None:
    visit = visitor(hostile)
    page = visit.page
    visit.open("map")
    page.get_by_role("combobox", name="Collection").select_option("long")
    visit.shows("2 rows.")
    visit.settle()
    page.get_by_role("application").press("s")
    visit.shows("2 rows selected")
    assert _answers(page)
    page.get_by_role("button", name="Copy as JSON").click()
    assert len(json.loads(page.locator("dialog textarea").input_value())) == 2
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Search").click()
    page.get_by_text("Add a row").wait_for(state="detached")  # it has no model
    with hostile.client() as client:  # what the page asks for is small
        answer = client.post(
            "/v1/collections/long/search", json={"vector": [1.0] * 8, "text_limit": 4000}
        )
    assert len(answer.content) < 300_000
    assert _answers(page)


def test_many_distinct_values_and_fields(hostile: Running, visitor: Visitor) -> None:
    visit = visitor(hostile)
    page = visit.page
    visit.open("map")
    page.get_by_role("combobox", name="Collection").select_option("wide")
    visit.shows("20,000 rows")
    chooser = page.get_by_label("Colour by")
    assert chooser.locator("option").count() <= 65
    chooser.select_option("distinct")
    visit.shows("19,988 more values, in grey")
    chooser.select_option("million")  # values of all rows together
    visit.shows("No row here has one text, number or flag in this field.")
    assert _answers(page)
    page.get_by_role("tab", name="Search").click()
    page.get_by_role("button", name="Add a condition").click()
    page.get_by_label("Field 1").select_option("million")
    assert 0 < page.locator("datalist option").count() <= 24
    assert _answers(page)


def _answers(page: Any) -> bool:
    """Whether a script gets its turn, and a frame is drawn."""
    return bool(
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => done(true)))")
    )


def test_a_map_in_one_file(
    mini: Encoder, visitor: Visitor, hostile: Running, tmp_path: Path
) -> None:
    from flowvec.projection import map_frames
    from flowvec.projection.map_file import map_page

    with Collection.create(tmp_path / "rows", encoder=mini) as rows:
        rows.add(SCRIPTS, SCRIPTS, [{"kind": text} for text in SCRIPTS])
        *_, frame = map_frames(rows)
        title = SCRIPTS[0]
        secret = map_page(rows, frame, title=title, fields=["kind"], has_texts=False)
        whole = map_page(rows, frame, title=title, fields=["kind"], has_texts=True)
    assert set(_data_of(whole)) - set(_data_of(secret)) == {"texts"}
    out = tmp_path / "map.html"
    out.write_text(whole)
    visit = visitor(hostile)
    page = visit.page
    page.goto(out.as_uri())
    visit.problems.clear()  # the file itself is "elsewhere"
    page.get_by_role("application").wait_for()
    page.get_by_label("Colour by").select_option("kind")
    page.get_by_role("searchbox").fill("onerror")
    visit.shows("1 lit")
    assert page.locator("h1").inner_text() == title
    # Keys come to points, and a screen reader is told their rows.
    page.get_by_role("application").focus()
    for key in ("n", "Shift+ArrowLeft", "p"):
        page.keyboard.press(key)
        said = page.locator(".unseen").inner_text()
        assert said.startswith(page.locator(".card b").inner_text())
    page.keyboard.press("Escape")
    assert not page.locator(".card").is_visible()
    assert page.evaluate("window.ran") is None
    # On a phone a tap shows a row, across the map, and a drag hides it.
    visit = visitor(hostile, size=PHONE, has_touch=True)
    page = visit.page
    page.goto(out.as_uri())
    visit.problems.clear()
    frame = page.get_by_role("application")
    frame.wait_for()
    box = frame.bounding_box()
    frame.focus()
    page.keyboard.press("n")
    ring = page.locator(".ring").bounding_box()
    page.keyboard.press("Escape")
    page.touchscreen.tap(ring["x"] + ring["width"] / 2, ring["y"] + ring["height"] / 2)
    card = page.locator(".card.wide").bounding_box()
    assert box["x"] <= card["x"] <= box["x"] + box["width"] - card["width"]
    assert box["y"] <= card["y"] <= box["y"] + box["height"] - card["height"]
    assert page.evaluate("window.ran") is None


def _data_of(page: str) -> dict[str, Any]:
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert isinstance(data, dict)
    return data
