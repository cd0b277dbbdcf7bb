"""Names told apart from paths, digests of directories, and the command `flowvec cache`."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from flowvec import Bundle, Encoder
from flowvec.bundle.bundle import absolute_path
from flowvec.bundle.checkpoint import digest_of, is_checkpoint, signature_of
from flowvec.bundle.child import ExportRequest
from flowvec.bundle.exported import open_bundle
from flowvec.bundle.names import HubName, parse_hub_name
from flowvec.bundle.origin import Origin
from flowvec.errors import BundleError, CacheError, ExportError, InputTypeError, InputValueError
from flowvec.user_cache import cache_folder
from tests.conftest import DATA
from tests.hub import Hub
from tests.runtime.bundle.conftest import Command, Load
from tests.waiting import wait_until

BERT = DATA / "optimum" / "bert"
COMMIT = "0123456789abcdef" * 2 + "01234567"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpt2", HubName("gpt2")),
        ("org/name", HubName("org/name")),
        ("org/name.v1_x-2", HubName("org/name.v1_x-2")),
        ("org/name@main", HubName("org/name", "main")),
        ("org/name@refs/pr/1", HubName("org/name", "refs/pr/1")),
        (f"org/name@{COMMIT}", HubName("org/name", COMMIT)),
        ("x" * 96, HubName("x" * 96)),
    ],
)
def test_names_of_the_hub(text: str, expected: HubName) -> None:
    assert parse_hub_name(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text",
    ["", "a/b/c", "a//b", "/a", "a/", ".a", "-a", "a-", "a.", "a/.b", "a--b", "a..b", "a.git",
     "x" * 97, "a b", "a\\b", "a:b", "é/b", "a@", "a/b@", "http://a", "a\nb", "~/a", "a\n"],
)  # fmt: skip
def test_what_the_hub_allows_no_model_to_be_called(text: str) -> None:
    assert parse_hub_name(text) is None


@pytest.mark.parametrize("revision", ["", "../x", "a..b", "a b", "-x", "/a", "a\n"])
def test_revisions_that_git_does_not_allow(revision: str) -> None:
    with pytest.raises(InputValueError, match="branch, a tag or a commit"):
        parse_hub_name("org/name", revision)


def test_two_revisions_are_refused() -> None:
    assert parse_hub_name("org/name@v1", "v1") == HubName("org/name", "v1")
    with pytest.raises(InputValueError, match="names another revision"):
        parse_hub_name("org/name@v1", "v2")


def test_all_that_decides_a_bundle_is_in_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code or pickles that one load allows are never served to one that does not."""
    origin = Origin("hub", "org/name", COMMIT)
    assert replace(origin, made_by="2", created=1.0, seconds=2.0).key == origin.key
    others = [
        replace(origin, **change).key
        for change in (
            {"kind": "directory"}, {"name": "org/other"}, {"commit": "f" * 40},
            {"trust_remote_code": True}, {"allow_pickle": True},
        )
    ]  # fmt: skip
    for version in ("_EXPORT_VERSION", "FORMAT_VERSION"):
        monkeypatch.setattr(f"flowvec.bundle.origin.{version}", 99)
        others.append(origin.key)
        monkeypatch.undo()
    assert len({origin.key, *others}) == 8


def test_a_commit_is_known_without_the_hub() -> None:
    assert HubName("a/b", COMMIT).commit == COMMIT
    assert HubName("a/b", COMMIT[:12]).commit is None
    assert HubName("a/b").commit is None


def test_arguments_are_checked(tiny_dir: Path) -> None:
    with pytest.raises(InputValueError, match="empty"):
        Encoder.load("")
    with pytest.raises(InputTypeError, match="trust_remote_code"):
        Encoder.load("mini", trust_remote_code=1)  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match="revision must be a text"):
        Encoder.load("mini", revision=1)  # type: ignore[arg-type]
    for name in ("mini", tiny_dir):
        with pytest.raises(InputValueError, match="revision is for a model on"):
            open_bundle(name, revision="main")
    assert open_bundle("mini").handle == "mini"
    assert open_bundle(tiny_dir, trust_remote_code=True).handle == str(tiny_dir)


def test_a_checkpoint_is_no_bundle(tiny_dir: Path, tmp_path: Path) -> None:
    assert is_checkpoint(BERT)
    assert not is_checkpoint(tiny_dir)
    assert not is_checkpoint(tmp_path)
    with pytest.raises(BundleError, match="is not a bundle"):
        open_bundle(tmp_path)
    (tmp_path / "texts.txt").touch()
    with pytest.raises(BundleError, match="no bundle"):
        open_bundle(tmp_path / "texts.txt")


def test_a_directory_has_one_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From whatever directory it is named, so that a checkpoint is exported once."""
    there = tmp_path.resolve() / "a" / "b"
    there.mkdir(parents=True)
    monkeypatch.chdir(there)
    for name in (".", "../b", "../../a/b", there, there / ".." / "b"):
        assert absolute_path(name) == there


def test_a_digest_follows_the_content_and_nothing_else(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BERT, tmp_path / "a"))
    digest = digest_of(folder, None)
    assert digest_of(Path(shutil.copytree(folder, tmp_path / "b")), None) == digest
    (folder / ".hidden").write_text("x")
    assert digest_of(folder, None) == digest
    for name in ("other.json", "config.jsonl"):  # the second keeps its place
        (folder / "config.json").rename(folder / name)
        assert digest_of(folder, None) != digest
        (folder / name).rename(folder / "config.json")
    assert digest_of(folder, None) == digest
    (folder / "more").mkdir()
    (folder / "more" / "file").write_text("x")
    assert digest_of(folder, None) != digest


def test_a_recorded_digest_spares_reading_and_is_never_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, record = Path(shutil.copytree(BERT, tmp_path / "a")), tmp_path / "record.json"
    _, latest = signature_of(folder)
    with monkeypatch.context() as patch:
        patch.setattr("flowvec.bundle.checkpoint.time.time_ns", lambda: latest)
        digest = digest_of(folder, record)
    assert not record.exists()  # files that may change again within the clock's step
    with monkeypatch.context() as patch:
        patch.setattr("flowvec.bundle.checkpoint.time.time_ns", lambda: latest + 60_000_000_000)
        assert digest_of(folder, record) == digest
    assert record.exists()
    with monkeypatch.context() as patch:
        patch.setattr("flowvec.bundle.checkpoint.hashlib.file_digest", None)
        assert digest_of(folder, record) == digest
    # The same size and the same time of change, as `touch -r` leaves them, a step later.
    wait_until(lambda: (record.touch(), record.stat().st_ctime_ns)[1] > latest)
    config = folder / "config.json"
    stat = config.stat()
    config.write_bytes(config.read_bytes().replace(b"{", b"[", 1))
    os.utime(config, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert digest_of(folder, record) != digest
    record.write_text("not JSON")
    assert digest_of(folder, record) != digest


def test_without_a_home_directory_there_is_no_folder_of_that_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FLOWVEC_CACHE")
    monkeypatch.setattr("flowvec.user_cache.user_cache_path", lambda *_, **__: Path("~/.cache/f"))
    with pytest.raises(RuntimeError, match="no home directory"):
        cache_folder()
    with pytest.raises(CacheError, match="set FLOWVEC_CACHE"):
        open_bundle(BERT)
    assert Bundle.load("mini").handle == "mini"


@pytest.mark.process
def test_a_local_checkpoint_is_exported_once_and_again_after_a_change(
    hub: Hub, load: Load, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(BERT, tmp_path / "model"))
    first = load("~/model", environment={"HOME": str(tmp_path)})
    assert first["handle"] == str(folder)
    assert first["name"] == first["source"] == "model"
    assert "exporting" in first["log"]
    again = load(str(folder))
    assert (again["path"], again["imported"]) == (first["path"], [])
    assert "exporting" not in again["log"]
    graph = load(str(folder / "model.onnx"))
    assert (graph["name"], graph["vector"]) == ("model", first["vector"])
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["model_max_length"] = 12
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    changed = load(first["handle"])
    assert changed["fingerprint"] != first["fingerprint"]
    assert not hub.requests


@pytest.mark.process
def test_the_cache_is_listed_verified_and_removed(
    hub: Hub, load: Load, command: Command, model_files: dict[str, bytes], tmp_path: Path
) -> None:
    assert "0 bundles" in command("cache", "list").stdout
    first, local = load("org/tiny"), load(str(BERT))
    hub.add("org/tiny", model_files | {"more.txt": b"x"})
    second = load("org/tiny")
    listed = json.loads(command("cache", "list", "--json").stdout)
    assert {row["path"] for row in listed} == {one["path"] for one in (first, second, local)}
    assert {row["name"] for row in listed} == {"org/tiny", str(BERT)}
    kinds = {row["name"]: row["kind"] for row in listed}
    assert kinds == {"org/tiny": "static embedder", str(BERT): "embedder"}
    assert all(row["bytes"] > 1000 for row in listed)
    plain = command("cache", "list").stdout
    assert f"org/tiny  {first['handle'].split('@')[1][:12]}  static embedder" in plain

    assert command("cache", "verify").returncode == 0
    (Path(local["path"]) / "tokenizer.json").write_text("{}")
    verified = command("cache", "verify")
    assert verified.returncode == 1
    assert f"flowvec cache remove {BERT}" in verified.stderr
    assert verified.stdout.count("intact") == 2

    assert command("cache", "remove").returncode == 2
    assert "no bundle of org/none is cached" in command("cache", "remove", "org/none").stderr
    assert command("cache", "remove", BERT, first["handle"]).returncode == 0
    left = json.loads(command("cache", "list", "--json").stdout)
    assert [row["path"] for row in left] == [second["path"]]
    (tmp_path / "cache" / "bundles" / ".partial-org-tiny-0-1-12345678").mkdir()
    done = command("cache", "remove", "--all")
    assert "1 bundle removed" in done.stdout
    kept = {path.name for path in (tmp_path / "cache" / "bundles").iterdir()}
    assert kept <= {".locks", ".commits", ".checkpoints"}


def test_a_change_during_the_export_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(shutil.copytree(BERT, tmp_path / "model"))

    def change(request: ExportRequest) -> None:
        Path(request.out).mkdir()
        os.utime(source / "config.json")

    monkeypatch.setattr("flowvec.bundle.exported.export_in_child", change)
    with pytest.raises(ExportError, match="changed while"):
        Encoder.load(source)
    left = [path.name for path in (cache / "bundles").iterdir()]
    assert set(left) <= {".locks", ".checkpoints"}
