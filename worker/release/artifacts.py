"""The artifact store: files that are written once and never change. The only place that knows fsspec.

`<store>/<model>/blobs/sha256/<hex>` for content that is found by its digest, names for what has to be found without
one. A file is there wholly or not at all, and counts once it was read back. The interface promises no more than an
object store with conditional writes can do: nothing is renamed, locked, changed or removed.
"""

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Protocol

import fsspec

from worker.errors import ConfigError, Conflict, GradstreamError, StateMissing, Transient, VerificationFailed

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class Artifacts(Protocol):
    """The files of one model.

    Raises `Transient` (disk full, did not answer), `ConfigError` (no permission, a name or link that leads out of the
    store), `VerificationFailed` (bytes are not what was written), `StateMissing` (a file that has to be there is not).
    """

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        ...

    def put(self, content: bytes) -> str:
        """Keep a blob; return its SHA-256 (hex)."""
        ...

    def get(self, digest: str) -> bytes:
        """Return the blob of this digest, checked against it."""
        ...

    def write_once(self, name: str, content: bytes) -> bool:
        """Write a file that will never change; False where the same content was there.

        Raises `Conflict` where other content is there.
        """
        ...

    def read(self, name: str) -> bytes: ...

    def exists(self, name: str) -> bool: ...

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted; none where there is no such folder."""
        ...


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def open_artifacts(store: str, model: str) -> "FileArtifacts":
    """Return the files of a model under `release.store` (a `file:///…` address or a path), which need not exist yet."""
    if not store:
        raise ConfigError("release.store is not set: name a folder, such as file:///var/lib/gradstream")
    protocol, path = fsspec.core.split_protocol(store)
    if protocol not in (None, "file"):
        raise ConfigError(f"release.store: object stores ({protocol}://) are not in this version: use file:///…")
    return FileArtifacts(Path(path).absolute(), model)


class FileArtifacts:
    """`Artifacts` in a folder of this machine, or of one that is mounted here and knows hard links."""

    def __init__(self, store: Path, model: str) -> None:
        self._root = store / model
        self._files = fsspec.filesystem("file")

    @property
    def place(self) -> str:
        return str(self._root)

    def put(self, content: bytes) -> str:
        digest = sha256(content)
        try:
            self.write_once(_blob(digest), content)
        except Conflict as other:
            raise self._damaged(digest) from other
        return digest

    def get(self, digest: str) -> bytes:
        content = self.read(_blob(digest))
        if sha256(content) != digest:
            raise self._damaged(digest)
        return content

    def _damaged(self, digest: str) -> VerificationFailed:
        return VerificationFailed(
            f"{self._root / _blob(digest)} is damaged: its content is not that of its digest; put the file back from a "
            f"copy of the store"
        )

    def write_once(self, name: str, content: bytes) -> bool:
        path = self._path(name)
        with _translated(path):
            self._make(path.parent)
            fresh = not path.exists() and _publish(path, content)
            _sync_folder(path.parent)  # also where it is another's: that one may not have come so far
            there = bytes(self._files.cat_file(str(path)))
        if there != content:
            if fresh:
                raise Transient(f"{path} came out otherwise than it was written: look at the disk")
            raise Conflict(f"{path} is there with another content, and what is there is never changed")
        return fresh

    def read(self, name: str) -> bytes:
        path = self._path(name)
        with _translated(path):
            return bytes(self._files.cat_file(str(path)))

    def exists(self, name: str) -> bool:
        path = self._path(name)
        with _translated(path):
            return bool(self._files.isfile(str(path)))

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        with _translated(path):
            found = self._files.ls(str(path), detail=False) if path.exists() else []
        names = (PurePosixPath(name).name for name in found)
        return sorted(name for name in names if _PART.fullmatch(name))  # what is still being written begins with a dot

    def _path(self, name: str) -> Path:
        """Return where a name lies. Refuses what leads out of the store, by its words or by a link."""
        if not all(_PART.fullmatch(part) for part in name.split("/")):
            raise ConfigError(f"{name!r} is not a name in the artifact store")
        path = self._root / name
        with _translated(path):
            if not path.resolve().is_relative_to(self._root.resolve()):
                raise ConfigError(f"{path} leads out of the artifact store by a link: put the file itself there")
        return path

    def _make(self, folder: Path) -> None:
        """Create a folder with all above it, each one durable in the one above."""
        missing = [folder, *folder.parents]
        missing = missing[: next((i for i, path in enumerate(missing) if path.is_dir()), len(missing))]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            _sync_folder(path.parent)


def _blob(digest: str) -> str:
    if not _DIGEST.fullmatch(digest):
        raise ConfigError(f"{digest!r} is not a SHA-256 in hex")
    return f"blobs/sha256/{digest}"


def _publish(path: Path, content: bytes) -> bool:
    """Make a file appear with all its content, durably; False where another one was there first.

    A link, not a rename: a rename would replace what somebody else wrote in between.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(part, path)
        except FileExistsError:
            return False
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
    return True


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _ours(error, path) from error


def _ours(error: OSError, path: Path) -> GradstreamError:
    if error.errno in _FULL:
        return Transient(f"no room for {path}: free space there, or point release.store at a larger disk")
    if error.errno == errno.ENOENT:
        return StateMissing(f"{path} is not there: check release.store, or put the file back from a copy of the store")
    if error.errno in _FORBIDDEN:
        return ConfigError(
            f"no permission for {path}: let this user write there (a file system without hard links will not do), or "
            f"change release.store"
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTSUP):
        return ConfigError(f"release.store can not be used, {path}: {error.strerror}")
    return Transient(f"{path}: {error.strerror}")
