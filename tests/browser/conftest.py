"""A browser, and a server with collections to look at.

Chromium is that of the system (`apt-get install chromium`), or what FLOWVEC_BROWSER names. With
FLOWVEC_SCREENSHOTS, a folder, tests leave pictures there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, Encoder, MultiVectorEncoder, Reranker
from flowvec.demo import load_passages
from flowvec.sparse import SparseEncoder
from tests.runtime.server.conftest import Running, running

playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra [browser]")
pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server import Settings, create_app  # noqa: E402

_NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

# WebGL2 in software, which the page does not use by itself because it is slow.
ALLOW_SOFTWARE = """
const given = WebGL2RenderingContext.prototype.getExtension;
WebGL2RenderingContext.prototype.getExtension = function (name) {
  return name === "WEBGL_debug_renderer_info" ? null : given.call(this, name);
};
"""

# Effects of a page run after a frame, and observers of sizes in it.
_SETTLED = """async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const drawn = () => {
    const { view, points } = document.querySelector("canvas").scatter;
    return JSON.stringify([view, [...points.positions], points.lit]);
  };
  for (let before = ""; before !== drawn();) {
    before = drawn();
    await frame();
    await frame();
  }
}"""


def browser_path() -> str | None:
    """The browser's program; None without one."""
    given = os.environ.get("FLOWVEC_BROWSER")
    return given or next(filter(None, map(shutil.which, _NAMES)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = browser_path()
    if path is None:
        pytest.skip("needs a browser: apt-get install chromium")
    # Software rendering, so that it is the same everywhere; root has no sandbox.
    options = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--disable-gpu-sandbox",
               "--enable-unsafe-swiftshader"]  # fmt: skip
    with playwright.sync_playwright() as engine:
        launched = engine.chromium.launch(executable_path=path, args=options)
        print(f"browser: {launched.version}")
        yield launched
        launched.close()


@dataclass
class Visit:
    """A page in a tab of its own, and what went wrong in it.

    Attributes:
        page: playwright's.
        problems: errors of its scripts, what the policy refused, and requests to other places.
    """

    page: Any
    url: str
    problems: list[str] = field(default_factory=list)

    def note(self, kind: str, text: str) -> None:
        """Note an error on the console, but for answers that tests ask for."""
        if kind == "error" and "status of" not in text and "ERR_" not in text:
            self.problems.append(f"console: {text}")

    def open(self, tab: str) -> None:
        """Open a tab by its address."""
        self.page.goto(f"{self.url}/#{tab}")
        self.page.get_by_role("tab", name=tab.capitalize()).wait_for()

    def settle(self) -> None:
        """Wait until the map has drawn what the page shows: its points, its hits and its size."""
        self.page.evaluate(_SETTLED)

    def shows(self, text: str) -> None:
        """Wait until a text is to be seen."""
        self.page.get_by_text(text).first.wait_for()


Visitor = Callable[..., Visit]


@pytest.fixture
def visitor(browser: Any) -> Iterator[Visitor]:
    """Visits a server; at the end nothing may have gone wrong in any tab."""
    visits: list[Visit] = []

    def visit(server: Running, *, dark: bool = False, size: Any = None, **options: Any) -> Visit:
        context = browser.new_context(
            viewport=size or WIDE, color_scheme="dark" if dark else "light", **options
        )
        context.set_default_timeout(300_000)
        made = Visit(context.new_page(), server.url)
        page = made.page
        page.on("pageerror", lambda error: made.problems.append(f"error: {error}"))
        page.on("console", lambda m: made.note(m.type, m.text))
        page.on("request", lambda r: r.url.startswith((server.url, "data:", "blob:"))
                or made.problems.append(f"elsewhere: {r.url}"))  # fmt: skip
        page.on("dialog", lambda d: (made.problems.append(f"dialog: {d.message}"), d.dismiss()))
        visits.append(made)
        return made

    yield visit
    for made in visits:
        made.page.context.close()
        assert made.problems == []


@pytest.fixture(scope="session")
def picture() -> Callable[[Visit, str], None]:
    """Leaves a picture in the folder that FLOWVEC_SCREENSHOTS names, if it names one."""
    folder = os.environ.get("FLOWVEC_SCREENSHOTS")

    def take(visit: Visit, name: str) -> None:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            visit.page.screenshot(path=str(Path(folder) / f"{name}.png"))

    return take


@pytest.fixture(scope="session")
def server(
    mini: Encoder,
    tiny: Encoder,
    sparse_encoder: SparseEncoder,
    multi_vector: MultiVectorEncoder,
    reranker: Reranker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    """`demo` of mini, `dense` of a model with a transform, `both` with sparse vectors too, and
    `empty`."""
    folder = tmp_path_factory.mktemp("browser")
    with (
        Collection.create(folder / "demo", encoder=mini) as demo,
        Collection.create(folder / "dense", encoder=tiny) as dense,
        Collection.create(folder / "both", encoder=tiny, sparse_encoder=sparse_encoder) as both,
        Collection.create(folder / "empty", dim=2) as empty,
    ):
        passages = load_passages()
        demo.add(
            [passage.id for passage in passages],
            [passage.text for passage in passages],
            [
                {
                    "title": passage.title,
                    "words": len(passage.text.split()),
                    "first": passage.title[0],
                    "long": len(passage.text) > 300,
                }
                for passage in passages
            ],
        )
        dense.add(range(120), [passage.text[:200] for passage in passages[:120]])
        both.add(range(40), [passage.text[:200] for passage in passages[:40]])
        collections = {"demo": demo, "dense": dense, "empty": empty, "both": both}
        models = {"mini": mini, "tiny": tiny, "words": sparse_encoder, "tokens": multi_vector}
        app = create_app(models, {"sorts": reranker}, collections)
        with running(app) as server:
            yield server


@pytest.fixture(scope="session")
def writable(tmp_path_factory: pytest.TempPathFactory, mini: Encoder) -> Iterator[Running]:
    """A server that may write, with a collection of its own."""
    folder = tmp_path_factory.mktemp("written")
    with Collection.create(folder / "notes", encoder=mini) as notes:
        notes.add(["a", "b"], ["The cat sleeps.", "Stocks fell."])
        settings = Settings(page_may_write=True)
        with running(create_app(mini, (), {"notes": notes}, settings=settings)) as server:
            yield server


def random_vectors(rows: int, dim: int = 8) -> np.ndarray:
    """Seeded vectors, (rows, dim)."""
    return np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)
