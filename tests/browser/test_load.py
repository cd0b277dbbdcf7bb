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

# Draws seeded points and moves the map; gives seconds of each frame.
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
  const pixel = new Uint8Array(4);
  const times = [];
  for (let i = 0; i < 30; i += 1) {
    await new Promise(requestAnimationFrame);
    const began = performance.now();
    scatter.pan(Math.sin(i) * 9, Math.cos(i) * 9);
    scatter.draw();
    // Reading a pixel waits until the frame is drawn.
    const { gl, context } = scatter.renderer;
    if (gl) gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, pixel);
    else context.getImageData(0, 0, 1, 1);
    times.push(performance.now() - began);
  }
  const kind = scatter.kind;
  const drawn = scatter.canvas.width;
  scatter.close();
  place.remove();
  return { kind, drawn, times: times.sort((a, b) => a - b) };
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
    assert found["drawn"] > 900
    times = found["times"]
    figures = {"points": 100_000, "median_ms": times[15], "p95_ms": times[28]}
    _report(f"frames-{'canvas' if without_webgl else 'webgl'}", figures)


def test_first_paint(server: Running, visitor: Visitor) -> None:
    visit = visitor(server)
    visit.open("search")
    visit.shows("What are you looking for?")
    figures = visit.page.evaluate(
        "() => Object.fromEntries(performance.getEntriesByType('paint')"
        ".map((entry) => [entry.name, entry.startTime]))"
    )
    assert "first-contentful-paint" in figures
    _report("paint", figures)


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
            assert problem.count() == 0
        # The server is gone: the page says so, and stays.
        page.get_by_role("searchbox", name="Search").fill("dog")
        visit.shows("The server does not answer")
        picture(visit, "gone")
