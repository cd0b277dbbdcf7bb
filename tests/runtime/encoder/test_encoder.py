"""Promises of the Encoder."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import pickle
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import (
    BundleError,
    ClosedError,
    Encoder,
    EncodeStatistics,
    InputTypeError,
    InputValueError,
    NonFiniteError,
    ProviderUnavailableError,
)
from flowvec.bundle.bundle import read_manifest, record_file
from flowvec.bundle.manifest import MANIFEST, RANGES
from flowvec.encoder.batching import Batch, plan
from flowvec.engine.providers import CPU, OPENVINO
from flowvec.engine.selection import available_providers
from flowvec.texts.window import WINDOW
from tests.drawing import examples
from tests.inside import has_an_idle_thread, pipeline_of
from tests.runtime.encoder.conftest import texts
from tests.runtime.gate import Gate
from tests.waiting import wait_until


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


# --- shapes and order -----------------------------------------------------------------------------


def test_shapes_and_types(tiny: Encoder) -> None:
    one = tiny.encode("the cat")
    assert one.shape == (16,)
    assert one.dtype == np.float32
    several = tiny.encode(["the cat", "a dog"])
    assert several.shape == (2, 16)
    none = tiny.encode([])
    assert none.shape == (0, 16)
    assert none.dtype == np.float32
    np.testing.assert_allclose(several[0], one, atol=1e-5)


@pytest.mark.parametrize("kind", [tuple, iter, np.array])
def test_any_iterable_of_texts_is_taken(tiny: Encoder, kind) -> None:
    items = ["the cat", "a dog runs", "stocks fell"]
    np.testing.assert_array_equal(tiny.encode(kind(items)), tiny.encode(items))


def test_vectors_come_in_input_order_whatever_the_lengths(tiny: Encoder) -> None:
    items = texts(300)
    together = tiny.encode(items)
    alone = np.stack([tiny.encode(item) for item in items])
    np.testing.assert_allclose(together, alone, atol=1e-5)


@examples(25)
@given(
    seed=st.integers(0, 1000),
    size=st.integers(1, 64),
    budget=st.integers(1, 4000),
    permutation=st.randoms(use_true_random=False),
)
def test_a_vector_does_not_depend_on_its_batch(
    provider: str, seed: int, size: int, budget: int, permutation
) -> None:
    """Random weights, on every provider and in every compute type that runs here."""
    items = texts(size, seed)
    order = list(range(size))
    permutation.shuffle(order)
    for encoder in _tiny_encoders(provider):
        plain = encoder.encode(items)
        shuffled = encoder.encode([items[i] for i in order], max_batch_tokens=budget)
        if encoder.engine.compute == "float32":
            np.testing.assert_allclose(shuffled, plain[order], atol=1e-5)
        norms = np.linalg.norm(shuffled, axis=1) * np.linalg.norm(plain[order], axis=1)
        assert ((shuffled * plain[order]).sum(axis=1) / norms).min() >= 0.9999


_TINY: dict[str, list[Encoder]] = {}


def _tiny_encoders(provider: str) -> list[Encoder]:
    """Encoders kept for all examples: loading one takes longer than an example."""
    if provider not in _TINY:
        folder = Path(__file__).resolve().parents[2] / "data/bundles/tiny"
        _TINY[provider] = []
        for compute in ("float32", "bfloat16"):
            with contextlib.suppress(ProviderUnavailableError):
                _TINY[provider].append(Encoder.load(folder, provider=provider, compute=compute))
        assert _TINY[provider]
    return _TINY[provider]


def test_batch_invariance_of_the_shipped_model(provider: str) -> None:
    from flowvec.demo import load_passages

    items = [passage.text for passage in load_passages()[:64]]
    with Encoder.load("mini", provider=provider) as encoder:
        together = encoder.encode(items)
        alone = np.stack([encoder.encode(item) for item in items])
    cosine = (together * alone).sum(1)
    assert cosine.min() >= 0.9999
    if encoder.engine.compute == "float32":
        np.testing.assert_allclose(together, alone, atol=1e-5)


def test_batches_stay_within_the_budget_and_the_positions(tiny_copy: Path, gate: Gate) -> None:
    manifest = (tiny_copy / "manifest.json").read_text()
    (tiny_copy / "manifest.json").write_text(
        manifest.replace('"max_length": 64', '"max_length": 63')
    )
    shapes = gate.shapes
    with Encoder.load(
        tiny_copy, provider="cpu", streams=2, max_batch_tokens=300, proof="never"
    ) as encoder:
        encoder.encode(texts(500, longest=90))
        assert all(length <= 63 for _, length in shapes)
        assert all(rows * length <= 300 for rows, length in shapes)
        assert len(shapes) < 250
        assert all(name.startswith("flowvec-stream") for name in gate.threads)
        shapes.clear()
        encoder.encode(texts(50), max_batch_tokens=70)
        assert all(rows * length <= 70 for rows, length in shapes)


def test_the_budget_can_be_set(tiny_dir: Path, gate: Gate) -> None:
    with Encoder.load(tiny_dir, provider="cpu", max_batch_tokens=1000, proof="never") as encoder:
        encoder.max_batch_tokens = 90
        assert encoder.max_batch_tokens == encoder.info().max_batch_tokens == 90
        encoder.encode(texts(60))
        assert max(map(math.prod, gate.shapes)) <= 90
        with pytest.raises(InputValueError, match="at least 1, but is 0"):
            encoder.max_batch_tokens = 0
        assert encoder.max_batch_tokens == 90


def test_no_more_batches_run_at_once_than_there_are_streams(tiny_dir: Path, gate: Gate) -> None:
    with (
        Encoder.load(tiny_dir, provider="cpu", streams=2) as encoder,
        ThreadPoolExecutor(16) as pool,
    ):
        with gate.shut():
            calls = pool.map(lambda i: encoder.encode(texts(1 + i % 3 * 40, i)), range(64))
            wait_until(lambda: gate.running == 2)
        list(calls)
    assert gate.most_running == 2


# --- stream ---------------------------------------------------------------------------------------


def test_stream_yields_the_same_as_encode(tiny: Encoder) -> None:
    items = texts(WINDOW + 700, seed=3, longest=6)
    np.testing.assert_allclose(np.stack(list(tiny.stream(items))), tiny.encode(items), atol=1e-5)


def test_stream_takes_no_more_than_two_windows_ahead(tiny: Encoder) -> None:
    taken = count()

    def endless():
        while True:
            next(taken)
            yield "the cat"

    assert len(list(islice(tiny.stream(endless()), 10))) == 10
    assert next(taken) <= 2 * WINDOW + 1


def test_stream_of_nothing_is_empty(tiny: Encoder) -> None:
    assert list(tiny.stream([])) == []


def test_stream_names_a_bad_item_by_its_index(tiny: Encoder) -> None:
    with pytest.raises(InputTypeError, match="item 2 is NoneType"):
        list(tiny.stream(["a", "b", None]))  # type: ignore[list-item]
    with pytest.raises(InputTypeError, match="encode takes a single one"):
        tiny.stream("one text")


@pytest.mark.parametrize("before", [0, 1, WINDOW, WINDOW + 5])
def test_an_error_of_the_callers_iterable_comes_after_what_was_before_it(
    tiny: Encoder, before: int
) -> None:
    def broken():
        yield from ["the cat"] * before
        raise OSError("the file is gone")

    seen = 0

    def read_all() -> None:
        nonlocal seen
        for _ in tiny.stream(broken()):
            seen += 1

    with pytest.raises(OSError, match="the file is gone"):
        read_all()
    assert seen == before


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", [None, float("nan"), 3, b"bytes", {"a": 1}, ["nested"]])
def test_items_of_a_wrong_type_are_named_before_any_compute(
    tiny_dir: Path, item: object, gate: Gate
) -> None:
    with Encoder.load(tiny_dir, provider="cpu", proof="never") as encoder:
        with pytest.raises(InputTypeError, match=rf"item 1 is {type(item).__name__}"):
            encoder.encode(["fine", item])  # type: ignore[list-item]
        assert gate.shapes == []


@pytest.mark.parametrize("value", [None, 3, b"bytes", {"a": 1}])
def test_a_collection_of_a_wrong_type_is_refused(tiny: Encoder, value: object) -> None:
    with pytest.raises(InputTypeError, match=type(value).__name__):
        tiny.encode(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_an_empty_text_has_the_models_defined_vector(tiny: Encoder, text: str) -> None:
    assert tiny.tokenize([text]).ids == [[2, 3]]
    np.testing.assert_allclose(tiny.encode(text), tiny.encode(""), atol=1e-6)
    assert np.isfinite(tiny.encode(text)).all()
    with pytest.raises(InputValueError, match="item 1"):
        tiny.encode(["a", text], on_empty="error")


STRANGE = ["\x00", "\ufeff", "👩\u200d👧", "שלום", "e\u0301", "漢字", "[SEP]", "\ud800", "☃" * 900]


@pytest.mark.parametrize("text", STRANGE, ids=ascii)
def test_strange_texts_have_finite_vectors(mini: Encoder, text: str) -> None:
    assert np.isfinite(mini.encode(text)).all()


def test_ten_megabytes_are_cut_and_counted(mini: Encoder) -> None:
    seen: list[EncodeStatistics] = []
    with Encoder.load("mini", provider="cpu", on_statistics=seen.append) as encoder:
        vectors = encoder.encode(["some words " * 1_000_000, "some words " * 1_000])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)
    assert seen[-1].truncated == 2
    assert seen[-1].tokens == 2 * encoder.max_length


def test_truncation_can_be_refused(tiny: Encoder) -> None:
    fits = " ".join(["the"] * (tiny.max_length - 2))
    tiny.encode([fits], truncation="error")
    with pytest.raises(InputValueError, match=r"item 1 has more than 64 tokens"):
        tiny.encode([fits, fits + " the"], truncation="error")


def test_a_model_that_gives_nan_fails_with_the_rows_named(nan_dir: Path, provider: str) -> None:
    with Encoder.load(nan_dir, provider=provider) as encoder:
        assert np.isfinite(encoder.encode(["the cat"])).all()
        with pytest.raises(NonFiniteError, match=r"item 1, 3$"):
            encoder.encode(["the cat", "nan", "a dog", "the nan runs"])
        with pytest.raises(NonFiniteError, match="item 4097"):
            list(encoder.stream(["the"] * 4097 + ["nan"]))
        assert np.isfinite(encoder.encode(["the cat"])).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"truncation": "cut"}, "truncation"),
        ({"on_empty": "skip"}, "on_empty"),
        ({"prompt_name": "unknown"}, "document, query"),
        ({"max_batch_tokens": 0}, "max_batch_tokens"),
    ],
)
def test_options_out_of_range_are_refused(tiny: Encoder, options, message: str) -> None:
    with pytest.raises(InputValueError, match=message):
        tiny.encode(["a"], **options)
    with pytest.raises(InputValueError, match=message):
        tiny.stream(["a"], **options)


# --- options --------------------------------------------------------------------------------------


def test_normalization_is_the_bundles_unless_requested(tiny: Encoder, mini: Encoder) -> None:
    raw = tiny.encode(texts(20))
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).max() > 0.1
    unit = tiny.encode(texts(20), normalize_embeddings=True)
    np.testing.assert_allclose(unit, raw / np.linalg.norm(raw, axis=1, keepdims=True), atol=1e-6)
    np.testing.assert_array_equal(tiny.encode(texts(20), normalize_embeddings=False), raw)

    assert mini.info().normalised
    for normalize in (None, True):
        vectors = mini.encode(["a cat", "stocks"], normalize_embeddings=normalize)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    with pytest.raises(ValueError, match="normalizes inside its graph"):
        mini.encode(["a cat"], normalize_embeddings=False)


def test_similarity_is_the_bundles(tiny: Encoder, tiny_copy: Path) -> None:
    a, b = np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[4.0, 3.0], [1.0, 0.0], [0.0, 2.0]])
    np.testing.assert_allclose(tiny.similarity(a, b)[0], [0.96, 0.6, 0.8], atol=1e-6)
    assert tiny.similarity(a[0], b[0]).shape == (1, 1)
    expected = {
        "dot": [24, 3, 8],
        "euclidean": [-np.sqrt(2), -np.sqrt(20), -np.sqrt(13)],
        "manhattan": [-2, -6, -5],
    }
    manifest = (tiny_copy / "manifest.json").read_text()
    for kind, values in expected.items():
        (tiny_copy / "manifest.json").write_text(
            manifest.replace('"similarity": "cosine"', f'"similarity": "{kind}"')
        )
        with Encoder.load(tiny_copy, provider="cpu") as encoder:
            np.testing.assert_allclose(encoder.similarity(a, b)[0], values, atol=1e-5)
            assert encoder.similarity(np.empty((0, 2)), b).shape == (0, 3)
    with pytest.raises(InputValueError, match="shape"):
        tiny.similarity(a, np.ones((2, 3)))


def test_a_few_texts_keep_every_stream_busy(tiny_dir: Path) -> None:
    seen: list[EncodeStatistics] = []
    few = texts(60, longest=30)  # about 900 tokens: two batches by the budget alone
    expected = None
    for streams, budget, batches in ((1, None, 2), (2, None, 4), (8, None, 4), (2, 512, 2)):
        with Encoder.load(
            tiny_dir, provider="cpu", streams=streams, on_statistics=seen.append
        ) as encoder:
            vectors = encoder.encode(few, max_batch_tokens=budget)
        assert seen[-1].batches >= batches
        assert seen[-1].batches <= 2 * batches
        expected = vectors if expected is None else expected
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert seen[1].batches > seen[0].batches
    assert seen[3].batches == seen[0].batches


def test_statistics_count_a_call(tiny_dir: Path) -> None:
    seen: list[EncodeStatistics] = []
    with Encoder.load(tiny_dir, provider="cpu", on_statistics=seen.append) as encoder:
        items = ["the cat", "the " * 100, "\ud800"]
        encoder.encode(items)
        lengths = encoder.tokenize(items).lengths
        list(encoder.stream(["the cat"] * (WINDOW + 1)))
        encoder.encode([])
    first, streamed, nothing = seen
    assert (first.texts, first.truncated, first.replaced) == (3, 1, 1)
    assert first.tokens == sum(lengths)
    assert 0 <= first.padding < 1
    assert first.batches >= 1
    assert first.seconds >= first.tokenize_seconds > 0
    assert first.session_seconds > 0
    assert streamed.texts == WINDOW + 1
    assert streamed.tokens == 4 * (WINDOW + 1)
    assert (nothing.texts, nothing.tokens, nothing.padding) == (0, 0, 0.0)


def test_a_progress_bar_is_shown_only_if_requested(
    tiny: Encoder, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.encode(["a"] * 10)
    assert capsys.readouterr().err == ""
    tiny.encode(["a"] * 10, show_progress_bar=True)
    assert "10/10" in capsys.readouterr().err


def test_info_describes_the_engine(tiny: Encoder, tiny_dir: Path) -> None:
    info = tiny.info()
    assert (info.name, info.dim, info.max_length) == ("tiny", 16, 64)
    assert (info.provider, info.compute, info.streams) == ("CPUExecutionProvider", "float32", 2)
    assert info.path == str(tiny_dir)
    assert info.transform == ("dense(32->16, tanh)",)
    assert tiny.dim == 16
    assert tiny.max_length == 64
    assert "tiny" in repr(tiny)


def test_warmup_changes_nothing(tiny: Encoder) -> None:
    before = tiny.encode("the cat")
    assert tiny.warmup() is tiny
    np.testing.assert_array_equal(tiny.encode("the cat"), before)


# --- closing, pickling and forking ----------------------------------------------------------------


def test_a_closed_encoder_refuses_work(tiny_dir: Path) -> None:
    with Encoder.load(tiny_dir, provider="cpu") as encoder:
        encoder.encode("a")
    encoder.close()
    for use in (
        lambda: encoder.encode("a"),
        lambda: encoder.encode([]),
        lambda: encoder.encode_query("a"),
        lambda: encoder.stream(["a"]),
        encoder.warmup,
        encoder.__enter__,
    ):
        with pytest.raises(ClosedError, match="this Encoder is closed"):
            use()


def test_closing_while_others_encode_is_a_typed_error(tiny_dir: Path, gate: Gate) -> None:
    encoder = Encoder.load(tiny_dir, provider="cpu", streams=2)

    def work(seed: int) -> bool:
        try:
            encoder.encode(texts(200, seed), max_batch_tokens=64)
        except ClosedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool, ThreadPoolExecutor(1) as another:
        with gate.shut():
            futures = [pool.submit(work, i) for i in range(40)]
            wait_until(lambda: gate.running == 2)
            another.submit(encoder.close)
            wait_until(lambda: pipeline_of(encoder).closed)
        assert not all(future.result() for future in futures)  # most had not begun


def test_many_threads_share_one_encoder(tiny: Encoder) -> None:
    work = [texts(40, seed) for seed in range(16)]
    expected = [tiny.encode(items) for items in work]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            for vectors, wanted in zip(pool.map(tiny.encode, work), expected, strict=True):
                np.testing.assert_allclose(vectors, wanted, atol=1e-5)


def test_one_callers_bad_input_does_not_affect_others(nan_dir: Path) -> None:
    with Encoder.load(nan_dir, provider="cpu") as encoder, ThreadPoolExecutor(4) as pool:
        bad = [pool.submit(encoder.encode, ["nan"] * 20) for _ in range(10)]
        good = [pool.submit(encoder.encode, texts(50, i)) for i in range(10)]
        assert all(isinstance(f.exception(), NonFiniteError) for f in bad)
        assert all(np.isfinite(f.result()).all() for f in good)


def test_an_encoder_pickles_and_opens_again(tiny_dir: Path) -> None:
    with Encoder.load(tiny_dir, provider="cpu", streams=2, max_batch_tokens=77) as encoder:
        again = pickle.loads(pickle.dumps(encoder))
        np.testing.assert_allclose(again.encode(texts(9)), encoder.encode(texts(9)), atol=1e-5)
        assert again.info() == encoder.info()
        again.close()
        closed = pickle.loads(pickle.dumps(again))
    with pytest.raises(ClosedError):
        closed.encode("a")


def test_threads_change_how_a_batch_is_computed_and_nothing_else(
    tiny_dir: Path, provider: str
) -> None:
    texts = ["a man eats", "stocks fell on monday", "x"] * 5
    vectors = []
    for streams, threads in ((1, 1), (1, 2), (2, 2)):
        with Encoder.load(
            tiny_dir, provider=provider, compute="float32", streams=streams, threads=threads
        ) as encoder:
            assert (encoder.info().streams, encoder.info().threads) == (streams, threads)
            vectors.append(encoder.encode(texts, max_batch_tokens=16))
    np.testing.assert_allclose(vectors[1], vectors[0], atol=1e-5)
    np.testing.assert_allclose(vectors[2], vectors[0], atol=1e-5)


def test_a_pickled_encoder_refuses_other_ranges_of_8_bits(tiny_copy: Path) -> None:
    with Encoder.load(tiny_copy, provider="cpu", streams=1) as encoder:
        data = pickle.dumps(encoder)
    np.save(tiny_copy / RANGES, np.array([[-1.0] * 16, [1.0] * 16], dtype=np.float32))
    manifest = read_manifest(tiny_copy)
    files = manifest.files | {RANGES: record_file(tiny_copy / RANGES)}
    (tiny_copy / MANIFEST).write_text(replace(manifest, files=files).to_json())
    assert Encoder.load(tiny_copy, provider="cpu").fingerprint == manifest.fingerprint
    with pytest.raises(BundleError, match=r"changed since .*pickled"):
        pickle.loads(data)


def test_a_pickled_encoder_refuses_a_bundle_that_has_changed(
    tiny_copy: Path, nan_dir: Path
) -> None:
    with Encoder.load(tiny_copy, provider="cpu") as encoder:
        data = pickle.dumps(encoder)
    shutil.rmtree(tiny_copy)
    shutil.copytree(nan_dir, tiny_copy)
    with pytest.raises(BundleError, match="has changed"):
        pickle.loads(data)


def test_a_pickled_encoder_does_not_change_its_engine(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Encoder.load(tiny_dir, provider="cpu") as encoder:
        data = pickle.dumps(encoder)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # it is not installed here
    with pytest.raises(ProviderUnavailableError, match=CPU):
        pickle.loads(data)


def test_an_encoder_works_in_a_spawned_process(tiny: Encoder) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        # A method of the Encoder: the child could not import this file.
        vectors = pool.apply_async(tiny.encode, (texts(9),)).get(timeout=600)
    np.testing.assert_allclose(vectors, tiny.encode(texts(9)), atol=1e-5)


FORK = """
import os, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from flowvec import Encoder

items = ["the cat", "a dog runs", "stocks fell " * 9] * int(sys.argv[2])
encoder = Encoder.load(sys.argv[1], provider="cpu", streams=2)
before = encoder.encode(items)
child = os.fork()
if child == 0:
    same = np.allclose(encoder.encode(items), before, atol=1e-5)
    os._exit(0 if same else 7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert np.allclose(encoder.encode(items), before, atol=1e-5)
"""


FORK_AFTER_CHANGE = """
import os, shutil, sys, warnings
warnings.simplefilter("ignore")
from flowvec import BundleError, Encoder
encoder = Encoder.load(sys.argv[1], provider="cpu")
shutil.copy(os.path.join(sys.argv[2], "model.onnx"), os.path.join(sys.argv[1], "model.onnx"))
child = os.fork()
if child == 0:
    try:
        encoder.encode("the cat")
    except BundleError:
        os._exit(0)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif("not hasattr(__import__('os'), 'fork')", reason="this system has no fork")
def test_a_forked_child_verifies_the_bundle_again(python, tiny_copy: Path, nan_dir: Path) -> None:
    done = python(FORK_AFTER_CHANGE, tiny_copy, nan_dir)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif("not hasattr(__import__('os'), 'fork')", reason="this system has no fork")
@pytest.mark.parametrize("times", [40, 3000], ids=["one window", "three"])
def test_a_forked_child_opens_its_own_session(python, tiny_dir: Path, times: int) -> None:
    done = python(FORK, tiny_dir, str(times))
    assert done.returncode == 0, done.stderr


FORKS = """
import gc, os, sys, warnings
warnings.simplefilter("ignore")
from flowvec import Encoder
encoder = Encoder.load(sys.argv[1], provider=sys.argv[2], compute="float32", streams=2)
texts = ["the cat", "a dog runs", "stocks fell"] * 20
encoder.encode(texts)

def in_a_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

def use():
    encoder.encode(texts)

def let_go():
    global encoder
    del encoder
    gc.collect()

def use_and(work):
    use()
    work()

works = {
    "let go": let_go,
    "use, let go": lambda: use_and(let_go),
    "use, fork, use": lambda: use_and(lambda: in_a_child(use)),
    "use, fork, let go": lambda: use_and(lambda: in_a_child(let_go)),
    "use, fork, use, fork, use": lambda: use_and(
        lambda: in_a_child(lambda: use_and(lambda: in_a_child(use)))
    ),
}
in_a_child(works[sys.argv[3]])
"""


@pytest.mark.skipif("not hasattr(__import__('os'), 'fork')", reason="this system has no fork")
@pytest.mark.parametrize("provider", [CPU, OPENVINO])
@pytest.mark.parametrize(
    "work",
    ["let go", "use, let go", "use, fork, use", "use, fork, let go", "use, fork, use, fork, use"],
)
def test_children_of_children_use_and_let_go(
    python, tiny_dir: Path, provider: str, work: str
) -> None:
    if provider not in available_providers():
        pytest.skip(f"{provider} cannot run on this machine")
    done = python(FORKS, tiny_dir, provider, work)
    assert done.returncode == 0, done.stderr


def test_texts_that_are_tokenized_in_pieces_stay_in_their_order(tiny_dir: Path) -> None:
    items = [f"{word} {i}" for i, word in enumerate(["cat", "stocks", "a dog runs"] * 1200)]
    places = [5, 1100, 2100, 3500]
    for place in places:
        items[place] = "the cat " * 500  # more than max_length
    for place in (1030, 3590):
        items[place] = "a \ud800 cat"
    seen: list[Any] = []
    with Encoder.load(tiny_dir, provider="cpu", streams=2) as encoder:
        (part,) = encoder.windows([items], encoder.job())
        seen = [encoder.encode(items[i : i + 300]) for i in range(0, len(items), 300)]
    np.testing.assert_allclose(part.vectors, np.concatenate(seen), atol=1e-5)
    assert (part.truncated, part.replaced) == (places, [1030, 3590])


def test_the_threads_of_long_calls_stay(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """glibc keeps memory for each thread it has seen, so calls must reuse their threads."""
    with Encoder.load(tiny_dir, provider="cpu", streams=2) as encoder:
        inner, seen = pipeline_of(encoder), set[int]()
        prepare = inner._prepare

        def watched(*args: Any) -> Any:
            seen.add(threading.get_native_id())
            return prepare(*args)

        monkeypatch.setattr(inner, "_prepare", watched)
        items = texts(4500, longest=4)  # two windows, of which a thread prepares the second
        for _ in range(10):
            expected = encoder.encode(items)
            wait_until(lambda: has_an_idle_thread(inner))
        assert len(seen) == 2  # the caller's thread, and one more
        with ThreadPoolExecutor(4) as pool:  # callers at the same time do not wait for each other
            for vectors in pool.map(encoder.encode, [items] * 4):
                np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_leaving_a_stream_early_drops_what_was_not_begun(tiny_dir: Path, gate: Gate) -> None:
    begun = gate.shapes
    with Encoder.load(tiny_dir, provider="cpu", streams=2) as encoder:
        stream = encoder.stream(iter(texts(20_000)))
        next(stream)
        stream.close()
        before = len(begun)
        assert before > 100
        encoder.encode(["a dog", "a cat"], max_batch_tokens=1)  # it waits behind what is left
        # Its own two batches, and those that the two streams had begun.
        assert len(begun) - before <= 2 + 2 + 2


def test_windows_are_encoded_one_by_one(tiny: Encoder) -> None:
    parts = [["the cat", "a dog"], [], ["the red house"]]
    windows = list(tiny.windows(parts, tiny.job()))
    assert [part.vectors.shape for part in windows] == [(2, 16), (0, 16), (1, 16)]
    for part, part_texts in zip(windows, parts, strict=True):
        if part_texts:
            np.testing.assert_allclose(part.vectors, tiny.encode(part_texts), atol=1e-5)
    failing = tiny.windows([["the cat"], ["a dog", 3]], tiny.job())  # type: ignore[list-item]
    assert next(failing).vectors.shape == (1, 16)
    with pytest.raises(InputTypeError, match="item 2 is int"):
        next(failing)


# --- building blocks ------------------------------------------------------------------------------


def test_tokenize_takes_a_single_text_as_one_text(tiny: Encoder) -> None:
    assert tiny.tokenize("the cat").ids == tiny.tokenize(["the cat"]).ids


def test_run_takes_ids_in_every_form(tiny: Encoder) -> None:
    items = ["the cat", "a dog runs", ""]
    tokenized = tiny.tokenize(items)
    batches = plan(tokenized.lengths, 64)
    for ids in (tokenized, tokenized.token_ids, tokenized.ids, list(tokenized.token_ids)):
        np.testing.assert_allclose(tiny.run(ids, batches), tiny.encode(items), atol=1e-5)


@pytest.mark.parametrize(
    ("ids", "batches", "error"),
    [
        ([[2], [2]], [], InputValueError),
        ([[2]] * 3, [Batch((0, 1), 1)], InputValueError),
        ([[2]], [Batch((0, 1), 1)], InputValueError),
        ([[2], [2]], [Batch((0, 0), 1), Batch((1,), 1)], InputValueError),
        ([[2]], [Batch((-1,), 1)], InputValueError),
        ([[2, 3]], [Batch((0,), 1)], InputValueError),
        ([[-1]], [Batch((0,), 1)], InputValueError),
        ([[2**40]], [Batch((0,), 1)], InputValueError),
        ([[1.5]], [Batch((0,), 1)], InputTypeError),
        ([[True]], [Batch((0,), 1)], InputTypeError),
        ([1, 2], [Batch((0,), 1)], InputTypeError),
        ("ab", [Batch((0,), 1)], InputTypeError),
        (7, [Batch((0,), 1)], InputTypeError),
        ([[2]], None, InputTypeError),
        ([[2]], "ab", InputTypeError),
    ],
)
def test_run_refuses_ids_and_batches_that_do_not_fit(
    tiny: Encoder, ids: Any, batches: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        tiny.run(ids, batches)


def test_on_statistics_must_be_a_function(tiny_dir: Path) -> None:
    with pytest.raises(InputTypeError, match="on_statistics"):
        Encoder.load(tiny_dir, on_statistics=3)  # type: ignore[arg-type]
