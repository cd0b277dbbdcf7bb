"""Processes that start with torch and other slow packages imported, for the commands of pages.

`python -m tests.docs.forking SOCKET` imports what takes seconds, and from then on each call of
`CLIENT` gets a process of its own, forked from that one: with the caller's arguments, folder,
environment and standard streams, and nothing that an earlier call has left.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import sys
import traceback

# What `flowvec export` and `fit`, and the pages on sentence-transformers, import.
PRELOADED = (
    "flowvec",
    "torch",
    "torch._dynamo",
    "torch.onnx._internal.exporter._core",
    "onnxscript.function_libs.torch_lib.ops",
    "transformers.models.bert.modeling_bert",
    "sentence_transformers",
    "flowvec_export.build",
    "flowvec_export.assembly.from_torch",
    "flowvec_export.fitting.fit",
    "flowvec_bench.quality.compare",
)

# `python -S -E -c CLIENT SOCKET CODE [ARGUMENT ...]` runs CODE in a process that the server forks.
CLIENT = """
import json, os, socket, sys
place, code, *arguments = sys.argv[1:]
call = {"code": code, "arguments": arguments, "folder": os.getcwd()}
call["environment"] = dict(os.environ)
with socket.socket(socket.AF_UNIX) as s:
    s.connect(place)
    socket.send_fds(s, [b"x"], [0, 1, 2])
    s.sendall(json.dumps(call).encode())
    s.shutdown(socket.SHUT_WR)
    answer = s.recv(16)
sys.exit(int(answer) if answer else 1)
"""


def _serve(place: str) -> None:
    for name in PRELOADED:
        # A page that needs a missing package reports it itself.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(ImportError):
        _trace_once()
    with socket.socket(socket.AF_UNIX) as server:
        # The path appears once calls can connect: callers wait for it.
        server.bind(f"{place}.new")
        server.listen()
        os.rename(f"{place}.new", place)  # noqa: PTH104 - the path stays a text
        while True:
            connection, _ = server.accept()
            with connection:
                _, streams, _, _ = socket.recv_fds(connection, 1, 3)
                call = json.loads(b"".join(iter(lambda c=connection: c.recv(1 << 16), b"")))
                child = os.fork()
                if child == 0:
                    server.close()
                    _run(call, streams)
                for stream in streams:
                    os.close(stream)
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                connection.sendall(str(status % 256).encode())


def _trace_once() -> None:
    """Of a checkpoint that several pages export one trace is made, and torch's tables are read."""
    import torch

    from flowvec_export.assembly.tracing import module_to_onnx
    from tests import trace_memo

    torch.set_num_threads(1)  # threads would be missing in the processes that are forked
    trace_memo.remember_traces_in(os.environ["FLOWVEC_TRACES"])
    module_to_onnx(torch.nn.Linear(2, 2), 2)


def _run(call: dict[str, object], streams: list[int]) -> None:
    """Become the requested process; never returns."""
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.chdir(str(call["folder"]))
        os.environ.clear()
        os.environ.update(call["environment"])  # type: ignore[call-overload]
        sys.argv = ["-c", *call["arguments"]]  # type: ignore[misc]
        sys.path[0] = ""
        main = {"__name__": "__main__", "__builtins__": __builtins__}
        exec(compile(str(call["code"]), "<string>", "exec"), main)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
