"""A collection stays with the compute type that it began with, unless the caller names another."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from flowvec import Collection, Encoder
from flowvec.bulk import encode_files
from flowvec.engine.providers import OPENVINO, has_bfloat16
from flowvec.engine.selection import available_providers
from flowvec.errors import (
    ClosedError,
    FlowvecError,
    MissingDependencyError,
    ProviderUnavailableError,
)
from flowvec.machine import cpu_features


@pytest.fixture
def made_in_float32(tmp_path: Path, tiny_dir: Path) -> Path:
    """A collection that was made in float32, on a machine whose default is bfloat16."""
    if OPENVINO not in available_providers():
        pytest.skip(f"{OPENVINO} cannot run on this machine")
    if not has_bfloat16(cpu_features()):
        pytest.skip("this processor has no bfloat16")
    with (
        Encoder.load(tiny_dir, compute="float32") as encoder,
        Collection.create(tmp_path / "c", encoder=encoder) as collection,
    ):
        collection.add(["a"], ["the cat"])
    return tmp_path / "c"


def test_an_open_compute_type_is_that_of_the_collection(
    made_in_float32: Path, tiny_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        Encoder.load(tiny_dir) as encoder,
        Encoder.load(tiny_dir, compute="float32") as exact,
    ):
        with Collection.open_or_create(made_in_float32, encoder=encoder) as collection:
            collection.add(["b"], ["a dog runs"])
            wanted = exact.encode_document("a dog runs")
            assert collection.search(wanted, k=1)[0].score == pytest.approx(1, abs=1e-6)
            own = collection.encoder
            assert own is not None
            assert own is not encoder
            assert own.engine.compute == "float32"
        assert encoder.engine.compute == "bfloat16"
        assert encoder.encode("the caller's Encoder stays open").shape == (encoder.dim,)
        with pytest.raises(ClosedError):
            own.encode("the collection's own is closed")
    assert not caplog.records


def test_a_named_compute_type_is_used_with_a_warning(
    made_in_float32: Path, tiny_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Encoder.load(tiny_dir, compute="bfloat16") as encoder,
        Collection.open(made_in_float32, encoder=encoder) as collection,
    ):
        assert collection.encoder is encoder
    assert "was made in float32 and is now used in bfloat16" in caplog.text


@pytest.mark.parametrize("error", [ProviderUnavailableError, MissingDependencyError])
def test_a_recorded_compute_type_that_cannot_run_is_warned_about(
    made_in_float32: Path,
    tiny_dir: Path,
    caplog: pytest.LogCaptureFixture,
    error: type[FlowvecError],
) -> None:
    def cannot(compute: str) -> Encoder:
        raise error(compute)

    with Encoder.load(tiny_dir) as encoder:
        encoder.with_compute = cannot
        with Collection.open(made_in_float32, encoder=encoder) as collection:
            assert collection.encoder is encoder
    assert "was made in float32 and is now used in bfloat16" in caplog.text


@pytest.mark.parametrize("skip_unchanged", [False, True])
def test_bulk_jobs_into_a_collection_take_its_compute_type(
    made_in_float32: Path, tiny_dir: Path, tmp_path: Path, skip_unchanged: bool
) -> None:
    rows = ['{"id": "x", "text": "stocks fell"}', '{"id": "y", "text": "the dog sleeps"}']
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))
    done = encode_files(
        str(tiny_dir),
        tmp_path / "texts.jsonl",
        made_in_float32,
        out_format="collection",
        id_field="id",
        skip_unchanged=skip_unchanged,
    )
    assert (done.rows, done.compute) == (2, "float32")


def test_a_bulk_job_in_a_named_compute_type_warns_once(
    made_in_float32: Path, tiny_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "texts.jsonl").write_text('{"id": "x", "text": "stocks fell"}')
    with Encoder.load(tiny_dir, compute="bfloat16") as encoder:
        done = encode_files(
            encoder,
            tmp_path / "texts.jsonl",
            made_in_float32,
            out_format="collection",
            id_field="id",
        )
    assert done.compute == "bfloat16"
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1


def test_an_encoder_in_another_compute_type_keeps_the_other_settings(tiny_dir: Path) -> None:
    with (
        Encoder.load(tiny_dir, provider="cpu", streams=1, max_batch_tokens=99) as encoder,
        encoder.with_compute("float32") as exact,
    ):
        assert exact.engine == encoder.engine
        assert exact.max_batch_tokens == 99
        assert not exact.compute_is_open
        assert encoder.compute_is_open
