"""From logits to scores and rankings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec.reranker.scores import Ranking, Scores

logits = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30)


def ranking(
    count: int, activation: str = "sigmoid", top_k: int | None = None, column: int = 0
) -> Ranking:
    return Ranking(
        pairs=[("q", str(i)) for i in range(count)],
        options={},
        finish=Scores(activation),  # type: ignore[arg-type]
        column=column,
        top_k=top_k,
        return_documents=False,
    )


@given(values=logits)
def test_a_ranking_follows_the_logits(values: list[float]) -> None:
    """Also where a sigmoid in float32 has reached 1 or 0."""
    array = np.array(values, dtype=np.float32)
    order = [hit["corpus_id"] for hit in ranking(len(values)).of(array)]
    assert order == np.argsort(-array, kind="stable").tolist()


def test_documents_that_a_sigmoid_ties_are_ordered_by_their_logits() -> None:
    array = np.array([30.0, 40.0, 35.0], dtype=np.float32)
    ranked = ranking(3).of(array)
    assert [hit["score"] for hit in ranked] == [1.0, 1.0, 1.0]
    assert [hit["corpus_id"] for hit in ranked] == [1, 2, 0]


@given(values=st.lists(st.tuples(*[st.floats(-100, 100, width=32)] * 2), min_size=1, max_size=30))
def test_one_label_alone_decides(values: list[tuple[float, float]]) -> None:
    array = np.array(values, dtype=np.float32)
    for column in (0, 1):
        order = [hit["corpus_id"] for hit in ranking(len(values), column=column).of(array)]
        assert order == np.argsort(-array[:, column], kind="stable").tolist()


def test_equal_logits_keep_their_order() -> None:
    ranked = ranking(4, top_k=3).of(np.zeros(4, dtype=np.float32))
    assert [hit["corpus_id"] for hit in ranked] == [0, 1, 2]


@pytest.mark.parametrize("activation", ["identity", "sigmoid", "softmax", "tanh"])
def test_large_logits_do_not_overflow(activation: str) -> None:
    array = np.array([[3e38, -3e38], [-1e30, 1e30], [0, 0]], dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):
        scores = Scores(activation)(array)  # type: ignore[arg-type]
    assert np.isfinite(scores).all()
    assert scores.dtype == np.float32


def test_a_sigmoid_is_not_rounded_to_half_precision() -> None:
    array = np.array([[8.0], [8.01]], dtype=np.float32)
    scores = Scores("sigmoid")(array)
    assert scores[0] < scores[1] < 1
