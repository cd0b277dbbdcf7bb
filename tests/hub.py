"""A Hugging Face hub on the loopback interface, for the hub's own client: HF_ENDPOINT names it.

It answers what the client asks when a program downloads a model: information and commits, the list
of files, and the files with their ETags, redirects and ranges. It can refuse, hang or break off.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import urllib.parse
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ["Hub", "Repository", "files_of"]

# Larger files are kept as large files are on the hub: behind a redirect.
_LARGE = 50_000


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a directory by their relative names."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@dataclass
class Repository:
    """A model's commits and what its branches and tags mean.

    Attributes:
        commits: files by commit.
        refs: commits by branch or tag.
        status: an HTTP status that answers every request instead, with the hub's error code.
        error_code: of that answer.
    """

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    status: int | None = None
    error_code: str | None = None

    def commit(self, files: dict[str, bytes], *refs: str) -> str:
        """Add a commit, which the main branch and the given refs then mean."""
        content = b"".join(name.encode() + body for name, body in sorted(files.items()))
        number = hashlib.sha1(content + bytes([len(self.commits)]), usedforsecurity=False)
        self.commits[number.hexdigest()] = files
        for ref in ("main", *refs):
            self.refs[ref] = number.hexdigest()
        return number.hexdigest()


class Hub:
    """The server. Use it in a `with` block.

    Attributes:
        repositories: models by name.
        requests: every request that came, as `GET /path`.
        ranges: files of which a part was asked for, with the part.
        tokens: what requests had as authorization, None included.
        break_at: by file name, after how many bytes of a body the connection breaks, and how often.
        pause_in: a file in the middle of which the server waits for `go`.
        paused: set while it waits.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.ranges: list[str] = []
        self.tokens: set[str | None] = set()
        self.break_at: dict[str, tuple[int, int]] = {}
        self.broken: Counter[str] = Counter()
        self.pause_in: str | None = None
        self.paused, self.go = threading.Event(), threading.Event()
        hub = self

        class Handler(_Handler):
            def __init__(self, *arguments: Any) -> None:
                self.hub = hub
                super().__init__(*arguments)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Hub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def add(self, name: str, files: dict[str, bytes]) -> str:
        """Add a commit to a model; returns it."""
        return self.repositories.setdefault(name, Repository()).commit(files)

    def environment(self, folder: Path) -> dict[str, str]:
        """Variables for a process that asks this hub and keeps everything in a folder."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        return kept | {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(folder / "hub-client"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            # The client waits as long as a test lets the hub wait.
            "HF_HUB_ETAG_TIMEOUT": "600",
            "HF_HUB_DOWNLOAD_TIMEOUT": "600",
            "FLOWVEC_CACHE": str(folder / "cache"),
            "NO_PROXY": "127.0.0.1,localhost",
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = urllib.parse.unquote(self.path)
        self.hub.requests.append(f"{self.command} {path}")
        path = path.partition("?")[0].strip("/")
        if not path.startswith("large/"):
            self.hub.tokens.add(self.headers.get("Authorization"))
        try:
            if path.startswith("api/models/"):
                self._api(path.removeprefix("api/models/"))
            elif path.startswith("large/"):
                self._large(path.removeprefix("large/"))
            else:
                self._resolve(path)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _repository(self, path: str) -> tuple[str, Repository, list[str]] | None:
        """The model at the beginning of a path, and the rest; None if an error was sent."""
        parts = path.split("/")
        for length in (2, 1):
            name = "/".join(parts[:length])
            if (repository := self.hub.repositories.get(name)) is not None:
                if repository.status is not None:
                    self._send(repository.status, b"", {"X-Error-Code": repository.error_code})
                    return None
                return name, repository, parts[length:]
        # The hub does not tell strangers which models exist.
        message = "Repository not found"
        self._send(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": message})
        return None

    def _files(self, repository: Repository, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commit = repository.refs.get(revision, revision)
        if commit in repository.commits:
            return commit, repository.commits[commit]
        self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        return None

    def _api(self, path: str) -> None:
        if (found := self._repository(path)) is None:
            return
        name, repository, rest = found
        if not rest or rest[0] == "revision":
            revision = "/".join(rest[1:]) or "main"
            if (commit := self._files(repository, revision)) is not None:
                siblings = [{"rfilename": file} for file in commit[1]]
                self._json({"id": name, "sha": commit[0], "siblings": siblings})
        elif rest[0] == "tree" and (commit := self._files(repository, rest[1])) is not None:
            self._json([_listed(file, body) for file, body in commit[1].items()])

    def _resolve(self, path: str) -> None:
        if (found := self._repository(path)) is None:
            return
        _, repository, rest = found
        if (commit := self._files(repository, rest[1])) is None:
            return
        file = "/".join(rest[2:])
        if file not in commit[1]:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit[0]})
            return
        body = commit[1][file]
        headers = {"X-Repo-Commit": commit[0], "ETag": f'"{_git_id(body)}"'}
        if len(body) > _LARGE:
            digest = hashlib.sha256(body).hexdigest()
            location = f"{self.hub.url.replace('127.0.0.1', 'localhost')}/large/{path}"
            large = {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(body))}
            self._send(302, b"", headers | large | {"Location": location})
            return
        self._body(file, body, headers)

    def _large(self, path: str) -> None:
        if (found := self._repository(path)) is None:
            return
        _, repository, rest = found
        file = "/".join(rest[2:])
        self._body(file, repository.commits[repository.refs.get(rest[1], rest[1])][file], {})

    def _body(self, file: str, body: bytes, headers: dict[str, Any]) -> None:
        status, start = 200, 0
        if (wanted := self.headers.get("Range", "")).startswith("bytes="):
            self.hub.ranges.append(f"{file} {wanted}")
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            status = 206
            headers = headers | {
                "Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}",
            }
        body = body[start:]
        if self.command == "GET":
            after, times = self.hub.break_at.get(file, (0, 0))
            if self.hub.broken[file] < times:
                self.hub.broken[file] += 1
                self._head(status, len(body), headers)
                self.wfile.write(body[:after])
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(2)
                return
            if self.hub.pause_in == file:
                self._head(status, len(body), headers)
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                self.hub.paused.set()
                self.hub.go.wait()
                self.wfile.write(body[len(body) // 2 :])
                return
        self._send(status, body, headers)

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _head(self, status: int, length: int, headers: dict[str, Any]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _send(self, status: int, body: bytes, headers: dict[str, Any]) -> None:
        self._head(status, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)


def _git_id(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()


def _listed(file: str, body: bytes) -> dict[str, Any]:
    entry = {"type": "file", "path": file, "size": len(body), "oid": _git_id(body)}
    if len(body) > _LARGE:
        digest = hashlib.sha256(body).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(body), "pointerSize": 134}
    return entry
