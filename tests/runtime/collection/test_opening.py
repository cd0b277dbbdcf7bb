"""Creating, opening and closing a collection."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowvec import (
    ClosedError,
    Collection,
    CollectionError,
    Encoder,
    FingerprintMismatchError,
    InputTypeError,
    InputValueError,
)
from flowvec.bulk import encode_files
from flowvec.collection.store.store import FILE
from tests.inside import run_sql
from tests.makers import vectors


def test_create_refuses_what_is_not_empty(tmp_path: Path) -> None:
    Collection.create(tmp_path / "c", dim=2).close()
    with pytest.raises(CollectionError, match="not empty"):
        Collection.create(tmp_path / "c", dim=2)
    (tmp_path / "file").write_text("x")
    with pytest.raises(CollectionError, match="cannot create"):
        Collection.create(tmp_path / "file", dim=2)


@pytest.mark.parametrize(
    "options",
    [{}, {"dim": 0}, {"dim": -1}, {"dim": 8.0}, {"dim": 2, "metric": "hamming"}, {"dim": True}],
)
def test_create_refuses_impossible_options(tmp_path: Path, options) -> None:
    kind = InputTypeError if type(options.get("dim", 0)) is not int else InputValueError
    with pytest.raises(kind):
        Collection.create(tmp_path / "c", **options)
    assert not (tmp_path / "c" / "collection.sqlite").exists()


@pytest.mark.parametrize("path", ["s3://b/c?region=x", Path("s3://b/c"), "file:///b/c"])
def test_a_url_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputValueError, match=r"/b/c is a URL.*directory$"):
        Collection.create(path, dim=2)
    with pytest.raises(CollectionError, match=r"/b/c is a URL.*directory\. "):
        Collection.open(path)
    assert not list(tmp_path.iterdir())
    if os.name != "nt":  # a name like any other
        Collection.create(tmp_path / "run:" / "c", dim=2).close()


def test_open_refuses_what_is_not_a_collection(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="is not a collection"):
        Collection.open(tmp_path)
    with pytest.raises(CollectionError, match="is not a collection"):
        Collection.open(tmp_path / "nowhere")


@pytest.mark.skipif(os.name == "nt", reason="Windows does not delete files that are open")
@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_what_was_deleted_takes_no_changes(tmp_path: Path, how: str) -> None:
    """They would be acknowledged, and be in a file that nobody can open."""
    old = Collection.create(tmp_path / "c", dim=2)
    old.add_vectors([1], [[1, 0]])
    if how == "moved":
        (tmp_path / "c").rename(tmp_path / "d")
    else:
        shutil.rmtree(tmp_path / "c")
    if how == "replaced":
        Collection.create(tmp_path / "c", dim=2).close()
    for call in (
        lambda: old.add_vectors([2], [[0, 1]]),
        lambda: old.delete([1]),
        lambda: old.update_metadata([1], [{"a": 1}]),
        old.info,
    ):
        with pytest.raises(CollectionError, match="deleted, moved or replaced"):
            call()
    old.close()


def test_a_closed_collection_refuses_work(tmp_path: Path) -> None:
    c = Collection.create(tmp_path / "c", dim=2)
    c.close()
    c.close()
    for call in (lambda: c.search([1, 0]), lambda: len(c), lambda: c.get([1]), c.info):
        with pytest.raises(ClosedError):
            call()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_gets_an_error_that_says_open_again(python) -> None:
    code = """
import os, threading, time, warnings
warnings.simplefilter("ignore")
from flowvec import Collection, CollectionError
began = threading.Event()
def hold(c):  # another thread is writing, and in the child it never ends
    with c._access._turn:
        began.set()
        time.sleep(600)
c = Collection.create("c", dim=2)
c.add_vectors([1], [[1, 0]])
threading.Thread(target=hold, args=(c,), daemon=True).start()
began.wait()
child = os.fork()
if child == 0:
    for use in (lambda: c.search([1, 0]), lambda: c.add_vectors([2], [[1, 0]]), c.compact):
        try:
            use()
        except CollectionError as error:
            if "open it again" not in str(error):
                os._exit(8)
        else:
            os._exit(9)
    c.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_info_describes_the_collection(tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add([1], ["a"])
        info = c.info()
    assert (info.rows, info.dim, info.metric, info.search) == (1, 16, "cosine", "exact")
    assert (info.model, info.compute) == (str(tiny.bundle.path), "float32")
    assert info.bytes > 0


def test_a_name_that_no_folder_can_have_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(InputValueError, match="cannot be a path"):
        Collection.create(tmp_path / "a\0b", dim=2)


def test_a_collection_whose_creation_was_killed_can_be_created_again(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / FILE).touch()
    with pytest.raises(CollectionError, match="its creation was interrupted"):
        Collection.open(tmp_path / "c")
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors([1], [[1, 0]])
    with pytest.raises(CollectionError, match="is not empty"):
        Collection.create(tmp_path / "c", dim=2)


@pytest.mark.parametrize("opener", [Collection.create, Collection.open])
def test_an_encoder_is_not_a_name(tmp_path: Path, opener: Callable[..., Collection]) -> None:
    with pytest.raises(InputTypeError, match=r"Encoder\.load"):
        opener(tmp_path / "c", encoder="mini")
    assert not (tmp_path / "c").exists()


def test_a_closed_collection_raises(tmp_path: Path) -> None:
    c = Collection.create(tmp_path / "c", dim=4)
    c.add_vectors([1], vectors(1, dim=4))
    rows = c.rows()
    c.close()
    c.close()
    for use in (
        lambda: len(c), lambda: c.get([1]), lambda: next(rows), c.info, c.verify, c.refresh,
        c.compact, c.tune_recall, c.index_texts, lambda: c.delete([1]),
        lambda: c.search(vectors(1, dim=4)[0]), lambda: c.search_ids(vectors(1, dim=4), 1),
        lambda: c.add_vectors([2], vectors(1, dim=4)),
    ):  # fmt: skip
        with pytest.raises(ClosedError, match="closed"):
            use()


def test_open_or_create_opens_what_is_there(tmp_path: Path, tiny: Encoder) -> None:
    for count in (1, 2, 3):
        with Collection.open_or_create(tmp_path / "c", encoder=tiny) as c:
            c.add([count], ["a cat"])
            assert len(c) == count
    with Collection.create(tmp_path / "c", encoder=tiny, exist_ok=True) as c:
        assert len(c) == 3
    with pytest.raises(CollectionError, match="it holds a collection"):
        Collection.create(tmp_path / "c", encoder=tiny)
    for wrong in ({"metric": "ip"}, {"vector_dtype": "float16"}):
        with pytest.raises(InputValueError, match=r"metric cosine|dtype float32"):
            Collection.open_or_create(tmp_path / "c", encoder=tiny, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InputValueError, match="has dim 16, not 3"):
        Collection.open_or_create(tmp_path / "c", dim=3)


def test_open_or_create_refuses_another_model_and_other_files(
    tmp_path: Path, tiny: Encoder, mini: Encoder
) -> None:
    Collection.open_or_create(tmp_path / "c", encoder=tiny).close()
    with pytest.raises(FingerprintMismatchError):
        Collection.open_or_create(tmp_path / "c", encoder=mini)
    (tmp_path / "d").mkdir()
    (tmp_path / "d/notes.txt").write_text("mine")
    with pytest.raises(CollectionError, match=r"it holds notes\.txt"):
        Collection.open_or_create(tmp_path / "d", encoder=tiny)
    assert [file.name for file in (tmp_path / "d").iterdir()] == ["notes.txt"]


def test_the_folder_of_a_bulk_job_is_refused_by_name(tmp_path: Path, mini: Encoder) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra [files]")
    (tmp_path / "texts.txt").write_text("a cat")
    encode_files(mini, tmp_path / "texts.txt", tmp_path / "job")
    files = sorted((tmp_path / "job").iterdir())
    with pytest.raises(CollectionError, match="job is the folder"):
        Collection.open_or_create(tmp_path / "job", encoder=mini)
    assert sorted((tmp_path / "job").iterdir()) == files
    Collection.from_parquet(tmp_path / "c", tmp_path / "job").close()


def test_a_repr_names_path_rows_and_model(tmp_path: Path, mini: Encoder) -> None:
    path = tmp_path / "c"
    with Collection.create(path, encoder=mini) as c:
        c.add(["a", "b"], ["a cat", "a dog"])
        assert repr(c) == f"Collection({str(path)!r}, rows=2, model='mini')"
        c.delete(["a"])
        assert "rows=1" in repr(c)
    assert repr(c) == f"<Collection {str(path)!r}: this Collection is closed>"
    with Collection.create(tmp_path / "d", dim=3) as c:
        assert repr(c) == f"Collection({str(tmp_path / 'd')!r}, rows=0, dim=3)"
    with Collection.open(path) as c:
        run_sql(path, "UPDATE meta SET value = 'x' WHERE key = 'rows'")
        assert "is damaged" in repr(c)
