"""Secrets in URLs of inputs and outputs are used, and never written or printed."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from tests.buckets.conftest import on_both_servers
from tests.faults.bucket_server import KEY, SECRET, Bucket, url_of
from tests.makers import texts_of

pytest.importorskip("s3fs", reason="needs the extra [s3]")
pytest.importorskip("moto", reason="needs the extra [test-buckets]")

# A password and a signature that are changed while a job waits.
FIRST, SECOND = ("hush-one-%2Bword", "hushsig1"), ("hush-two-word", "hushsig2")


class Files(ThreadingHTTPServer):
    """Files by HTTP for who knows the password and the signature; each has two versions."""

    password, signature = FIRST
    fails_after: int | None = None

    def __init__(self, versions: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.versions = versions

    def url(self, version: str, *, chain: str = "") -> str:
        options = f"sig={self.signature}&versionId={version}"
        return f"{chain}http://reader:{self.password}@127.0.0.1:{self.server_port}/rows.jsonl?{options}"


class _Answer(BaseHTTPRequestHandler):
    server: Files

    def do_GET(self, *, with_body: bool = True) -> None:
        options = parse_qs(urlsplit(self.path).query)
        user = f"reader:{unquote(self.server.password)}"
        expected = f"Basic {base64.b64encode(user.encode()).decode()}"
        is_allowed = options.get("sig") == [self.server.signature]
        if self.server.fails_after is not None:
            self.server.fails_after -= 1
            is_allowed = is_allowed and self.server.fails_after > 0
        if self.headers["Authorization"] != expected or not is_allowed:
            self.send_error(403)
            return
        content = self.server.versions[options["versionId"][0]]
        total, status = len(content), 200
        if wanted := self.headers["Range"]:
            start, _, end = wanted.removeprefix("bytes=").partition("-")
            content = content[int(start) : int(end or total - 1) + 1]
            status = 206
        self.send_response(status)
        if status == 206:
            self.send_header(
                "Content-Range", f"bytes {start}-{int(start) + len(content) - 1}/{total}"
            )
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def do_HEAD(self) -> None:
        self.do_GET(with_body=False)

    def log_message(self, *args: Any) -> None:
        pass


def rows_of(first: int, count: int) -> bytes:
    """Rows with ids, of which every tenth has no text and some repeat a text."""
    texts = texts_of(30)
    rows = (
        {"id": f"r{i}", "text": None if i % 10 == 7 else texts[i % 30]}
        for i in range(first, first + count)
    )
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture
def files() -> Iterator[Files]:
    server = Files({"1": rows_of(0, 60), "2": rows_of(60, 60)})
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def run(folder: Path, *arguments: str | Path, fails: bool = False) -> str:
    """What a command prints; its temporary files and caches are in the folder, too."""
    places = {name: str(folder / "temporary") for name in ("TMPDIR", "HOME", "FLOWVEC_CACHE")}
    (folder / "temporary").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "flowvec", *map(str, arguments)],
        check=False, capture_output=True, text=True, env=os.environ | places, cwd=folder,
    )  # fmt: skip
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    (folder / "printed").mkdir(exist_ok=True)
    number = len(list((folder / "printed").iterdir()))
    (folder / "printed" / f"{number}.txt").write_text(done.stdout + done.stderr)
    return done.stdout + done.stderr


def files_with_secrets(folder: Path) -> list[str]:
    """Files with a secret in their content or name, as it is or decoded."""
    words = [b"hush", SECRET.encode(), quote(SECRET).encode()]
    return [
        str(path) for path in folder.rglob("*")
        if "hush" in path.name or (path.is_file() and any(w in path.read_bytes() for w in words))
    ]  # fmt: skip


def output_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def encode(folder: Path, files: Files, out: str, *options: str, fails: bool = False) -> str:
    inputs = (files.url("1"), files.url("2"))
    return run(folder, "encode", "mini", *inputs, "--out", out, "--rows-per-shard", "25",
               "--id-field", "id", "--max-dead", "100%", *options, fails=fails)  # fmt: skip


def test_no_file_and_no_message_of_a_job_has_a_secret(tmp_path: Path, files: Files) -> None:
    encode(tmp_path, files, "out", "--json", "--dedupe")
    letters = [json.loads(line) for line in (tmp_path / "out/_dead_letter.jsonl").open()]
    where = f"http://127.0.0.1:{files.server_port}/rows.jsonl?versionId="
    assert [one["source"] for one in letters] == [f"{where}1"] * 6 + [f"{where}2"] * 6
    manifest = json.loads((tmp_path / "out/_manifest.json").read_text())
    assert [one["path"] for one in manifest["inputs"]] == [f"{where}1", f"{where}2"]
    encode(tmp_path, files, "later", "--changed-since", "out", "--progress", "json")
    for share in ("1/2", "2/2"):
        encode(tmp_path, files, "shares", "--shard", share)
    run(tmp_path, "merge", "shares")
    encode(tmp_path, files, "none", "--dry-run", "--progress", "json")
    run(tmp_path, "index", "notes", files.url("1"), files.url("2"), "--id-field", "id",
        "--model", "mini", "--max-dead", "100%")  # fmt: skip
    run(tmp_path, "encode", "mini", files.url("1", chain="simplecache::"), "--out", "chained",
        "--id-field", "id", "--max-dead", "100%")  # fmt: skip
    run(tmp_path, "dump", "notes")
    run(tmp_path, "info", "out")
    assert files_with_secrets(tmp_path) == []


def test_no_file_of_ray_and_no_message_of_its_workers_has_a_secret(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="needs the extra [ray]")
    with tempfile.TemporaryDirectory(prefix="fv") as short:  # names of sockets are short
        monkeypatch.setenv("RAY_TMPDIR", short)
        ray = ("--engine", "ray", "--workers", "1")
        encode(tmp_path, files, "out", *ray, "--progress", "json")
        encode(tmp_path, files, "here")
        assert output_of(tmp_path / "out") == output_of(tmp_path / "here")
        files.fails_after = 6
        encode(tmp_path, files, "other", *ray, fails=True)
        assert files_with_secrets(tmp_path) == []
        assert list(Path(short).rglob("*.log"))
        assert files_with_secrets(Path(short)) == []


def test_a_job_continues_with_another_key(tmp_path: Path, files: Files) -> None:
    encode(tmp_path, files, "whole")
    encode(tmp_path, files, "out")
    (tmp_path / "out" / "part-000002.parquet").unlink()
    files.password, files.signature = SECOND
    assert "5 files, 4 of them before" in encode(tmp_path, files, "out")
    assert output_of(tmp_path / "out") == output_of(tmp_path / "whole")
    assert files_with_secrets(tmp_path) == []


def test_another_version_of_an_input_is_another_input(tmp_path: Path, files: Files) -> None:
    files.versions["3"] = files.versions["2"]
    run(tmp_path, "encode", "mini", files.url("2"), "--out", "out", "--max-dead", "100%")
    said = run(tmp_path, "encode", "mini", files.url("3"), "--out", "out", "--max-dead", "100%",
               fails=True)  # fmt: skip
    assert "versionId=3 is new" in said
    said = run(tmp_path, "encode", "mini", files.url("2"), files.url("2").replace("hushsig1", "x"),
               "--out", "twice", fails=True)  # fmt: skip
    assert files_with_secrets(tmp_path) == []


def test_a_job_that_is_stopped_says_how_to_continue_without_secrets(
    tmp_path: Path, files: Files
) -> None:
    # Progress is told once a second, so the job must take far longer.
    files.versions["1"] = rows_of(0, 400_000)
    # A shell's background process ignores SIGINT, and so would what it starts.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from flowvec.cli.main import main\nmain()"
    )
    words = [sys.executable, "-c", program, "encode", "mini", files.url("1"), "--out", "out",
             "--rows-per-shard", "1000", "--progress", "json"]  # fmt: skip
    with subprocess.Popen(words, cwd=tmp_path, text=True, stderr=subprocess.PIPE) as job:
        assert job.stderr is not None
        first = job.stderr.readline()
        job.send_signal(signal.SIGINT)
        said = first + job.stderr.read()
    assert job.returncode == 128 + signal.SIGINT
    where = f"http://127.0.0.1:{files.server_port}/rows.jsonl?versionId=1"
    assert f"flowvec encode mini '{where}' --out out" in said
    assert "hush" not in said
    assert files_with_secrets(tmp_path) == []


def test_errors_have_no_secret(
    tmp_path: Path, files: Files, flowvec: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    def fail(*arguments: str | Path) -> None:
        done = flowvec(*arguments)
        assert done.returncode != 0
        assert "hush" not in done.stdout + done.stderr, arguments

    url = files.url("1")
    for wrong in (
        url.replace("hushsig1", "hushsig0"),
        url.replace("hush-one", "hush-none"),
        url.replace("http://", "nowhere://"),
        url.replace("http://", "nowhere::http://"),
        url.replace("http://", "http:/"),
        url.replace(str(files.server_port), "1"),
        url.replace("rows.jsonl", "rows.hm"),
        "abfs://c@account/rows.jsonl?account_key=hush&x=y",
        "az://c/rows.jsonl?account_key=hush&connection_string=hush",
    ):
        fail("encode", "mini", wrong, "--out", "out")
        fail("index", "notes", wrong, "--model", "mini")
    said = ""
    for requests in range(1, 9):
        files.fails_after = requests
        done = flowvec("encode", "mini", url, "--out", "out", "--restart")
        said += done.stdout + done.stderr
    files.fails_after = None
    assert "ClientResponseError" in said
    assert "hush" not in said
    for out in (
        "s3://key:hush@bucket/out",
        "s3://bucket/out?secret_key=hush",
        "abfs://c@account/out?account_key=hush",
        "simplecache::s3://u:hush@b/out",
        "nowhere://u:hush@b/out?sig=hush",
        "http:/u:hush@h/out?sig=hush",
    ):
        fail("encode", "mini", url, "--out", out)
        fail("convert", tmp_path, out, "--to", "parquet")
        fail("search", out, "a cat")
        fail("verify", out)
    assert files_with_secrets(tmp_path) == []


@on_both_servers
def test_keys_and_signatures_of_s3_are_not_recorded(
    tmp_path: Path, server: str, bucket: Bucket, prefix: str
) -> None:
    import botocore.session
    from botocore.config import Config

    bucket.put(f"{prefix}/texts/rows.jsonl", rows_of(0, 60))
    client = botocore.session.get_session().create_client(
        "s3", "us-east-1", endpoint_url=server, aws_access_key_id=KEY,
        aws_secret_access_key=SECRET, config=Config(signature_version="s3v4"),
    )  # fmt: skip
    key = {"Bucket": "bucket", "Key": f"{prefix}/texts/rows.jsonl"}
    signed = client.generate_presigned_url("get_object", key, ExpiresIn=600)
    endpoint = f"endpoint_override={server.removeprefix('http://')}&scheme=http"
    urls = [signed, f"s3://{KEY}:{SECRET}@bucket/{prefix}/texts/rows.jsonl?{endpoint}"]
    out = url_of(server, f"{prefix}/out")
    signature = parse_qs(urlsplit(signed).query)["X-Amz-Signature"][0]
    for url, name in zip(urls, ("http", "s3"), strict=True):
        run(tmp_path, "encode", "mini", url, "--out", out.replace("/out", f"/{name}"),
            "--max-dead", "100%", "--json")  # fmt: skip
        run(tmp_path, "encode", "mini", url, "--out", name, "--max-dead", "100%", "--json")
        objects = bucket.objects(f"{prefix}/{name}")
        assert "_dead_letter.jsonl" in objects
        assert (
            objects["_dead_letter.jsonl"] == (tmp_path / name / "_dead_letter.jsonl").read_bytes()
        )
        for content in objects.values():
            assert SECRET.encode() not in content
            assert signature.encode() not in content
    assert files_with_secrets(tmp_path) == []
    assert not any(
        signature in path.read_text(errors="replace")
        for path in tmp_path.rglob("*") if path.is_file()
    )  # fmt: skip
