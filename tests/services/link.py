"""A wire between a client and a server that a test can cut: TCP, any protocol.

Knows nothing of what it carries. A cut one is silent, as a network is: connections stand, nothing comes through.
"""

import selectors
import socket
import threading

CHUNK = 1 << 16


class Link:
    """Listens on a port of its own and passes everything on to `target` (a port of this machine)."""

    def __init__(self, target: int, port: int = 0) -> None:
        self.target = target
        self._cut, self._mended = threading.Event(), threading.Event()
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = int(self._listener.getsockname()[1])
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """From now on nothing comes through, in either direction, and nobody is told."""
        self._mended.clear()
        self._cut.set()

    def mend(self) -> None:
        """Let traffic through again. Connections of before are reset: what was lost on them does not come back."""
        with self._lock:
            for side in list(self._peers):
                self._drop(side)
        self._cut.clear()
        self._mended.set()

    def close(self) -> None:
        self._closed = True
        self._thread.join(10)
        with self._lock:
            for side in list(self._peers):
                self._drop(side)
        self._listener.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._closed:
            if self._cut.is_set():
                self._mended.wait(0.05)
                continue
            for key, _ in self._selector.select(0.05):
                with self._lock:
                    self._accept() if key.fileobj is self._listener else self._pass(key.fileobj)  # type: ignore[arg-type]

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            client.close()
            return
        for side, peer in ((client, server), (server, client)):
            side.settimeout(5)
            self._peers[side] = peer
            self._selector.register(side, selectors.EVENT_READ)

    def _pass(self, side: socket.socket) -> None:
        if side not in self._peers or self._cut.is_set():
            return
        try:
            data = side.recv(CHUNK)
            if data:
                self._peers[side].sendall(data)
                return
        except OSError:
            pass
        self._drop(side)

    def _drop(self, side: socket.socket) -> None:
        """Close a connection at both ends."""
        peer = self._peers.pop(side, None)
        if peer is None:
            return
        self._peers.pop(peer, None)
        for end in (side, peer):
            self._selector.unregister(end)
            end.close()
