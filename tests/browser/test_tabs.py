"""Each tab, used as a person would."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowvec import Collection, Encoder
from flowvec.server import create_app
from tests.browser.conftest import ALLOW_SOFTWARE, PHONE, Visitor, random_vectors
from tests.runtime.server.conftest import Running, running
from tests.waiting import wait_until

LOOKS = [pytest.param(False, id="light"), pytest.param(True, id="dark")]


@pytest.mark.parametrize("dark", LOOKS)
def test_search(server: Running, visitor: Visitor, picture: Any, dark: bool) -> None:
    visit = visitor(server, dark=dark)
    page = visit.page
    visit.open("search")
    visit.shows("What are you looking for?")
    picture(visit, f"search-empty-{'dark' if dark else 'light'}")
    page.get_by_role("searchbox", name="Search").fill("a mouse for research")
    hits = page.get_by_role("list").filter(has=page.locator(".hit")).locator("> li")
    hits.first.wait_for()
    assert hits.count() == 10
    assert any("mouse" in mark.lower() for mark in page.locator("mark").all_inner_texts())
    for reranker in ("tokens", "sorts"):
        page.get_by_role("combobox", name="Rerank").select_option(reranker)
        visit.shows("reranking")
        assert page.locator(".moved").count() == 10
        page.get_by_role("combobox", name="Rerank").select_option("")
        wait_until(lambda: page.locator(".moved").count() == 0)
    slider = page.get_by_role("slider")
    slider.focus()
    slider.press("End")
    visit.shows("meaning alone")
    wait_until(lambda: page.locator(".score .quiet").count() == 0)
    slider.press("ArrowLeft")
    slider.press("ArrowLeft")
    visit.shows("10 % words, 90 % meaning")
    page.get_by_role("button", name="Add a condition").click()
    page.get_by_label("Field 1").select_option("words")
    page.get_by_label("Operator 1").select_option("<")
    page.get_by_label("Value 1").fill("40")
    wait_until(lambda: _words(hits) and all(n < 40 for n in _words(hits)))
    picture(visit, f"search-{'dark' if dark else 'light'}")
    page.get_by_role("button", name="Copy as curl").click()
    copied = page.get_by_role("textbox", name="This search, as a curl command").input_value()
    body = json.loads(copied.partition("-d '")[2].rstrip("'"))
    assert body["filter"] == {"words": {"<": 40}}
    assert (body["hybrid"], body["vector_weight"]) == (True, 0.9)
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Copy as Python").click()
    program = page.locator("dialog textarea").input_value()
    compile(program, "copied", "exec")
    assert _printed(program).count("\n") == 10
    page.keyboard.press("Escape")
    first = hits.first.locator(".id").inner_text()
    page.get_by_role("button", name="More like hit 1", exact=True).click()
    visit.shows("Rows like")
    wait_until(lambda: first not in hits.locator(".id").all_inner_texts())
    page.get_by_label("Value 1").fill("0")
    visit.shows("No row meets the filter")
    page.get_by_role("button", name="Back to the search").click()
    page.get_by_role("button", name="Remove condition 1").click()
    slider.press("Home")
    page.get_by_role("searchbox", name="Search").fill("qqqq")
    visit.shows("No row has one of these words")


def test_search_by_sparse_vectors(server: Running, visitor: Visitor, picture: Any) -> None:
    visit = visitor(server)
    page = visit.page
    visit.open("search")
    page.get_by_role("combobox", name="Collection").select_option("both")
    page.get_by_role("searchbox", name="Search").fill("the cat")
    page.locator(".hit").first.wait_for()
    assert "sparse" not in page.locator(".score .quiet").first.inner_text()
    ranking = page.get_by_role("combobox", name="Rank by")
    ranking.select_option("three")
    side, box = page.locator(".side").bounding_box(), ranking.bounding_box()
    assert box["x"] + box["width"] <= side["x"] + side["width"]
    page.locator(".score .quiet", has_text="sparse").first.wait_for()
    assert page.get_by_role("slider").count() == 0
    picture(visit, "search-three")
    ranking.select_option("sparse")
    wait_until(lambda: page.locator(".score .quiet").count() == 0)
    wait_until(lambda: page.locator(".hit").count() == 10)
    assert page.get_by_role("combobox", name="Rerank").count() == 0
    page.get_by_role("button", name="Copy as Python").click()
    program = page.locator("dialog textarea").input_value()
    assert "/search_sparse" in program
    assert _printed(program).count("\n") == 10
    page.keyboard.press("Escape")
    page.get_by_role("button", name="More like hit 1", exact=True).click()
    visit.shows("Rows like")
    # A collection without a sparse encoder has no such choice.
    page.get_by_role("combobox", name="Collection").select_option("demo")
    page.get_by_role("slider").wait_for()
    assert ranking.count() == 0


def test_filters_stay_inside_their_box(server: Running, visitor: Visitor) -> None:
    visit = visitor(server)
    page = visit.page
    visit.open("search")
    for _ in range(2):
        page.get_by_role("button", name="Add a condition").click()
    page.get_by_text("Rows meet").wait_for()
    edges = page.evaluate(
        "() => [...document.querySelectorAll('.filter, .filter *')]"
        ".map((e) => e.getBoundingClientRect().right)"
    )
    assert max(edges) == edges[0]


def test_a_collection_without_a_model(tmp_path: Any, visitor: Visitor) -> None:
    with Collection.create(tmp_path / "plain", dim=8) as plain:
        plain.add_vectors(["a", "b"], random_vectors(2), ["one", "two"])
        with running(create_app((), (), {"plain": plain})) as server:
            visit = visitor(server)
            visit.open("search")
            visit.shows("This collection has vectors only")
            visit.page.get_by_role("button", name="Show the map").click()
            visit.shows("2 rows.")


def test_no_collection(mini: Encoder, visitor: Visitor) -> None:
    with running(create_app(mini)) as server:
        visit = visitor(server)
        visit.open("search")
        visit.shows("There is no collection yet")
        visit.page.get_by_role("tab", name="Live").click()
        visit.shows("The server now")


def test_choosing_the_open_tab_keeps_it(server: Running, visitor: Visitor) -> None:
    visit = visitor(server)
    visit.open("search")
    visit.page.get_by_role("searchbox", name="Search").fill("a mouse for research")
    for _ in range(2):
        visit.page.get_by_role("tab", name="Search").click()
        visit.shows("10 hits")
    visit.page.get_by_role("tab", name="Live").click()
    visit.shows("The server now")
    visit.page.get_by_role("tab", name="Live").click()
    visit.shows("The server now")


def _words(hits: Any) -> list[int]:
    lines = hits.locator("dl div").filter(has_text="words").locator("dd").all_inner_texts()
    return [int(line) for line in lines if line.isdigit()]


def _printed(program: str) -> str:
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, {})
    return out.getvalue()


@pytest.mark.parametrize("dark", LOOKS)
def test_map(server: Running, visitor: Visitor, picture: Any, dark: bool) -> None:
    visit = visitor(server, dark=dark)
    page = visit.page
    if dark:
        page.add_init_script(ALLOW_SOFTWARE)
    visit.open("map")
    visit.shows("320 rows.")
    canvas = page.locator("canvas")
    assert canvas.get_attribute("data-renderer") == ("WebGL2" if dark else "2D canvas")
    page.get_by_label("Colour by").select_option("first")
    page.get_by_role("list", name="Colours").wait_for()
    page.get_by_role("searchbox").fill("storms and lightning")
    visit.shows("50 of the first 50 hits are lit.")
    visit.settle()
    point = page.evaluate(
        "() => { const s = document.querySelector('canvas').scatter;"
        " return s.placeOf(s.points.lit[0]); }"
    )
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + point["x"], box["y"] + point["y"])
    page.locator(".card .id").wait_for()
    picture(visit, f"map-{'dark' if dark else 'light'}")
    page.get_by_role("button", name="Lasso").click()
    corners = [(0.1, 0.1), (0.9, 0.1), (0.9, 0.9), (0.1, 0.9), (0.1, 0.1)]
    for number, (x, y) in enumerate(corners):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=3)
        if number == 0:
            page.mouse.down()
    page.mouse.up()
    visit.shows("rows selected")
    page.get_by_role("button", name="Copy as JSON").click()
    rows = json.loads(page.locator("dialog textarea").input_value())
    assert {"id", "text", "metadata"} == rows[0].keys()
    page.keyboard.press("Escape")
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download JSON").click()
    assert downloading.value.suggested_filename == "demo.json"


@pytest.mark.parametrize("dark", LOOKS)
def test_live(server: Running, visitor: Visitor, picture: Any, dark: bool) -> None:
    visit = visitor(server, dark=dark)
    page = visit.page
    visit.open("live")
    visit.shows("Texts / s")
    page.locator(".chart canvas").nth(2).wait_for()
    before = int(page.locator(".tile dd.quiet").first.inner_text().split()[0].replace(",", ""))
    with server.client() as client:
        for _ in range(5):
            client.post("/embed", json={"inputs": ["a cat on the river"] * 40})
    wait_until(
        lambda: int(
            page.locator(".tile dd.quiet").first.inner_text().split()[0].replace(",", "")
        ) >= before + 200
    )  # fmt: skip
    # A line needs a few points.
    wait_until(lambda: int(page.locator(".live").get_attribute("data-points")) >= 3)
    page.get_by_role("button", name="Pause").click()
    picture(visit, f"live-{'dark' if dark else 'light'}")


@pytest.mark.parametrize("dark", LOOKS)
def test_space(server: Running, visitor: Visitor, picture: Any, dark: bool) -> None:
    visit = visitor(server, dark=dark)
    page = visit.page
    visit.open("space")
    visit.shows("This model has no transform")
    picture(visit, f"space-none-{'dark' if dark else 'light'}")
    page.get_by_label("Collection").select_option("dense")
    visit.shows("Before the transform")
    visit.shows("dense(")
    assert page.locator(".figures dd").count() == 6
    sides = page.locator(".frame.small")
    sides.first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".reader").inner_text().strip() not in ("", "(no text)")
    picture(visit, f"space-{'dark' if dark else 'light'}")


@pytest.mark.parametrize("dark", LOOKS)
def test_a_phone(server: Running, visitor: Visitor, picture: Any, dark: bool) -> None:
    visit = visitor(server, size=PHONE, dark=dark, has_touch=True, is_mobile=True)
    page = visit.page
    for tab in ("search", "map", "live", "space"):
        visit.open(tab)
        if tab == "search":
            page.get_by_role("searchbox", name="Search").fill("birds")
            page.locator(".hit").first.wait_for()
        if tab == "map":
            visit.shows("320 rows.")
        wait_until(lambda: page.locator("main *").count() > 2)
        # Nothing sticks out to the right.
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        picture(visit, f"phone-{tab}-{'dark' if dark else 'light'}")


def test_an_empty_collection_and_none(server: Running, visitor: Visitor, picture: Any) -> None:
    visit = visitor(server)
    visit.open("search")
    visit.page.get_by_label("Collection").select_option("empty")
    visit.shows("A search finds rows as soon as it has some")
    assert visit.page.get_by_role("searchbox", name="Search").is_disabled()  # it has no model
    visit.page.get_by_role("tab", name="Map").click()
    visit.shows("This collection is empty")
    visit.page.get_by_role("tab", name="Space").click()
    visit.shows("The space cannot be measured")


def test_writing_where_it_is_allowed(server: Running, writable: Running, visitor: Visitor) -> None:
    reader = visitor(server)
    reader.open("search")
    reader.page.get_by_role("searchbox", name="Search").fill("cat")
    reader.page.locator(".hit").first.wait_for()
    for name in ("Add", "Delete"):
        assert reader.page.get_by_role("button", name=name, exact=True).count() == 0
    visit = visitor(writable)
    page = visit.page
    visit.open("search")
    page.get_by_text("Add a row").click()
    page.get_by_label("Id").fill("new")
    page.get_by_label("Text", exact=True).fill("A dog barks.")
    page.get_by_role("button", name="Add", exact=True).click()
    visit.shows("The row was added.")
    page.get_by_role("searchbox", name="Search").fill("a barking dog")
    page.locator(".hit", has_text="A dog barks.").wait_for()
    page.get_by_role("button", name="Delete hit 1").click()
    page.get_by_role("button", name="Really delete hit 1").click()
    page.locator(".hit", has_text="A dog barks.").wait_for(state="detached")
