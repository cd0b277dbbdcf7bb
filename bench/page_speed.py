"""Measures the page in a browser: first paint, frames of the map, and a map from start to end.

    python bench/page_speed.py --collection FOLDER [--texts wiki.txt.xz --rows 100000]
        [--only paint frames map] [--out page.json]

FOLDER is made from the texts with `mini` if it does not exist, with a field of distinct values. The
server runs as a process of its own, on loopback; Chromium is the system's, headless. It renders in
software in two ways: as it does by itself on a machine without a graphics card, and with a graphics
card that is computed (SwiftShader). Needs the extras [serve], [browser] and [bench].
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import sync_playwright

from flowvec import Collection, Encoder
from flowvec_bench.texts import natural_sentences

PORT = 18_765
URL = f"http://127.0.0.1:{PORT}"
BROWSERS = {
    "no graphics card": ["--no-sandbox", "--disable-gpu"],
    "SwiftShader": [
        "--no-sandbox",
        "--use-gl=angle",
        "--use-angle=swiftshader",
        "--enable-unsafe-swiftshader",
    ],
}
# The page writes pixels where WebGL is in software. Without the name of the renderer it uses WebGL.
HIDE_RENDERER = """
const given = WebGL2RenderingContext.prototype.getExtension;
WebGL2RenderingContext.prototype.getExtension = function (name) {
  return name === "WEBGL_debug_renderer_info" ? null : given.call(this, name);
};
"""
PAINT = """async () => ({
  "first paint": await new Promise((done) => new PerformanceObserver((list) => list.getEntries()
    .filter((e) => e.name === "first-contentful-paint").forEach((e) => done(e.startTime)))
    .observe({ type: "paint", buffered: true })),
  loaded: performance.getEntriesByType("navigation")[0].loadEventEnd,
  bytes: performance.getEntriesByType("resource").reduce((sum, e) => sum + e.transferSize, 0),
})"""
# Moves the map in every frame, as a hand would, and gives milliseconds between frames.
MOVE = """async (seconds) => {
  const { scatter } = document.querySelector("canvas");
  scatter.fit();
  const times = [];
  let last = await new Promise(requestAnimationFrame);
  const end = last + 1000 * seconds;
  while (last < end) {
    scatter.pan(6 * Math.sin(last / 300), 6 * Math.cos(last / 300));
    const now = await new Promise(requestAnimationFrame);
    times.push(now - last);
    last = now;
  }
  return times;
}"""


def main() -> None:
    """Print the figures, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collection", type=Path, required=True)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--only", nargs="+", default=["paint", "frames", "map"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not arguments.collection.exists():
        build(arguments.collection, arguments.texts, arguments.rows)
    measures = {"paint": paint, "map": whole_map, "frames": frames}
    found: dict[str, Any] = {"processors": os.cpu_count()}
    with served(arguments.collection) as process, sync_playwright() as engine:
        for way, options in BROWSERS.items():
            browser = engine.chromium.launch(executable_path=shutil.which("chromium"), args=options)
            found["chromium"] = browser.version
            for name, measure in measures.items():
                if name in arguments.only and (name != "map" or way == "no graphics card"):
                    found[f"{name}, {way}"] = measure(browser, process.pid)
                    print(f"{name}, {way}", json.dumps(found[f"{name}, {way}"]), flush=True)
            browser.close()
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


def build(folder: Path, texts: Path, rows: int) -> None:
    """A collection of sentences; each row has a value of its own."""
    sentences = list(islice(natural_sentences(texts), rows))
    with Encoder.load("mini") as encoder, Collection.create(folder, encoder=encoder) as made:
        for start in range(0, rows, 1000):
            part = sentences[start : start + 1000]
            about = [
                {"distinct": f"value {i}", "words": len(text.split()), "first": text[0]}
                for i, text in enumerate(part, start)
            ]
            made.add(range(start, start + len(part)), part, about)
        made.prepare()


@contextmanager
def served(folder: Path) -> Iterator[Any]:
    """A server of the collection, until the end of the block."""
    program = "from flowvec_command import main; main()"
    options = ["serve", "mini", "--collection", f"big={folder}", "--port", str(PORT)]
    process = subprocess.Popen([sys.executable, "-c", program, *options])  # noqa: S603
    try:
        while process.poll() is None:
            try:
                httpx.get(f"{URL}/health").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.05)
        else:
            raise SystemExit("the server ended")
        yield process
    finally:
        process.terminate()
        process.wait()


def opened(browser: Any, tab: str, script: str | None = None) -> Any:
    """A tab of the page, in a browser's profile of its own: nothing is cached."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(300_000)
    if script:
        page.add_init_script(script)
    page.goto(f"{URL}/#{tab}")
    return page


def paint(browser: Any, _pid: int) -> dict[str, Any]:
    """Milliseconds until something is painted, and until the search box is there; ten visits."""
    rows = []
    for _ in range(10):
        began = time.perf_counter()
        page = opened(browser, "search")
        page.get_by_role("searchbox").wait_for()
        rows.append(page.evaluate(PAINT) | {"search box": 1000 * (time.perf_counter() - began)})
        page.context.close()
    return {
        name: [round(pick(row[name] for row in rows)) for pick in (statistics.median, max)]
        for name in rows[0]
    }


def frames(browser: Any, _pid: int) -> dict[str, Any]:
    """Frames a second while the map moves, for each way of drawing that the browser has."""
    found = {}
    for name, script in (("pixels", None), ("WebGL in software", HIDE_RENDERER)):
        page = opened(browser, "map", script)
        page.get_by_role("button", name="Lay out again").wait_for()
        if name != "pixels" and page.locator("canvas").get_attribute("data-renderer") != "WebGL2":
            page.context.close()
            continue
        times = sorted(page.evaluate(MOVE, 5))
        scatter = page.evaluate(
            "() => { const { scatter } = document.querySelector('canvas');"
            " return [scatter.kind, scatter.points.codes.length, scatter.canvas.width,"
            " scatter.canvas.height, scatter.moving.most]; }"
        )
        found[name] = {
            "frames a second": round(1000 * len(times) / sum(times), 1),
            "p50 ms": round(times[len(times) // 2], 1),
            "p95 ms": round(times[int(0.95 * len(times))], 1),
            "renderer, points, width, height, drawn while moving": scatter,
        }
        page.context.close()
    return found


def memory(pid: int, name: str) -> int:
    """A figure of a process's memory in MiB; `RssAnon` leaves out files, such as vectors."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) // 1024


def whole_map(browser: Any, pid: int) -> dict[str, Any]:
    """Seconds of each stage, the server's memory, and what other callers waited meanwhile."""
    httpx.delete(f"{URL}/v1/collections/big/map")
    httpx.post(f"{URL}/v1/collections/big/search", json={"query": "warm"}, timeout=60)
    before, peak, began = memory(pid, "RssAnon"), 0, time.perf_counter()
    page = opened(browser, "map")
    stages: dict[str, float] = {}
    waits: dict[str, list[float]] = {"health": [], "search": []}
    said: list[str] = []
    with httpx.Client(base_url=URL, timeout=60) as client:
        while "done" not in stages:
            for name, call in (
                ("health", lambda: client.get("/health")),
                ("search", lambda: client.post(
                    "/v1/collections/big/search", json={"query": "a river in spring", "k": 10})),
            ):  # fmt: skip
                started = time.perf_counter()
                call().raise_for_status()
                waits[name].append(1000 * (time.perf_counter() - started))
            peak = max(peak, memory(pid, "RssAnon"))
            state = client.get("/v1/collections/big/map").json()
            stages.setdefault(state["stage"], round(time.perf_counter() - began, 2))
            if page.locator(".stage-line").count():
                stages.setdefault("points in the page", round(time.perf_counter() - began, 2))
                line = page.locator(".stage-line p").inner_text()
                said += [line] if line not in said else []
            time.sleep(0.05)
    page.get_by_role("button", name="Lay out again").wait_for()
    started = time.perf_counter()
    page.get_by_label("Colour by").select_option("distinct")
    page.get_by_text("more values, in grey").wait_for()
    coloured = time.perf_counter() - started
    figures = {
        "points": state["points"],
        "seconds": stages,
        "MiB before, peak, after": [before, peak, memory(pid, "RssAnon")],
        "ms p50, max": {
            name: [round(statistics.median(v), 1), round(max(v), 1)] for name, v in waits.items()
        },
        "coloured by distinct values, s": round(coloured, 2),
        "browser's heap, MiB": round(page.evaluate("performance.memory.usedJSHeapSize") / 2**20, 1),
        "said": said,
    }
    page.context.close()
    return figures


if __name__ == "__main__":
    main()
