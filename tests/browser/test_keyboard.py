"""The page with a keyboard alone, and what a screen reader is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import Visit, Visitor
from tests.runtime.server.conftest import Running
from tests.waiting import wait_until

# Contrast of every visible text with what is behind it, by WCAG 2.2: the texts below 4.5 (3 if
# they are large), with their ratio. Backgrounds are opaque or not there.
_CONTRAST = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.5) return colour;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].filter((n) => n.nodeType === 3)
      .map((n) => n.data.trim()).join("");
    if (!text || !element.checkVisibility() || element.closest("svg, option, :disabled")) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(numbers(style.color)), light(behind(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) low.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return low;
}"""

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
    wait_until(lambda: "layout" not in page.locator(".stage-line").inner_text())
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
