"""A collection's map: every row a point, near rows near each other, while rows come and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flowvec import Collection, InputValueError
from flowvec.projection import map_frames
from flowvec.projection.colours import point_colours
from tests.inside import store_of

GROUPS, ROWS, DIM = 6, 240, 16


@pytest.fixture(scope="module", params=[None, 50], ids=["exact", "graph"])
def grouped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Collection]:
    """Rows around a few centres; the id says which."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(GROUPS, DIM))
    group = np.arange(ROWS) % GROUPS
    vectors = centres[group] + rng.normal(0, 0.2, (ROWS, DIM))
    path = tmp_path_factory.mktemp("map") / "rows"
    with Collection.create(path, dim=DIM, index="graph", exact_below=request.param) as collection:
        collection.add_vectors(range(ROWS), vectors, metadata=[{"g": int(g)} for g in group])
        collection.prepare()
        yield collection


def test_near_rows_are_near_on_the_map(grouped: Collection) -> None:
    frames = list(map_frames(grouped))
    assert [frame.stage for frame in frames[:2]] == ["axes", "neighbours"]
    assert frames[-1].stage == "done"
    progress = [frame.progress for frame in frames]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    last = frames[-1]
    assert last.total == len(last.labels) == len(last.positions) == ROWS
    distances = np.linalg.norm(last.positions[:, None] - last.positions[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    # Labels rise in the order of ids, so a point's group is its number's.
    assert (distances.argmin(1) % GROUPS == np.arange(ROWS) % GROUPS).mean() > 0.95
    *_, again = map_frames(grouped)
    assert (again.positions == last.positions).all()


def test_a_sample_of_a_larger_collection(grouped: Collection) -> None:
    *_, frame = map_frames(grouped, rows=40, seed=3)
    assert (frame.total, len(frame.labels)) == (ROWS, 40)
    assert (np.diff(frame.labels) > 0).all()
    assert np.isfinite(frame.positions).all()


def test_rows_that_go_meanwhile_keep_their_point(tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).normal(size=(30, 4))
    with Collection.create(tmp_path / "rows", dim=4) as collection:
        collection.add_vectors(range(30), vectors)
        frames = map_frames(collection)
        first = next(frames)
        collection.delete(list(range(0, 30, 3)))
        collection.add_vectors(range(100, 140), np.random.default_rng(2).normal(size=(40, 4)))
        *_, last = frames
    assert (last.labels == first.labels).all()
    assert np.isfinite(last.positions).all()


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_hardly_any_rows(tmp_path: Path, rows: int) -> None:
    with Collection.create(tmp_path / "rows", dim=3) as collection:
        collection.add_vectors(range(rows), np.ones((rows, 3)))
        *_, frame = map_frames(collection)
    assert frame.positions.shape == (rows, 2)
    assert np.isfinite(frame.positions).all()


def test_a_field_as_colours(grouped: Collection) -> None:
    labels = np.arange(1, ROWS + 1)
    values = store_of(grouped).field_values("g", labels)
    assert [values[label] for label in labels.tolist()] == [i % GROUPS for i in range(ROWS)]
    colours = point_colours(values, labels)
    assert colours.kind == "texts"
    assert [colours.values[code] for code in colours.codes[:4]] == ["0", "1", "2", "3"]
    with pytest.raises(InputValueError, match="cannot be filtered by"):
        store_of(grouped).field_values('a"b', labels)


def test_colours_of_any_values() -> None:
    labels = np.arange(1, 41)
    numbers = point_colours({i: float(i) * 5e306 for i in range(1, 31)}, labels)
    assert numbers.kind == "numbers"
    assert (np.diff(numbers.codes[:30].astype(int)) > 0).all()
    assert (numbers.codes[30:] == 255).all()
    many = point_colours({int(i): f"value {i}" for i in labels}, labels)
    assert (many.kind, len(many.values), many.others) == ("texts", 12, 28)
    assert sorted(set(many.codes.tolist())) == [*range(12), 254]
    assert point_colours({}, labels).kind == "none"
    flags = point_colours({1: True, 2: False, 3: "true"}, labels)
    assert set(flags.values) == {"true", "false"}
