"""Proof at load: an engine that gives wrong vectors is refused, or passed over with one warning."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowvec import Bundle, BundleError, Encoder, InputValueError
from flowvec.bundle.manifest import REFERENCES
from flowvec.cli import doctor
from flowvec.encoder import proof
from flowvec.encoder.proof import MIN_COSINE_OF, open_proved
from flowvec.encoder.references import References
from flowvec.engine.providers import CPU, NATIVE, OPENVINO, Engine, choose
from flowvec.engine.selection import available_providers
from flowvec.engine.tuned import Tuned, save_tuned
from flowvec.errors import EngineError, EngineNotProvedError, ProviderUnavailableError
from flowvec.tuning import tune

pytestmark = pytest.mark.usefixtures("cache")


class Wrapped:
    """A real session whose vectors are changed before anybody sees them."""

    def __init__(self, session, change) -> None:
        self._session, self._change = session, change
        self.engine = session.engine

    def run(self, input_ids, attention_mask):
        vectors = self._session.run(input_ids, attention_mask).copy()
        self._change(vectors, input_ids)
        return vectors


def wrong_rows_for_odd_widths(vectors, ids) -> None:
    if ids.shape[1] % 2 and len(ids) > 1:
        vectors[-1] = -vectors[-1]


@pytest.fixture
def lie(monkeypatch: pytest.MonkeyPatch):
    """Make engines wrong; gives the list of engines that were opened."""
    opened: list[Engine] = []
    really = proof.open_session

    def install(change: Callable, which: Callable[[Engine], bool] = lambda _: True) -> list[Engine]:
        def open_session(bundle: Bundle, engine: Engine):
            opened.append(engine)
            session = really(bundle, engine)
            return Wrapped(session, change) if which(engine) else session

        monkeypatch.setattr(proof, "open_session", open_session)
        return opened

    return install


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, object], None]:
    """Let what a proof asks about its machine answer something else."""
    return lambda name, answer: monkeypatch.setattr(proof, name, lambda: answer)


@pytest.fixture
def counted(lie) -> list[int]:
    """How many batches ran, in the list's only item."""
    runs, lock = [0], threading.Lock()

    def count(vectors, ids) -> None:
        with lock:
            runs[0] += 1

    lie(count)
    return runs


def nothing(vectors, ids) -> None:
    """An engine that is right."""


# --- a right engine -------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [1, 2, 5])
@pytest.mark.parametrize("provider", [CPU, OPENVINO])
def test_an_engine_that_agrees_is_proved_and_says_so(
    tiny_dir: Path, provider: str, streams: int
) -> None:
    if provider not in available_providers():
        pytest.skip(f"{provider} cannot run on this machine")
    with Encoder.load(tiny_dir, provider=provider, compute="float32", streams=streams) as encoder:
        assert encoder.proof.proved
        assert encoder.proof.min_cosine >= MIN_COSINE_OF["float32"]
        assert encoder.proof.texts >= 20
        assert encoder.info().proof.startswith("proved: cosine ")


def test_the_proof_runs_once_on_a_machine_and_then_comes_from_the_cache(
    tiny_dir: Path, cache: Path, counted: list[int]
) -> None:
    with Encoder.load(tiny_dir, provider="cpu") as encoder:
        first = encoder.proof
    assert counted[0] > 24
    counted[0] = 0
    with Encoder.load(tiny_dir, provider="cpu") as encoder:
        assert encoder.proof == first
    assert counted == [0]
    assert [path.parent.name for path in cache.rglob("*.json")] == ["proofs"]


def test_proof_always_repeats_it_and_proof_never_skips_it(
    tiny_dir: Path, counted: list[int]
) -> None:
    for _ in range(2):
        counted[0] = 0
        Encoder.load(tiny_dir, provider="cpu", proof="always").close()
        assert counted[0] > 24
    counted[0] = 0
    with Encoder.load(tiny_dir, provider="cpu", proof="never") as encoder:
        assert "not proved" in encoder.info().proof
        assert not encoder.proof.proved
    assert counted == [0]
    with pytest.raises(InputValueError, match=r"proof .*cached, never"):
        Encoder.load(tiny_dir, proof="sometimes")


@pytest.mark.parametrize(
    "change", ["processor", "flags", "version", "limit", "streams", "threads", "bundle"]
)
def test_what_can_change_a_vector_needs_a_new_proof(
    tiny_copy: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch, another, change: str
) -> None:
    options = {"provider": "cpu", "streams": 1, "threads": 1}
    Encoder.load(tiny_copy, **options).close()
    counted[0] = 0
    Encoder.load(tiny_copy, **options).close()
    assert counted == [0]
    if change == "processor":
        another("cpu_name", "Another Processor")
    elif change == "flags":
        another("vector_instructions", ["avx2"])
    elif change == "version":
        another("installed_versions", {"onnxruntime": "99"})
    elif change == "limit":
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
        monkeypatch.setenv("ORT_A_LIMIT", "1")
    elif change == "bundle":
        file = tiny_copy / REFERENCES
        references = References.read(file, 16)
        fewer = References(references.ids[1:], references.vectors[1:])
        file.write_bytes(fewer.to_bytes())
        record(tiny_copy)
    else:
        options |= {change: 2}
    Encoder.load(tiny_copy, **options).close()
    assert counted[0] > 24


def record(folder: Path) -> None:
    """Record the references file, as it is, in the manifest."""
    import hashlib

    raw = json.loads((folder / "manifest.json").read_text())
    content = (folder / REFERENCES).read_bytes()
    raw["files"][REFERENCES] = {
        "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(raw))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "nonsense", "[" * 100_000, '{"proved": true}', "null", "\x00"]
)
def test_a_damaged_cache_of_proofs_is_ignored(
    tiny_dir: Path, cache: Path, counted: list[int], text: str
) -> None:
    Encoder.load(tiny_dir, provider="cpu").close()
    (file,) = cache.rglob("*.json")
    file.write_text(text)
    counted[0] = 0
    with Encoder.load(tiny_dir, provider="cpu") as encoder:
        assert encoder.proof.proved
    assert counted[0] > 24


def test_a_cached_proof_below_the_limit_is_ignored(tiny_dir: Path, cache: Path) -> None:
    Encoder.load(tiny_dir, provider="cpu").close()
    (file,) = cache.rglob("*.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"min_cosine": 0.5}))
    with Encoder.load(tiny_dir, provider="cpu") as encoder:
        assert encoder.proof.min_cosine > 0.999


@pytest.mark.parametrize("folder", ["file/cache", "~no-such-user/cache"])
def test_without_a_cache_the_proof_runs_each_time(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: list[int],
    caplog: pytest.LogCaptureFixture, folder: str,
) -> None:  # fmt: skip
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOWVEC_CACHE", folder)
    with caplog.at_level(logging.DEBUG, logger="flowvec"):
        for _ in range(2):
            counted[0] = 0
            with Encoder.load(tiny_dir, provider="cpu") as encoder:
                assert encoder.proof.proved
            assert counted[0] > 24
    said = [r for r in caplog.records if "cannot be cached" in r.getMessage()]
    assert len(said) == 2
    assert {r.levelno for r in said} == {logging.DEBUG}


# --- an engine with wrong vectors -----------------------------------------------------------------


def test_an_engine_with_wrong_vectors_is_refused_with_its_figures(tiny_dir: Path, lie) -> None:
    lie(wrong_rows_for_odd_widths)
    with pytest.raises(ProviderUnavailableError) as caught:
        Encoder.load(tiny_dir, provider="cpu", compute="float32")
    said = str(caught.value)
    assert isinstance(caught.value, EngineNotProvedError)
    assert "CPUExecutionProvider in float32" in said
    assert "cosine of -1.00000" in said
    assert "at least 0.99999" in said
    assert "onnxruntime " in said
    assert "Leave provider out" in said
    assert "flowvec doctor" in said


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("odd row counts", lambda v, ids: np.negative(v, out=v) if len(ids) in (3, 5, 7) else 0),
        ("even row counts", lambda v, ids: np.negative(v, out=v) if len(ids) % 2 == 0 else 0),
        ("one token", lambda v, ids: np.negative(v, out=v) if ids.shape[1] == 1 else 0),
        ("the longest", lambda v, ids: np.negative(v, out=v) if ids.shape[1] > 60 else 0),
        ("NaN", lambda v, ids: v.__setitem__((0, 0), np.nan) if ids.shape[1] == 17 else 0),
        ("zeros", lambda v, ids: v.__setitem__(0, 0.0) if ids.shape[1] == 17 else 0),
        ("lengths", lambda v, ids: np.multiply(v, 1.5, out=v)),
        ("a little noise", lambda v, ids: v.__iadd__(
            np.random.default_rng(0).normal(size=v.shape) * 0.02 * np.abs(v).max())),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_the_proof_sees_every_kind_of_wrong_vector(tiny_dir: Path, lie, name: str, change) -> None:
    lie(change)
    with pytest.raises(EngineNotProvedError):
        Encoder.load(tiny_dir, provider="cpu", compute="float32", streams=1)


def test_short_sparse_vectors_are_measured_beside_the_others(sparse_dir: Path, lie) -> None:
    bundle = Bundle.load(sparse_dir)
    references = References.read(sparse_dir / REFERENCES, bundle.manifest.dim, "sparse")
    lengths = np.linalg.norm(references.vectors, axis=1)
    # The first text has almost no weights, and the engine gives it others of the same kind.
    small = references.vectors.copy()
    small[0] *= 0.0002 * np.median(lengths) / lengths[0]
    changed = replace(references, vectors=small)
    session = proof.open_session(bundle, Engine(CPU, "float32", 1))

    def giving(row: np.ndarray) -> Wrapped:
        def change(vectors, ids) -> None:
            for i, tokens in enumerate(ids):
                kept = tokens[tokens != bundle.manifest.pad_id]
                if tuple(kept.tolist()) == references.ids[0]:
                    vectors[i] = row

        return Wrapped(session, change)

    pad_id = bundle.manifest.pad_id
    for row in (np.roll(small[0], 1), np.zeros_like(small[0])):
        assert proof.compare(giving(row), changed, pad_id, "sparse").proved
        # Of other kinds, the direction counts.
        assert not proof.compare(giving(row), changed, pad_id, "embedder").proved
    # What it had before is far too much.
    assert not proof.compare(giving(references.vectors[0]), changed, pad_id, "sparse").proved


def test_the_proof_sees_one_wrong_stream_of_several(tiny_dir: Path, lie) -> None:
    first: list[int] = []
    lock = threading.Lock()

    def change(vectors, ids) -> None:
        with lock:
            if not first:
                first.append(threading.get_ident())
        if threading.get_ident() == first[0]:
            np.negative(vectors, out=vectors)

    lie(change)
    with pytest.raises(EngineNotProvedError):
        Encoder.load(tiny_dir, provider="cpu", compute="float32", streams=4)


def test_a_refusal_is_remembered_and_costs_no_load(tiny_dir: Path, lie) -> None:
    opened = lie(wrong_rows_for_odd_widths)
    for _ in range(2):
        with pytest.raises(EngineNotProvedError, match="cosine"):
            Encoder.load(tiny_dir, provider="cpu", compute="float32")
    assert len(opened) == 1


def test_the_proof_is_repeated_after_an_upgrade(tiny_dir: Path, lie, another) -> None:
    lie(wrong_rows_for_odd_widths)
    with pytest.raises(EngineNotProvedError):
        Encoder.load(tiny_dir, provider="cpu", compute="float32")
    lie(nothing)
    another("installed_versions", {"onnxruntime": "99"})
    with Encoder.load(tiny_dir, provider="cpu", compute="float32") as encoder:
        assert encoder.proof.proved


def test_an_engine_that_fails_on_the_references_is_refused_and_proved_again_later(
    tiny_dir: Path, lie
) -> None:
    def fail(vectors, ids) -> None:
        raise EngineError("no memory is left")

    opened = lie(fail)
    for _ in range(2):
        with pytest.raises(EngineNotProvedError, match="no memory is left"):
            Encoder.load(tiny_dir, provider="cpu", compute="float32")
    assert len(opened) == 2


def test_auto_takes_the_next_engine_with_one_warning(
    tiny_dir: Path, lie, caplog: pytest.LogCaptureFixture
) -> None:
    if OPENVINO not in available_providers():
        pytest.skip(f"{OPENVINO} cannot run on this machine")
    opened = lie(wrong_rows_for_odd_widths, lambda engine: engine.provider != CPU)
    with Encoder.load(tiny_dir, device="cpu") as encoder:
        assert encoder.engine.provider == CPU
        assert encoder.proof.proved
    assert opened[0].provider != CPU
    (said,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert said.startswith("CPUExecutionProvider in float32 is used instead: ")
    assert opened[0].provider in said
    assert "Leave" not in said  # nobody gave an option that could be left out
    # With the refusal in the cache, nothing else is loaded, but the message is the same.
    opened.clear()
    caplog.clear()
    Encoder.load(tiny_dir, device="cpu").close()
    assert [engine.provider for engine in opened] == [CPU]
    assert len(caplog.records) == 1


def test_without_a_right_engine_loading_fails(tiny_dir: Path, lie) -> None:
    lie(wrong_rows_for_odd_widths)
    with pytest.raises(EngineNotProvedError, match="is not proved on this machine"):
        Encoder.load(tiny_dir)


def test_an_engine_that_was_named_is_not_replaced_after_its_proof_failed(
    tiny_dir: Path, lie
) -> None:
    if OPENVINO not in available_providers():
        pytest.skip(f"{OPENVINO} cannot run on this machine")
    lie(wrong_rows_for_odd_widths, lambda engine: engine.provider == OPENVINO)
    with pytest.raises(EngineNotProvedError):
        Encoder.load(tiny_dir, provider=OPENVINO)
    with pytest.raises(EngineNotProvedError):
        Encoder.load(tiny_dir, provider=OPENVINO, compute="float32")
    with Encoder.load(tiny_dir, compute="float32") as encoder:  # any provider
        assert encoder.engine.compute == "float32"
        assert encoder.engine.provider != OPENVINO


_ABSENT = ("CUDAExecutionProvider", "TensorrtExecutionProvider")
ABLE = dict.fromkeys((NATIVE, OPENVINO, CPU)) | dict.fromkeys(_ABSENT, "not here")
BF16 = {"avx2", "avx512f", "avx512_vnni", "avx512_bf16"}


@pytest.mark.parametrize(
    ("options", "refused", "taken"),
    [
        ({}, [], (OPENVINO, "bfloat16")),
        ({}, [(OPENVINO, "bfloat16")], (CPU, "float32")),
        (
            {},
            [(OPENVINO, "bfloat16"), (CPU, "float32")],
            (OPENVINO, "float32"),
        ),
        ({"provider": "openvino"}, [(OPENVINO, "bfloat16")], (OPENVINO, "float32")),
        ({"compute": "float32"}, [(OPENVINO, "float32")], (CPU, "float32")),
        ({"compute": "int8"}, [(OPENVINO, "int8")], (CPU, "int8")),
        ({"provider": "openvino", "compute": "int8"}, [(OPENVINO, "int8")], None),
        ({"provider": "cpu"}, [(CPU, "float32")], None),
    ],
)
def test_which_engine_follows_one_that_is_refused(options, refused, taken) -> None:
    variants = ("int8", "int8-openvino")
    if taken is None:
        with pytest.raises(ProviderUnavailableError, match="no engine is proved"):
            choose(ABLE, BF16, 2, variants, refused=refused, **options)
    else:
        engine = choose(ABLE, BF16, 2, variants, refused=refused, **options)
        assert (engine.provider, engine.compute) == taken


def test_int8_of_openvino_is_not_offered_where_it_cannot_be_computed() -> None:
    with pytest.raises(ProviderUnavailableError, match="AVX-512"):
        choose(ABLE, {"avx2"}, 2, ("int8-openvino",), provider="openvino", compute="int8")
    assert choose(ABLE, {"avx2"}, 2, ("int8-openvino", "int8"), compute="int8").provider == CPU


def test_tuned_settings_of_a_wrong_engine_are_left_out_with_one_warning(
    tiny_dir: Path, lie, caplog: pytest.LogCaptureFixture
) -> None:
    if OPENVINO not in available_providers():
        pytest.skip(f"{OPENVINO} cannot run on this machine")
    tuned = Tuned(OPENVINO, "float32", 1, 2, 333, False, {}, "2026-01-01T00:00:00+00:00")
    save_tuned(Bundle.load(tiny_dir).fingerprint, tuned)
    with Encoder.load(tiny_dir) as encoder:
        assert encoder.info().tuned == tuned.measured
    shutil.rmtree(Path(os.environ["FLOWVEC_CACHE"]) / "proofs")
    lie(wrong_rows_for_odd_widths, lambda engine: engine.compute == "float32" != engine.provider
        and engine.provider == OPENVINO)  # fmt: skip
    with Encoder.load(tiny_dir) as encoder:
        assert encoder.info().tuned is None
        assert (encoder.engine.provider, encoder.engine.compute) != (OPENVINO, "float32")
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


@pytest.mark.engines
def test_tuning_keeps_no_engine_without_a_proof(tiny_dir: Path, lie) -> None:
    if OPENVINO not in available_providers():
        pytest.skip(f"{OPENVINO} cannot run on this machine")
    lie(wrong_rows_for_odd_widths, lambda engine: engine.provider != CPU)
    seen = []
    settings = tune(
        Bundle.load(tiny_dir), seconds=0.1, allow_compute=True,
        on_measured=lambda _, tried: seen.extend(m.candidate.engine.provider for m in tried),
    )  # fmt: skip
    assert settings.provider == CPU
    assert set(seen) == {CPU}


def test_doctor_shows_every_engine_and_reports_if_none_is_right(tiny_dir: Path, lie) -> None:
    lie(wrong_rows_for_odd_widths, lambda engine: engine.provider == OPENVINO)
    report = doctor.examine(str(tiny_dir))
    by_engine = {(p.provider, p.compute): p for p in report.proofs}
    assert by_engine[CPU, "float32"].proved
    assert by_engine[CPU, "float32"].text.startswith("proved: cosine")
    assert not any(p.proved for p in report.proofs if p.provider == OPENVINO)
    assert not any("no engine is proved" in problem for problem in report.problems)
    shutil.rmtree(Path(os.environ["FLOWVEC_CACHE"]))
    lie(wrong_rows_for_odd_widths)
    problems = doctor.examine(str(tiny_dir)).problems
    assert any("no engine is proved for tiny" in problem for problem in problems)
    assert any("no bundle" in p for p in doctor.examine("nowhere").problems)


# --- other processes ------------------------------------------------------------------------------


def test_a_pickled_encoder_is_proved_where_it_arrives(tiny_dir: Path, lie) -> None:
    with Encoder.load(tiny_dir, provider="cpu", compute="float32") as encoder:
        sent = pickle.dumps(encoder)
    shutil.rmtree(os.environ["FLOWVEC_CACHE"])  # another machine
    lie(wrong_rows_for_odd_widths)
    with pytest.raises(EngineNotProvedError):
        pickle.loads(sent)
    with pytest.raises(EngineNotProvedError) as caught:
        Encoder.load(tiny_dir, provider="cpu")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.provider, again.compute) == (
        str(caught.value), CPU, "float32"
    )  # fmt: skip


_LOAD = """
import sys
from flowvec import Encoder
with Encoder.load(sys.argv[1], provider="cpu", streams=2) as encoder:
    print(encoder.info().proof)
"""


@pytest.mark.process
def test_processes_that_begin_together_agree(tiny_dir: Path, cache: Path) -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", _LOAD, tiny_dir], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [child.communicate(timeout=600)[0] for child in children]
    assert all(text.startswith("proved") for text in said)
    assert [path.suffix for path in (cache / "proofs").iterdir()] == [".json"]


# --- damaged references ---------------------------------------------------------------------------


def test_a_bundle_needs_its_references(tiny_copy: Path) -> None:
    raw = json.loads((tiny_copy / "manifest.json").read_text())
    del raw["files"][REFERENCES]
    (tiny_copy / "manifest.json").write_text(json.dumps(raw))
    (tiny_copy / REFERENCES).unlink()
    with pytest.raises(BundleError, match=r"files .*references\.npz"):
        Bundle.load(tiny_copy)


def test_references_of_another_bundle_are_refused(tiny_copy: Path) -> None:
    mini = Bundle.load("mini").path
    shutil.copy(mini / REFERENCES, tiny_copy / REFERENCES)
    with pytest.raises(BundleError, match=r"references\.npz"):
        Encoder.load(tiny_copy, provider="cpu")
    record(tiny_copy)
    with pytest.raises(BundleError, match="vectors of 16 dim"):
        Encoder.load(tiny_copy, provider="cpu")


def test_token_ids_that_the_model_does_not_know_fail_as_an_engine_does(tiny_copy: Path) -> None:
    references = References.read(tiny_copy / REFERENCES, 16)
    odd = References((*references.ids[1:], (10**6,)), references.vectors)
    (tiny_copy / REFERENCES).write_bytes(odd.to_bytes())
    record(tiny_copy)
    with pytest.raises(EngineNotProvedError, match="CPUExecutionProvider failed"):
        Encoder.load(tiny_copy, provider="cpu")


def test_open_proved_gives_a_session_that_runs(tiny_dir: Path) -> None:
    bundle = Bundle.load(tiny_dir)
    session, result = open_proved(bundle, Engine(CPU, "float32", 1))
    ids = np.array([[2, 3]], dtype=np.int64)
    assert session.run(ids, np.ones_like(ids)).shape == (1, 16)
    assert result.proved


_LIMITED = """
import sys, numpy as np
from flowvec import Encoder
from flowvec.errors import ProviderUnavailableError
with Encoder.load(sys.argv[1], provider="cpu") as encoder:
    exact = encoder.encode("the cat")
with Encoder.load(sys.argv[1]) as encoder:
    assert np.allclose(encoder.encode("the cat"), exact, atol=1e-4)
options = {"provider": "OpenVINORuntime", "compute": "float32", "streams": int(sys.argv[2])}
try:
    with Encoder.load(sys.argv[1], **options) as encoder:
        print("right" if np.allclose(encoder.encode("the cat"), exact, atol=1e-4) else "wrong")
except ProviderUnavailableError:
    print("refused")
"""


@pytest.mark.process
@pytest.mark.parametrize("streams", [1, 2])
def test_a_processor_that_openvino_cannot_serve_is_served_by_another(
    tiny_dir: Path, streams: int
) -> None:
    """With SSE4.1 OpenVINO 2026.4.1 fails, with one stream silently: it gives no rows."""
    if OPENVINO not in available_providers():
        pytest.skip(f"{OPENVINO} cannot run on this machine")
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, tiny_dir, str(streams)],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": "SSE41"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() in ("right", "refused"), done.stderr
