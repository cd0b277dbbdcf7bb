"""Rerankers: a pair's score is its own, whatever it is batched with."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest

from flowvec import (
    AsyncReranker,
    BundleError,
    ClosedError,
    Encoder,
    EncodeStatistics,
    EngineNotProvedError,
    InputTypeError,
    InputValueError,
    NonFiniteError,
    Reranker,
    SharedReranker,
)
from flowvec.encoder.batching import Batch
from flowvec.engine.providers import OPENVINO, has_bfloat16
from flowvec.engine.selection import provider_status
from flowvec.machine import cpu_features
from flowvec.spelled import json_message
from tests.makers import texts_of
from tests.runtime.gate import Gate

QUERY = "the cat sleeps"
DOCUMENTS = ["a cat sleeps", "stocks fell", "the dog runs fast", "", "a red cat, a blue dog " * 9]


def pairs_of(count: int, seed: int = 0) -> list[tuple[str, str]]:
    queries, documents = texts_of(count, seed), texts_of(count, seed + 1)
    return list(zip(queries, documents, strict=True))


# --- scores ---------------------------------------------------------------------------------------


def test_a_pairs_score_does_not_depend_on_its_batch(reranker_dir: Path, provider: str) -> None:
    pairs = pairs_of(60)
    with Reranker.load(reranker_dir, provider=provider, compute="float32") as loaded:
        together = loaded.predict(pairs, activation="identity")
        alone = np.array([loaded.predict(pair, activation="identity") for pair in pairs])
        in_small_batches = loaded.predict(pairs, activation="identity", max_batch_tokens=64)
    assert together.shape == (60,)
    assert together.dtype == np.float32
    np.testing.assert_allclose(together, alone, rtol=0, atol=2e-5)
    np.testing.assert_allclose(together, in_small_batches, rtol=0, atol=2e-5)


def test_the_two_texts_have_different_roles(reranker: Reranker) -> None:
    there, back = reranker.predict(
        [("cat sleeps", "stocks fell"), ("stocks fell", "cat sleeps")], activation="identity"
    )
    assert abs(there - back) > 1e-3


def test_token_types_reach_the_graph(reranker: Reranker) -> None:
    """Without them the scores are slightly wrong, and nothing fails."""
    tokenized = reranker.tokenize([("cat sleeps", "stocks fell")]).token_ids
    batch = [Batch((0,), int(tokenized.lengths[0]))]
    with_types = reranker.run(tokenized, batch)
    tokenized.second[:] = tokenized.lengths  # all tokens of type 0
    assert abs(reranker.run(tokenized, batch) - with_types) > 1e-3


def test_the_activation_is_applied_once(reranker: Reranker) -> None:
    pairs = pairs_of(20)
    logits = reranker.predict(pairs, activation="identity").astype(np.float64)
    assert reranker.info().activation == "sigmoid"
    expected = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(reranker.predict(pairs), expected, rtol=1e-6)
    np.testing.assert_allclose(
        reranker.predict(pairs, activation="tanh"), np.tanh(logits), rtol=1e-5
    )


def test_logits_keep_their_precision_in_bfloat16(reranker_dir: Path) -> None:
    """Eight bits of a logit would give many documents equal scores."""
    if provider_status()[OPENVINO]:
        pytest.skip(f"{OPENVINO} cannot run on this machine")
    if not has_bfloat16(cpu_features()):
        pytest.skip("this processor has no bfloat16")
    pairs = pairs_of(300)
    with Reranker.load(
        reranker_dir, provider="openvino", compute="bfloat16", proof="never"
    ) as loaded:
        logits = loaded.predict(pairs, activation="identity")
    assert len(np.unique(logits)) > 0.95 * len(set(pairs))


def test_a_single_pair_gives_a_single_score(reranker: Reranker) -> None:
    pair = ("the cat", "a dog")
    assert reranker.predict(pair).shape == ()
    assert reranker.predict(list(pair)) == reranker.predict([pair])[0]


def test_no_pairs_give_no_scores(reranker: Reranker) -> None:
    assert reranker.predict([]).shape == (0,)
    assert reranker.rank("a query", []) == []


def test_score_pairs_yields_in_order_at_constant_memory(reranker: Reranker) -> None:
    pairs = [(query[:12], text[:12]) for query, text in pairs_of(50)]
    taken = []

    def stream():
        for i in range(20_000):
            taken.append(i)
            yield pairs[i % 50]

    scores = reranker.score_pairs(stream())
    first = [next(scores) for _ in range(50)]
    assert len(taken) < 15_000
    np.testing.assert_allclose(first, reranker.predict(pairs), rtol=0, atol=2e-5)


def test_a_pair_of_a_stream_is_named_by_its_place(reranker: Reranker) -> None:
    with pytest.raises(InputTypeError, match="item 6000 "):
        list(reranker.score_pairs([*[("cat", "dog")] * 6000, "ab"]))


def test_a_bar_counts_pairs(reranker: Reranker, capfd: pytest.CaptureFixture[str]) -> None:
    reranker.predict(pairs_of(20), show_progress_bar=True)
    assert "20/20" in capfd.readouterr().err


def test_a_batch_size_of_the_callers_is_kept(reranker: Reranker) -> None:
    """Without one, few pairs are shared out to all streams."""
    assert reranker.job().shared_out
    assert not reranker.job(max_batch_tokens=64).shared_out


# --- ranking --------------------------------------------------------------------------------------


def test_rank_sorts_by_score(reranker: Reranker) -> None:
    ranked = reranker.rank(QUERY, DOCUMENTS, return_documents=True)
    scores = reranker.predict([(QUERY, document) for document in DOCUMENTS])
    assert [hit["corpus_id"] for hit in ranked] == np.argsort(-scores).tolist()
    assert all(hit["text"] == DOCUMENTS[hit["corpus_id"]] for hit in ranked)
    assert [hit["score"] for hit in ranked] == sorted(scores.tolist(), reverse=True)
    assert reranker.rank(QUERY, DOCUMENTS, top_k=2) == [
        {"corpus_id": hit["corpus_id"], "score": hit["score"]} for hit in ranked[:2]
    ]


def test_rank_takes_any_number_of_documents_above_top_k(reranker: Reranker) -> None:
    assert len(reranker.rank(QUERY, DOCUMENTS, top_k=99)) == len(DOCUMENTS)


def test_rank_scores_as_predict_does(reranker: Reranker) -> None:
    pairs = [(QUERY, document) for document in DOCUMENTS]
    expected = reranker.predict(pairs, activation="tanh")
    ranked = reranker.rank(QUERY, DOCUMENTS, activation="tanh")
    assert [hit["score"] for hit in ranked] == sorted(expected.tolist(), reverse=True)
    with pytest.raises(InputValueError, match="item 4 has more than 64 tokens"):
        reranker.rank(QUERY, DOCUMENTS, truncation="error")


def test_statistics_count_pairs_that_were_cut(reranker_dir: Path) -> None:
    calls: list[EncodeStatistics] = []
    with Reranker.load(reranker_dir, provider="cpu", on_statistics=calls.append) as loaded:
        loaded.predict([("cat", "dog"), ("cat", "dog " * 100)])
        assert (calls[0].texts, calls[0].truncated) == (2, 1)
        with pytest.raises(InputValueError, match="item 1 has more than 64 tokens"):
            loaded.predict([("cat", "dog"), ("cat", "dog " * 100)], truncation="error")


def test_only_second_keeps_a_long_query(reranker: Reranker) -> None:
    query, document = "the red cat " * 15, "a blue dog " * 15
    kept = reranker.tokenize([(query, document)], "only_second").ids[0]
    assert kept[: 1 + 45] == reranker.tokenize([(query, "")], "only_second").ids[0][: 1 + 45]
    assert reranker.predict([(query, document)]) != reranker.predict(
        [(query, document)], truncation="only_second"
    )


# --- several labels -------------------------------------------------------------------------------


def test_several_labels(three: Path) -> None:
    pairs = pairs_of(8)
    with Reranker.load(three, provider="cpu") as loaded:
        scores = loaded.predict(pairs)
        assert scores.shape == (8, 3)
        np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-6)
        assert loaded.predict(pairs[0]).shape == (3,)
        with pytest.raises(InputValueError, match=r"yes, no, maybe: .*label=") as raised:
            loaded.rank(QUERY, DOCUMENTS)
        assert 'say with "label" whose' in json_message(raised.value)
        with pytest.raises(InputValueError, match="no label 'perhaps'"):
            loaded.rank(QUERY, DOCUMENTS, label="perhaps")
        by_yes, by_no = (loaded.rank(QUERY, DOCUMENTS, label=name) for name in ("yes", "no"))
    assert [h["corpus_id"] for h in by_yes] == [h["corpus_id"] for h in reversed(by_no)]


# --- wrong arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pairs", ["ab", None, 5, {"a": "b"}, ["ab", "cd", "ef"], [("a",)], [("a", 1)], [None], b"ab"]
)
def test_what_is_not_pairs_is_refused(reranker: Reranker, pairs: object) -> None:
    with pytest.raises(InputTypeError):
        reranker.predict(pairs)  # type: ignore[arg-type]
    with pytest.raises(InputTypeError):
        list(reranker.score_pairs(pairs))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"activation": "relu"}, InputValueError),
        ({"activation": "softmax"}, InputValueError),
        ({"truncation": "truncate"}, InputValueError),
        ({"truncation": None}, InputValueError),
        ({"max_batch_tokens": 0}, InputValueError),
        ({"show_progress_bar": "yes"}, InputTypeError),
    ],
)
def test_wrong_options_are_refused(
    reranker: Reranker, options: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        reranker.predict([("a", "b")], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("query", "documents", "options"),
    [
        (None, ["a"], {}),
        ("a", "b", {}),
        ("a", None, {}),
        ("a", [1], {}),
        ("a", ["b"], {"top_k": 0}),
        ("a", ["b"], {"top_k": 1.5}),
        ("a", ["b"], {"return_documents": 1}),
    ],
)
def test_wrong_arguments_of_rank_are_refused(
    reranker: Reranker, query: object, documents: object, options: dict[str, object]
) -> None:
    with pytest.raises((InputTypeError, InputValueError)):
        reranker.rank(query, documents, **options)  # type: ignore[arg-type]


# --- kinds ----------------------------------------------------------------------------------------


def test_each_kind_names_the_class_that_opens_it(reranker_dir: Path) -> None:
    with pytest.raises(BundleError, match=r"reranker; .*flowvec\.Reranker"):
        Encoder.load(reranker_dir)
    with pytest.raises(BundleError, match=r"Encoder\.load\('mini'\)"):
        Reranker.load("mini")


# --- proof ----------------------------------------------------------------------------------------


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong proof must not be remembered for other tests, nor one of other workers be read."""
    monkeypatch.setenv("FLOWVEC_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("no_cache")
def test_wrong_logits_are_refused(reranker_dir: Path, gate: Gate) -> None:
    run = gate.run
    gate.run = lambda session, *feeds: -run(session, *feeds)
    with pytest.raises(EngineNotProvedError, match="standard deviations off"):
        Reranker.load(reranker_dir, provider="cpu", compute="float32", proof="always")


@pytest.mark.usefixtures("no_cache")
def test_swapped_logits_in_a_batch_are_refused(reranker_dir: Path, gate: Gate) -> None:
    run = gate.run
    gate.run = lambda session, *feeds: run(session, *feeds)[::-1]
    with pytest.raises(EngineNotProvedError):
        Reranker.load(reranker_dir, provider="cpu", compute="float32", proof="always")


def test_logits_that_are_not_numbers_are_refused(reranker_dir: Path, gate: Gate) -> None:
    with Reranker.load(reranker_dir, provider="cpu") as loaded:
        run = gate.run
        gate.run = lambda session, *feeds: run(session, *feeds) * np.nan
        with pytest.raises(NonFiniteError, match="NaN or infinity for item 0, 1"):
            loaded.predict(pairs_of(2))


@pytest.mark.usefixtures("no_cache")
def test_the_proof_is_remembered(reranker_dir: Path) -> None:
    with Reranker.load(reranker_dir, provider="cpu", compute="float32") as first:
        assert first.proof.proved
        assert first.proof.max_error is not None
    with Reranker.load(reranker_dir, provider="cpu", compute="float32") as second:
        assert second.proof == first.proof


# --- life -----------------------------------------------------------------------------------------


def test_it_pickles(reranker: Reranker) -> None:
    pairs = pairs_of(5)
    with pickle.loads(pickle.dumps(reranker)) as copy:
        np.testing.assert_array_equal(copy.predict(pairs), reranker.predict(pairs))
        assert copy.engine == reranker.engine


@pytest.mark.process
def test_a_forked_child_opens_its_own_session(reranker: Reranker) -> None:
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system does not fork")
    pairs = pairs_of(5)
    expected = reranker.predict(pairs)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for scores in pool.map(reranker.predict, [pairs, pairs]):
            np.testing.assert_array_equal(scores, expected)


def test_closed(reranker_dir: Path) -> None:
    with Reranker.load(reranker_dir, provider="cpu") as loaded:
        pass
    for use in (
        lambda: loaded.predict([("a", "b")]),
        lambda: loaded.predict([]),
        lambda: loaded.rank("a", []),
        lambda: list(loaded.score_pairs([("a", "b")])),
        loaded.warmup,
        loaded.__enter__,
        lambda: SharedReranker(loaded),
        lambda: AsyncReranker(loaded),
    ):
        with pytest.raises(ClosedError, match="this Reranker is closed"):
            use()


def test_with_compute_and_warmup(reranker_dir: Path) -> None:
    with (
        Reranker.load(reranker_dir, provider="cpu").warmup() as loaded,
        loaded.with_compute("float32") as exact,
    ):
        assert exact.engine.compute == "float32"
        assert isinstance(exact, Reranker)
        assert "tiny-reranker" in repr(exact)


def test_a_process_needs_no_torch(python, reranker_dir: Path) -> None:
    code = (
        "import sys, flowvec\n"
        "print(flowvec.Reranker.load(sys.argv[1]).rank('a', ['b', 'c'])[0]['corpus_id'])\n"
        "assert not {'torch', 'transformers', 'onnx'} & set(sys.modules)"
    )
    assert python(code, reranker_dir).returncode == 0
