"""The page with a keyboard alone, and what a screen reader is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Visit, Visitor
from tests.runtime.server.conftest import Running
from tests.waiting import wait_until

_CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")

# Controls without a name that a screen reader could say.
_UNNAMED = """() => [...document.querySelectorAll(
  "button, input, select, textarea, [role=application]")]
  .filter((e) => e.checkVisibility() && !(e.getAttribute("aria-label") || e.labels?.length
    || e.innerText?.trim()))
  .map((e) => e.outerHTML.slice(0, 120))"""


def focused(visit: Visit) -> str:
    """What has the focus, by its name or text."""
    return str(
        visit.page.evaluate(
            "() => { const e = document.activeElement; return e.getAttribute('aria-label')"
            " || e.labels?.[0]?.innerText || e.innerText || e.tagName; }"
        )
    )


def test_from_the_first_key_to_a_hit(server: Running, visitor: Visitor) -> None:
    visit = visitor(server)
    page = visit.page
    visit.open("search")
    wait_until(lambda: focused(visit) == "Search")  # the box has the focus at once
    page.keyboard.type("what makes thunder")
    page.locator(".hit").first.wait_for()
    seen: list[str] = []
    while len(seen) < 40 and "More like hit 1" not in seen:
        page.keyboard.press("Tab")
        seen.append(focused(visit))
        outline = page.evaluate(
            "() => getComputedStyle(document.activeElement).outlineStyle + ' '"
            " + getComputedStyle(document.activeElement).outlineWidth"
        )
        assert outline.startswith(("solid 3px", "auto")), seen[-1]
    assert "Add a condition" in seen
    assert "More like hit 1" in seen
    page.keyboard.press("Enter")
    visit.shows("Rows like")
    page.keyboard.press("Escape")


def test_tabs_by_arrows(server: Running, visitor: Visitor) -> None:
    visit = visitor(server)
    page = visit.page
    visit.open("search")
    page.get_by_role("tab", name="Search").focus()
    for name in ("Map", "Live", "Space", "Search"):
        page.keyboard.press("ArrowRight")
        assert focused(visit) == name
        assert page.get_by_role("tab", name=name).get_attribute("aria-selected") == "true"
    page.keyboard.press("End")
    wait_until(lambda: page.url.endswith("#space"))
    page.keyboard.press("Home")
    page.get_by_role("searchbox", name="Search").wait_for()
    page.get_by_role("tab", name="Search").focus()
    page.keyboard.press("/")
    assert focused(visit) == "Search"


def test_the_map_by_keys(server: Running, visitor: Visitor) -> None:
    visit = visitor(server)
    page = visit.page
    visit.open("map")
    visit.shows("320 rows.")
    page.get_by_role("searchbox").fill("storms")
    visit.shows("50 of the first 50 hits are lit.")
    frame = page.get_by_role("application")
    frame.focus()
    view = "() => ({...document.querySelector('canvas').scatter.view})"
    visit.settle()
    before = page.evaluate(view)
    for key in ("+", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
    after = page.evaluate(view)
    assert after["zoom"] > before["zoom"]
    assert after["x"] < before["x"]
    assert after["y"] > before["y"]
    page.keyboard.press("0")
    page.keyboard.press("n")
    visit.shows("hit 1 of 50")
    page.keyboard.press("n")
    visit.shows("hit 2 of 50")
    page.keyboard.press("s")
    visit.shows("320 rows selected")


# Where the row is that the card shows, and the row itself.
_CARD = """() => {
  const ring = document.querySelector(".ring").style;
  const id = document.querySelector(".card .id").innerText;
  return [parseFloat(ring.left), parseFloat(ring.top), id];
}"""


def test_every_point_is_reached_by_keys_without_a_search(server: Running, visitor: Visitor) -> None:
    visit = visitor(server)
    page = visit.page
    visit.open("map")
    visit.shows("320 rows.")
    visit.settle()
    frame = page.get_by_role("application", name="Map of 320 rows")
    frame.focus()
    page.keyboard.press("Shift+ArrowRight")  # the point in the middle
    page.locator(".card .id").wait_for()
    before = page.evaluate(_CARD)
    for key, axis, sign in [("Right", 0, 1), ("Down", 1, 1), ("Left", 0, -1), ("Up", 1, -1)]:
        page.keyboard.press(f"Shift+Arrow{key}")
        wait_until(lambda old=before: page.evaluate(_CARD)[2] != old[2])
        after = page.evaluate(_CARD)
        assert sign * (after[axis] - before[axis]) > 0, key
        before = after
    page.keyboard.press("Enter")
    visit.shows("1 row selected")
    page.keyboard.press("Enter")
    page.get_by_text("1 row selected").wait_for(state="detached")
    page.keyboard.press("0")
    visit.settle()  # while the view moves, each step counts anew what is in it
    seen = set()
    page.keyboard.press("n")
    visit.shows("point 1 of 320")
    for number in (1, 2, 3, 2, 1, 320):
        visit.shows(f"point {number} of 320")
        seen.add((number, page.evaluate(_CARD)[2]))
        page.keyboard.press("n" if len(seen) < 3 else "p")
    assert len(seen) == 4  # each number is one row
    # A screen reader is told what is to be seen.
    assert page.locator(".unseen").inner_text().startswith("Point ")
    page.keyboard.press("Escape")
    page.locator(".card").wait_for(state="detached")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrast_and_names(server: Running, visitor: Visitor, dark: bool) -> None:
    visit = visitor(server, dark=dark)
    page = visit.page
    for tab, ready in [
        ("search", "What are you looking for?"), ("map", "320 rows."), ("live", "Memory"),
        ("space", "no transform"),
    ]:  # fmt: skip
        visit.open(tab)
        visit.shows(ready)
        if tab == "search":
            page.get_by_role("button", name="Add a condition").click()
            page.get_by_role("combobox", name="Rerank").select_option("sorts")
            page.get_by_role("searchbox", name="Search").fill("thunder")
            page.locator(".moved").first.wait_for()
        assert page.evaluate(_CONTRAST) == [], tab
        assert page.evaluate(_UNNAMED) == [], tab


def test_a_key_is_asked_for_and_kept_in_the_tab(
    mini: Any, visitor: Visitor, picture: Any, tmp_path: Any
) -> None:
    from flowvec import Collection
    from flowvec.server import Settings, create_app
    from flowvec.server.keys import Key, Keys, make_key
    from tests.runtime.server.conftest import running

    token, line = make_key("alice")
    keys = Keys([Key("alice", bytes.fromhex(line.rpartition(":")[2]))])
    with Collection.create(tmp_path / "notes", encoder=mini) as notes:
        notes.add(["a"], ["The cat sleeps."])
        app = create_app(mini, (), {"notes": notes}, settings=Settings(keys=keys))
        with running(app) as server:
            visit = visitor(server)
            page = visit.page
            visit.open("search")
            picture(visit, "key")
            page.get_by_role("textbox", name="Key").fill("wrong")
            page.keyboard.press("Enter")
            visit.shows("The server refused the key.")
            page.get_by_role("textbox", name="Key").fill(token)
            page.keyboard.press("Enter")
            page.get_by_role("searchbox", name="Search").fill("cat")
            page.locator(".hit", has_text="The cat sleeps.").wait_for()
            assert token not in page.url
            stored = page.evaluate(
                "() => [Object.values(sessionStorage), Object.values(localStorage),"
                " document.cookie]"
            )
            assert stored == [[token], [], ""]
            page.reload()
            page.get_by_role("searchbox", name="Search").wait_for()
            page.get_by_role("tab", name="Live").click()
            visit.shows("Memory")
