"""How vectors are turned before they are encoded, and scans of vectors that have a basis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowvec.hnsw import Codes, Frame, HnswError, PairScan, Places, pair_scan
from flowvec.vectors import top_k

DIM = 200


def steep(count: int, dim: int = DIM, seed: int = 0, decay: float = 25.0) -> np.ndarray:
    """Vectors of length 1, a few directions of which have most of the variance."""
    axes = np.linalg.qr(np.random.default_rng(99).normal(size=(dim, dim)))[0]
    rows = np.random.default_rng(seed).normal(size=(count, dim)) * np.exp(-np.arange(dim) / decay)
    rows = rows @ axes + 0.05
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def within_clusters(count: int, seed: int) -> np.ndarray:
    """Vectors whose first part is nearly that of their cluster. Families share the rest."""
    rng = np.random.default_rng(97)
    axes = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    centres = rng.normal(size=(40, 24)) / np.sqrt(24)
    families = rng.normal(size=(640, DIM - 24)) / np.sqrt(DIM - 24)
    rng = np.random.default_rng(seed)
    of = rng.integers(0, len(families), count)
    first = centres[of % 40] + 0.002 * rng.normal(size=(count, 24))
    noise = rng.normal(size=(count, DIM - 24)) / np.sqrt(DIM - 24)
    rows = np.concatenate([first, 0.25 * families[of] + 0.1 * noise], axis=1) @ axes
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def scan(codes: Codes, rows: np.ndarray, queries: np.ndarray, k: int, **options: Any) -> Any:
    options = {"last": len(rows), "reach": 3.0} | options
    return codes.search(queries, k, Places(None, 0, rows), **options)


def test_a_basis_has_most_of_the_variance_in_front() -> None:
    rows = steep(3000)
    frame = Frame.fit(rows)
    assert frame.basis is not None
    assert frame.part % 4 == 0
    assert frame.part * 8 <= 0.75 * DIM
    np.testing.assert_allclose(frame.basis @ frame.basis.T, np.eye(DIM), atol=1e-5)
    np.testing.assert_allclose(frame.centre, rows.mean(axis=0), atol=1e-6)
    turned = (rows - frame.centre) @ frame.basis.T
    in_front = np.square(turned[:, : frame.part * 8]).sum() / np.square(turned).sum()
    assert in_front > 0.9


@pytest.mark.parametrize(
    "rows",
    [
        np.random.default_rng(0).normal(size=(3000, DIM)).astype(np.float32),  # flat
        steep(2 * DIM - 1),  # too few
        steep(3000, 152),  # too short to be divided
        steep(2100, 1032),  # so long that a query takes long to turn
        np.ones((3000, DIM), np.float32),
        np.zeros((3000, DIM), np.float32),
        np.zeros((0, DIM), np.float32),
    ],
    ids=["flat", "few", "short", "long", "equal", "zero", "none"],
)
def test_there_is_no_basis_that_would_not_help(rows: np.ndarray) -> None:
    frame = Frame.fit(rows)
    assert frame.basis is None
    octets = rows.shape[1] // 8
    assert frame.part == (octets if octets < 20 else octets // 2 // 4 * 4)
    assert np.isfinite(frame.centre).all()


def test_a_few_long_vectors_do_not_change_the_basis() -> None:
    rows = steep(3000)
    frame = Frame.fit(rows)
    rows[7] *= np.float32(1e15)
    rows[11] *= np.float32(1e-38)
    changed = Frame.fit(rows)
    assert frame.basis is not None
    flat = np.random.default_rng(0).normal(size=(3000, DIM)).astype(np.float32)
    flat[7] *= np.float32(1e15)
    assert Frame.fit(flat).basis is None
    assert changed.basis is None or np.isfinite(changed.basis).all()


@pytest.mark.parametrize("rows", [steep(1000), steep(9)])
def test_a_frame_comes_back_from_its_bytes(rows: np.ndarray) -> None:
    frame = Frame.fit(rows)
    content = frame.tobytes()
    again = Frame.frombytes(content + b"\0" * 100, DIM)
    assert again.tobytes() == content
    assert (again.part, again.basis is None) == (frame.part, frame.basis is None)
    for length in (0, 7, 8, len(content) - 1):
        with pytest.raises(ValueError, match=r"."):
            Frame.frombytes(content[:length], DIM)


def test_frames_that_do_not_fit_are_refused() -> None:
    rows = steep(1000)
    frame = Frame.fit(rows)
    assert frame.basis is not None
    centre, basis = frame.centre, frame.basis
    for wrong in (
        Frame(centre[:-1], basis, frame.part),
        Frame(centre, basis[:-1], frame.part),
        Frame(centre, basis, 0),
        Frame(centre, basis, DIM // 8),
        Frame(centre, None, DIM // 8 + 1),
        Frame(centre, basis, frame.part, 0.0),
        Frame(centre, basis, frame.part, float("nan")),
    ):
        with pytest.raises(HnswError):
            Codes(DIM, squared=False).begin(wrong)
    codes = Codes(DIM, squared=False)
    assert codes.add(rows)
    with pytest.raises(HnswError):
        codes.begin(frame)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("dim", [160, 200, 387])
def test_scans_with_a_basis(kernels: str, dim: int, squared: bool) -> None:
    rows, queries = steep(4000, dim), steep(70, dim, 1)
    codes = Codes(dim, squared=squared)
    codes.begin(Frame.fit(rows))
    assert codes.frame is not None
    assert codes.frame.basis is not None
    for start, count in ((0, 1), (1, 6), (7, 1000), (1007, 2993)):
        assert codes.add(rows[start : start + count], threads=2)
    metric = "l2" if squared else "ip"
    everything, scores = scan(codes, rows, queries, 10, reach=1e9)
    best, expected = top_k(queries, rows, 10, metric)
    np.testing.assert_allclose(scores, expected, atol=2e-5)
    assert np.mean(everything == best) > 0.99
    found, _ = scan(codes, rows, queries, 10, threads=3)
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, best, strict=True)]) > 0.998
    alone = [scan(codes, rows, queries[i : i + 1], 10, threads=2)[0] for i in range(len(queries))]
    np.testing.assert_array_equal(np.concatenate(alone), found)


@pytest.mark.parametrize("squared", [False, True])
def test_the_rest_of_the_numbers_counts(kernels: str, squared: bool) -> None:
    """The nearest rows are those whose rest is nearest: the first part is that of hundreds."""
    rows, queries = within_clusters(8000, 0), within_clusters(200, 1)
    codes = Codes(DIM, squared=squared)
    assert codes.add(rows)
    assert codes.frame is not None
    assert codes.frame.basis is not None
    found, _ = scan(codes, rows, queries, 10)
    best, _ = top_k(queries, rows, 10, "l2" if squared else "ip")
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, best, strict=True)]) > 0.998


def test_every_axis_of_a_basis_counts(kernels: str) -> None:
    """Vectors differ in their last number: its axis is one of those that are left over."""
    rows = np.random.default_rng(0).normal(size=(2000, 387)).astype(np.float32)
    rows[:, :-1] *= 0.01
    codes = Codes(387, squared=True)
    codes.begin(Frame(np.zeros(387, np.float32), np.eye(387, dtype=np.float32), 28))
    assert codes.add(rows)
    best, _ = top_k(rows[:9] + 0.001, rows, 10, "l2")
    np.testing.assert_array_equal(scan(codes, rows, rows[:9] + 0.001, 10)[0], best)


def with_first_part(rows: np.ndarray, margin: float) -> Codes:
    """Codes of rows (n, 400), turned by nothing but rotations; 160 numbers come first."""
    codes = Codes(400, squared=False)
    codes.begin(Frame(np.zeros(400, np.float32), np.eye(400, dtype=np.float32), 20, margin))
    assert codes.add(rows)
    return codes


@pytest.mark.parametrize("side", ["rows", "queries", "both"])
def test_a_first_part_without_a_direction_says_nothing_of_the_rest(kernels: str, side: str) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4000, 400)).astype(np.float32)
    queries = rows[-50:].copy()  # each finds itself; all rows of the first chunk are looked at
    if side != "queries":
        rows[-50:, :160] *= 1e-3
    if side != "rows":
        queries[:, :160] *= -1e-3
    found, _ = scan(with_first_part(rows, 0.05), rows, queries, 1)
    np.testing.assert_array_equal(found[:, 0], np.arange(3950, 4000))


def test_with_the_largest_margin_nothing_is_guessed(kernels: str) -> None:
    """The first parts are opposite, and the rests are equal; rows beside them have short rests."""
    chosen = np.arange(1000, 4000, 60)
    rows = np.random.default_rng(0).normal(size=(4000, 400)).astype(np.float32)
    rows[np.setdiff1d(np.arange(4000), chosen), 160:] *= 0.01
    queries = rows[chosen] * np.where(np.arange(400) < 160, -0.7, 1).astype(np.float32)
    found, _ = scan(with_first_part(rows, 2), rows, queries, 1)
    np.testing.assert_array_equal(found[:, 0], chosen)


def test_first_parts_that_point_away_do_not_hide_the_rest_of_others(kernels: str) -> None:
    """The first parts lower all scores, and the rests do not lower them further."""
    rng = np.random.default_rng(0)
    rows = np.abs(rng.normal(size=(4000, 400))).astype(np.float32)
    queries = -rows[:50]
    queries[:, 160:] = np.eye(50, 240, dtype=np.float32)
    found, _ = scan(with_first_part(rows, 0.5), rows, queries, 10)
    best, _ = top_k(queries, rows, 10, "ip")
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, best, strict=True)]) > 0.99


def test_the_margin_is_what_the_nearest_of_a_sample_need() -> None:
    """Here the nearest have rests that are alike, and first parts that are not."""
    rng = np.random.default_rng(0)
    rests = np.repeat(rng.normal(size=(500, DIM)) * np.exp(-np.arange(DIM) / 60), 6, axis=0)
    rests[:, :40] = 1.3 * rng.normal(size=(3000, 40))
    assert Frame.fit(rests.astype(np.float32)).margin > 0.5  # also if there is no basis: 2
    assert 0.2 <= Frame.fit(steep(3000)).margin < 0.5
    assert Frame.fit(steep(3000), certain=True).margin == 2


def test_the_best_pairs_with_a_basis(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_scan, "_LEAST_FITTED", 1000)
    rows = within_clusters(1500, 0)
    assert Frame.fit(rows).basis is not None
    scores, pairs = PairScan(rows, threads=2).best(0, 1500, 300, 0.5, 1 << 30) or (None, None)
    exact = np.triu(rows @ rows.T, 1)
    expected = np.sort(exact[np.triu_indices(1500, 1)])[::-1][:300]
    assert scores is not None
    assert pairs is not None
    np.testing.assert_allclose(scores, expected, atol=2e-6)
    np.testing.assert_allclose(exact[pairs[:, 0], pairs[:, 1]], scores, atol=2e-6)
