"""The model of a collection's vectors: recorded once, and checked at every use."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from flowvec import (
    Collection,
    CollectionError,
    Encoder,
    FingerprintMismatchError,
)
from tests.inside import store_of


def test_another_model_is_refused(tmp_path: Path, tiny: Encoder, nan_dir: Path) -> None:
    Collection.create(tmp_path / "c", encoder=tiny).close()
    Collection.create(tmp_path / "v", dim=16).close()
    Collection.create(tmp_path / "w", dim=3).close()
    with Encoder.load(nan_dir, provider="cpu") as other:
        with pytest.raises(FingerprintMismatchError, match="nan is another model"):
            Collection.open(tmp_path / "c", encoder=other)
        # Plain vectors may have been made by any model of their length.
        Collection.open(tmp_path / "v", encoder=other).close()
        with pytest.raises(FingerprintMismatchError, match="3 dimensions"):
            Collection.open(tmp_path / "w", encoder=other)


def test_the_first_texts_decide_whose_vectors_a_plain_collection_holds(
    tmp_path: Path, tiny: Encoder, nan_dir: Path
) -> None:
    Collection.create(tmp_path / "c", dim=16).close()
    with Encoder.load(nan_dir, provider="cpu") as other:
        with Collection.open(tmp_path / "c", encoder=other) as late:
            with Collection.open(tmp_path / "c", encoder=tiny) as c:
                c.add([1], ["the cat"])
                assert c.info().fingerprint == tiny.fingerprint
            with pytest.raises(FingerprintMismatchError):
                late.add([2], ["a dog"])
            assert len(late) == 1
        with pytest.raises(FingerprintMismatchError):
            Collection.open(tmp_path / "c", encoder=other)


def test_a_model_that_was_not_committed_is_not_remembered(tmp_path: Path, tiny: Encoder) -> None:
    Collection.create(tmp_path / "c", dim=16).close()
    with Collection.open(tmp_path / "c", encoder=tiny) as c:
        writer = store_of(c).database.connection
        writer.set_authorizer(
            lambda action, what, *_: (
                sqlite3.SQLITE_DENY
                if (action, what) == (sqlite3.SQLITE_TRANSACTION, "COMMIT")
                else sqlite3.SQLITE_OK
            )
        )
        with pytest.raises(CollectionError, match="not authorized"):
            c.add([1], ["the cat"])
        writer.set_authorizer(None)
        assert len(c) == 0
        c.add([1], ["the cat"])
    with Collection.open(tmp_path / "c") as c:
        assert c.info().fingerprint == tiny.fingerprint


def test_another_compute_type_warns(tmp_path: Path, tiny: Encoder, caplog) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c, store_of(c).transaction():
        store_of(c).meta.write_settings({"compute": "bfloat16"})
    assert not caplog.records
    Collection.open(tmp_path / "c", encoder=tiny).close()
    assert "made in bfloat16 and is now used in float32" in caplog.text


def test_another_models_queries_are_refused_as_soon_as_there_is_one(
    tmp_path: Path, tiny: Encoder, tiny_copy: Path
) -> None:
    import json

    manifest = json.loads((tiny_copy / "manifest.json").read_text())
    manifest["max_length"] -= 1
    (tiny_copy / "manifest.json").write_text(json.dumps(manifest))
    Collection.create(tmp_path / "c", dim=tiny.dim).close()
    with (
        Encoder.load(tiny_copy) as other,
        Collection.open(tmp_path / "c", encoder=other) as late,
        Collection.open(tmp_path / "c", encoder=tiny) as c,
    ):
        c.add(["a"], ["the cat"])
        assert late.search(np.ones(tiny.dim), k=1)[0].id == "a"
        with pytest.raises(FingerprintMismatchError):
            late.search("the cat")
