"""The worker's HTTP endpoint: /metrics, /healthz, /readyz. Serves what others measured; measures nothing.

It runs in daemon threads beside the loop and only reads. Alive means: the loop turned round lately, by the monotonic
clock (the wall clock may step and would then restart a healthy worker, or hide a hung one).
"""

import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from worker.errors import ConfigError

Text = Callable[[str], tuple[bytes, str]]  # Accept header -> body, content type
_JSON = "application/json"


class Pulse:
    """When the loop last turned round, and whether the worker is ready to learn.

    Written by the loop, read by the endpoint; each attribute is one reference, so no lock is needed.
    """

    def __init__(self, bound_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        """`bound_s`: age of the last tick from which the loop counts as hung."""
        self.bound_s = bound_s
        self._clock = clock
        self._last = clock()
        self._waits_for: str | None = "starting"

    def tick(self) -> None:
        self._last = self._clock()

    def ready(self) -> None:
        self._waits_for = None

    def not_ready(self, reason: str) -> None:
        """`reason`: one short sentence for people (what the worker waits for)."""
        self._waits_for = reason

    @property
    def age_s(self) -> float:
        """Seconds since the last tick."""
        return self._clock() - self._last

    @property
    def alive(self) -> bool:
        return self.age_s < self.bound_s

    @property
    def waits_for(self) -> str | None:
        """Say why the worker is not ready; None: it is. A hung loop is not ready either."""
        if not self.alive:
            return f"the loop has not turned round for {self.age_s:.0f} s"
        return self._waits_for


class _Server(ThreadingHTTPServer):
    """Binds without asking DNS for this machine's name, which can take as long as DNS wants."""

    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class Endpoint:
    """Serves from construction until `close`; `port` is the one in use (settings may say 0: a free one)."""

    def __init__(self, port: int, text: Text, pulse: Pulse, host: str = "127.0.0.1") -> None:
        try:
            self._server = _Server(host, port, _handler(text, pulse))
        except (OSError, OverflowError) as error:
            remedy = "choose another one, or 0 for a free one"
            raise ConfigError(f"observe.http_port: can not listen on {host}:{port} ({error}); {remedy}") from error
        self.host = host
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="endpoint", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def answer(path: str, accept: str, text: Text, pulse: Pulse) -> tuple[HTTPStatus, str, bytes]:
    """Return status, content type and body for one GET."""
    match path.partition("?")[0]:
        case "/metrics":
            body, content_type = text(accept)
            return HTTPStatus.OK, content_type, body
        case "/healthz":
            facts = {"alive": pulse.alive, "age_s": round(pulse.age_s, 3), "bound_s": pulse.bound_s}
            return _verdict(facts, good=pulse.alive)
        case "/readyz":
            reason = pulse.waits_for
            return _verdict({"ready": reason is None, "reason": reason}, good=reason is None)
        case _:
            return HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"/metrics /healthz /readyz\n"


def _verdict(facts: Mapping[str, object], *, good: bool) -> tuple[HTTPStatus, str, bytes]:
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    return status, _JSON, json.dumps(facts, allow_nan=False).encode() + b"\n"


def _handler(text: Text, pulse: Pulse) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0  # a client that sends nothing does not keep a thread for ever
        server_version = "gradstream"
        sys_version = ""

        def do_GET(self) -> None:
            self._respond(body=True)

        def do_HEAD(self) -> None:
            self._respond(body=False)

        def _respond(self, *, body: bool) -> None:
            status, content_type, content = answer(self.path, self.headers.get("Accept", ""), text, pulse)
            try:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                if body:
                    self.wfile.write(content)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the scraper gave up: nobody is left to tell

        def log_message(self, *_: object) -> None:
            """Scrapes every few seconds are no news."""

    return Handler
