"""Child processes of the demo: they end with it, however it ends. Knows nothing of brokers, stores or workers.

Must not be used by a worker: it starts programs.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from worker.errors import Unreachable

_WATCH = Path(__file__).with_name("watch.py")


class Child:
    """One program as a child process, its output in `log`; `stop` (or the end of this process) ends it.

    It lives in a session of its own, so that Ctrl-C reaches the demo alone and the demo decides in which order
    its parts end: a store that goes before its worker would turn every clean end into an error.
    """

    def __init__(
        self, command: Sequence[str], log: Path, *, grace_s: float = 5.0, env: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._grace_s = grace_s
        with log.open("ab") as out:
            self._watch = subprocess.Popen(  # noqa: S603 - a command of ours, no shell
                [sys.executable, "-I", "-S", str(_WATCH), str(grace_s), *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=env,
            )

    def exit_code(self) -> int | None:
        """Return how the program ended (128 + signal when killed), or None while it runs."""
        return self._watch.poll()

    def stop(self) -> int:
        """Ask it to end, kill it after the grace time, and return its exit code."""
        assert self._watch.stdin is not None
        self._watch.stdin.close()
        try:
            return self._watch.wait(self._grace_s + 2)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._watch.pid, signal.SIGKILL)
            return self._watch.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now. Somebody may take it before it is used: try again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answer(port: int, question: bytes) -> bytes:
    """Send one request to a server on this machine and return the first bytes of its reply, b"" if there is none."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(question)
            return connection.recv(64)
    except OSError:
        return b""


def start_server(
    command: Callable[[int], Sequence[str]],
    answers: Callable[[int], bool],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    within_s: float = 15.0,
    grace_s: float = 5.0,
) -> tuple[Child, int]:
    """Start `command(port)` on a free port and wait until `answers(port)`; return the child and the port.

    Raises `Unreachable` when it did not answer in time. A server that ends at once (its port was taken between
    the look and the start) is tried again on another one.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        port = free_port()
        child = Child(command(port), log, grace_s=grace_s, env=env)
        while child.exit_code() is None and time.monotonic() < deadline:
            if answers(port):
                return child, port
            time.sleep(0.02)
        child.stop()
    raise Unreachable(f"{log.stem} did not start within {within_s:g} s: its own words are in {log}")
