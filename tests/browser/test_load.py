"""The page beside a server that is overloaded or gone, with many points, and its first paint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flowvec import Collection, Encoder
from flowvec.server import Settings, create_app
from tests.browser.conftest import ALLOW_SOFTWARE, Visitor
from tests.runtime.server.conftest import Running, running
from tests.waiting import wait_until

# Draws seeded points, moves the map in every frame, and lets it be still; gives milliseconds
# between frames, and how many points were drawn: least while it moved, and in the end.
_FRAMES = """async ([points, withoutWebGL]) => {
  const { Scatter } = await import("/page/scatter.js");
  const place = document.createElement("div");
  Object.assign(place.style, { position: "fixed", inset: 0, width: "1000px", height: "700px" });
  place.className = "frame";
  document.body.append(place);
  const scatter = new Scatter(place, { withoutWebGL });
  let state = 1;
  const random = () => { state = (state * 48271) % 2147483647; return state / 2147483647; };
  scatter.setPositions(Float32Array.from({ length: 2 * points }, random));
  scatter.setCodes(Uint8Array.from({ length: points }, () => random() * 12));
  scatter.setPalette(new Uint8Array(2048).map(() => 200));
  scatter.light(Array.from({ length: 50 }, (_, i) => i));
  scatter.resize();
  scatter.fit();
  const times = [];
  let least = points;
  let last = await new Promise(requestAnimationFrame);
  for (let i = 0; i < 30; i += 1) {
    scatter.pan(Math.sin(i) * 9, Math.cos(i) * 9);
    const now = await new Promise(requestAnimationFrame);
    least = Math.min(least, scatter.drawn);
    times.push(now - last);
    last = now;
  }
  while (scatter.moving.timer || scatter.isAsked) await new Promise(requestAnimationFrame);
  const [kind, width, drawn] = [scatter.kind, scatter.canvas.width, scatter.drawn];
  scatter.close();
  place.remove();
  return { kind, width, least, drawn, times: times.sort((a, b) => a - b) };
}"""
# A browser tells of a paint some time after it.
_FIRST_PAINT = """() => new Promise((done) => new PerformanceObserver((list) => list.getEntries()
  .filter((entry) => entry.name === "first-contentful-paint")
  .forEach((entry) => done(entry.startTime))).observe({ type: "paint", buffered: true }))"""
_SIZES = """async (cases) => {
  const { sampleSize } = await import("/page/scatter.js");
  return cases.map(([most, points, ms]) => sampleSize(most ?? Infinity, points, ms));
}"""


def _report(name: str, figures: dict[str, Any]) -> None:
    print(name, json.dumps(figures))
    folder = os.environ.get("FLOWVEC_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")


@pytest.mark.parametrize("without_webgl", [False, True], ids=["webgl", "canvas"])
def test_a_hundred_thousand_points(server: Running, visitor: Visitor, without_webgl: bool) -> None:
    visit = visitor(server)
    visit.page.add_init_script(ALLOW_SOFTWARE)
    visit.open("search")
    found = visit.page.evaluate(_FRAMES, [100_000, without_webgl])
    assert found["kind"] == ("2D canvas" if without_webgl else "WebGL2")
    assert found["width"] > 900
    assert found["drawn"] == 100_000  # whatever was left out while it moved
    times = found["times"]
    figures = {
        "points": 100_000,
        "median_ms": times[15],
        "p95_ms": times[28],
        "least_points_while_moving": found["least"],
    }
    _report(f"frames-{'canvas' if without_webgl else 'webgl'}", figures)


def test_slow_frames_have_fewer_points(server: Running, visitor: Visitor) -> None:
    visit = visitor(server)
    visit.open("search")
    slow, slower, least, few, quick, steady, full = visit.page.evaluate(
        _SIZES,
        [
            [None, 100_000, 40], [None, 100_000, 300], [2_000, 100_000, 300], [None, 50, 300],
            [10_000, 100_000, 16.7], [10_000, 100_000, 25], [99_999, 100_000, 16.7],
        ],
    )  # fmt: skip
    assert 25_000 <= slower < slow < 100_000
    assert (least, few, steady, full) == (2_000, 50, 10_000, 100_000)
    assert 10_000 < quick < 20_000


def test_first_paint(server: Running, visitor: Visitor) -> None:
    visit = visitor(server)
    visit.open("search")
    visit.shows("What are you looking for?")
    milliseconds = visit.page.evaluate(_FIRST_PAINT)
    assert milliseconds > 0
    _report("paint", {"first-contentful-paint": milliseconds})


def test_an_overloaded_server_is_said_to_be_one(
    mini: Encoder, visitor: Visitor, picture: Any, tmp_path: Path
) -> None:
    with Collection.create(tmp_path / "notes", encoder=mini) as notes:
        notes.add(["a"], ["The cat sleeps."])
        app = create_app(mini, (), {"notes": notes}, settings=Settings(max_unsent_bytes=100))
        with running(app) as server:
            app.served.unsent_bytes = 1000  # as if callers did not read their answers
            visit = visitor(server)
            page = visit.page
            visit.open("search")
            page.get_by_role("searchbox", name="Search").fill("cat")
            problem = page.get_by_role("alert")
            problem.wait_for()
            assert "The server is busy" in problem.inner_text()
            picture(visit, "overloaded")
            app.served.unsent_bytes = 0
            page.get_by_role("button", name="Try again").click()
            page.locator(".hit").first.wait_for()
            wait_until(lambda: problem.count() == 0)
            # The map stays while the hits to light up on it are refused.
            app.served.unsent_bytes = 1000
            visit.open("map")
            visit.shows("1 row.")
            page.get_by_role("searchbox").fill("mat")
            problem.wait_for()
            assert "The server is busy" in problem.inner_text()
            assert page.locator("canvas").is_visible()
            app.served.unsent_bytes = 0
            page.get_by_role("button", name="Try again").click()
            visit.shows("1 of the first 50 hits are lit.")
            wait_until(lambda: problem.count() == 0)
            # A server that is about to stop says so, until another has taken its place.
            app.served.is_stopping = True
            visit.open("search")
            page.get_by_role("searchbox", name="Search").fill("mat")
            visit.shows("The server takes no work at the moment")
            app.served.is_stopping = False
            page.get_by_role("button", name="Try again").click()
            page.locator(".hit").first.wait_for()
        # The server is gone: the page says so, and stays.
        page.get_by_role("searchbox", name="Search").fill("dog")
        visit.shows("The server does not answer")
        picture(visit, "gone")
