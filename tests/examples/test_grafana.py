"""The dashboard asks for metrics that `/metrics` has, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flowvec import Collection, Encoder

pytest.importorskip("msgspec", reason="needs the extra [serve]")
pytest.importorskip("prometheus_client", reason="needs the extra [serve]")
pytest.importorskip("starlette.testclient", reason="needs the extra [serve]")

from prometheus_client import parser
from starlette.testclient import TestClient

from flowvec.server import create_app

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana.json"
# What Prometheus adds itself.
OWN_METRICS, OWN_LABELS = {"up"}, {"job", "instance"}
METRIC = re.compile(r"\b(?:flowvec|process|te)_\w+|\bup\b")


@pytest.fixture(scope="module")
def labels(tiny: Encoder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each metric of a server that has answered."""
    with (
        Collection.create(tmp_path_factory.mktemp("g") / "rows", encoder=tiny) as rows,
        TestClient(create_app({"t": tiny}, collections={"rows": rows})) as client,
    ):
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200
        families = list(parser.text_string_to_metric_families(client.get("/metrics").text))
    names: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return names


def queries() -> list[str]:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return asked + [v["query"] for v in board["templating"]["list"] if v["type"] == "query"]


@pytest.mark.parametrize("query", queries())
def test_a_query_names_what_there_is(labels: dict[str, set[str]], query: str) -> None:
    names = set(METRIC.findall(query))
    assert names
    known: set[str] = set(OWN_LABELS)
    for name in names - OWN_METRICS:
        assert name in labels
        known |= labels[name]
    by = {
        label.strip()
        for group in re.findall(r"by \(([^)]*)\)", query)
        for label in group.split(",")
    }
    selected = {
        label
        for group in re.findall(r"{([^}]*)}", query)
        for label in re.findall(r"(\w+)[=!]", group)
    }
    assert by | selected <= known
    assert query.count("(") == query.count(")")


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    panels: list[Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
