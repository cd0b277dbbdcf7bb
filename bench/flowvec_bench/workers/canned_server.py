"""Answers that are ready: what a client's load costs by itself, beside something else."""

from __future__ import annotations

import selectors
import socket
import threading

__all__ = ["CannedServer"]


class CannedServer:
    """Answers every request with the same bytes, on a thread. Requests have one length."""

    def __init__(self, request_bytes: int, answer: bytes) -> None:
        """Start to listen on loopback.

        Args:
            request_bytes: length of a request, headers included.
            answer: what to answer, headers included.
        """
        self._request_bytes = request_bytes
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listener.setblocking(False)
        self._wakes, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return "127.0.0.1", int(self._listener.getsockname()[1])

    def close(self) -> None:
        """End it."""
        self._wake.close()
        self._thread.join()
        self._listener.close()
        self._wakes.close()

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._listener, selectors.EVENT_READ, None)
        selector.register(self._wakes, selectors.EVENT_READ, self)
        came: dict[socket.socket, int] = {}
        while True:
            for key, _ in selector.select():
                if key.data is self:
                    for connection in came:
                        connection.close()
                    selector.close()
                    return
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    came[connection] = 0
                    selector.register(connection, selectors.EVENT_READ, connection)
                elif not self._serve(key.data, came):
                    selector.unregister(key.data)
                    came.pop(key.data)
                    key.data.close()

    def _serve(self, connection: socket.socket, came: dict[socket.socket, int]) -> bool:
        """Answer what has come in full; whether the connection is still open."""
        try:
            part = connection.recv(1 << 16)
            came[connection] += len(part)
            while came[connection] >= self._request_bytes:
                came[connection] -= self._request_bytes
                self._send(connection)
        except OSError:
            return False
        return bool(part)

    def _send(self, connection: socket.socket) -> None:
        connection.settimeout(5.0)
        connection.sendall(self._answer)
