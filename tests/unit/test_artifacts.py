"""The artifact store on files: written once, whole or not at all, checked when read, and nothing outside of it."""

import errno
import hashlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from worker.errors import ConfigError, Conflict, StateMissing, Transient, VerificationFailed
from worker.release.artifacts import Artifacts, FileArtifacts, open_artifacts

if TYPE_CHECKING:
    from collections.abc import Callable

HELLO = hashlib.sha256(b"hello").hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> FileArtifacts:
    return open_artifacts(f"file://{tmp_path}/store", "m")


def keeps_the_protocol(store: FileArtifacts) -> Artifacts:
    return store


def test_a_blob_lies_under_its_digest_and_comes_back(store: FileArtifacts, tmp_path: Path) -> None:
    assert store.put(b"hello") == HELLO
    assert (tmp_path / "store/m/blobs/sha256" / HELLO).read_bytes() == b"hello"
    assert store.get(HELLO) == b"hello"
    assert store.put(b"hello") == HELLO


@pytest.mark.parametrize("where", ["{}/a", "file://{}/a"])
def test_paths_and_file_addresses_mean_the_same(where: str, tmp_path: Path) -> None:
    artifacts = open_artifacts(where.format(tmp_path), "m")
    artifacts.write_once("notes/one", b"1")
    assert (tmp_path / "a/m/notes/one").read_bytes() == b"1"


def test_a_file_is_never_written_over(store: FileArtifacts) -> None:
    assert store.write_once("a/b", b"one")
    assert not store.write_once("a/b", b"one")
    with pytest.raises(Conflict, match="another content"):
        store.write_once("a/b", b"two")
    assert store.read("a/b") == b"one"


def test_names_are_told_sorted_without_what_is_still_being_written(store: FileArtifacts, tmp_path: Path) -> None:
    assert store.names("a") == []
    assert not store.exists("a/x")
    for name in ("a/x", "a/b", "a/y"):
        store.write_once(name, b"")
    (tmp_path / "store/m/a/.c.0123.part").write_bytes(b"half")
    assert store.names("a") == ["b", "x", "y"]
    assert store.exists("a/x")


def test_a_damaged_blob_is_no_blob(store: FileArtifacts, tmp_path: Path) -> None:
    store.put(b"hello")
    (tmp_path / "store/m/blobs/sha256" / HELLO).write_bytes(b"hellp")
    with pytest.raises(VerificationFailed, match=HELLO):
        store.get(HELLO)
    with pytest.raises(VerificationFailed, match=HELLO):
        store.put(b"hello")


def test_what_is_not_there_is_missing_with_its_place(store: FileArtifacts) -> None:
    with pytest.raises(StateMissing, match=HELLO):
        store.get(HELLO)


@pytest.mark.parametrize("name", ["", "../x", "a/../../x", "/etc/passwd", "a//b", "a/.hidden", "a\0b", "a b", "."])
def test_a_name_can_not_lead_out_of_the_store(store: FileArtifacts, name: str) -> None:
    for call in (store.read, store.exists, store.names, lambda n: store.write_once(n, b"x")):
        with pytest.raises(ConfigError, match="not a name"):
            call(name)
    with pytest.raises(ConfigError, match="SHA-256"):
        store.get(name)


def test_a_link_can_not_lead_out_of_the_store(store: FileArtifacts, tmp_path: Path) -> None:
    store.write_once("a/b", b"inside")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (tmp_path / "store/m/a/file").symlink_to(outside / "secret")
    (tmp_path / "store/m/folder").symlink_to(outside)
    calls: list[Callable[[], object]] = [
        lambda: store.read("a/file"),
        lambda: store.read("folder/secret"),
        lambda: store.write_once("folder/new", b"x"),
        lambda: store.names("folder"),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="leads out"):
            call()
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]


def test_of_writers_of_one_name_one_wins_and_the_others_are_told(store: FileArtifacts) -> None:
    won: list[int] = []
    refused: list[int] = []
    begin = threading.Barrier(8)

    def write(number: int) -> None:
        begin.wait()
        try:
            if store.write_once("race", b"%d" % number * 10_000):
                won.append(number)
        except Conflict:
            refused.append(number)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(refused) == 7
    assert store.read("race") == b"%d" % won[0] * 10_000


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, Transient, "no room for .* free space"),
        (errno.EDQUOT, Transient, "no room"),
        (errno.EIO, Transient, "a/b"),
        (errno.EACCES, ConfigError, "no permission"),
        (errno.EROFS, ConfigError, "no permission"),
        (errno.EPERM, ConfigError, "hard links"),
    ],
)
def test_what_the_disk_refuses_is_one_line_and_leaves_nothing(
    store: FileArtifacts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[Exception],
    words: str,
) -> None:
    store.write_once("a/first", b"1")

    def refuses(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuses)
    with pytest.raises(kind, match=words) as raised:
        store.write_once("a/b", b"content")
    assert "\n" not in str(raised.value)
    assert [path.name for path in (tmp_path / "store/m/a").iterdir()] == ["first"]


def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"release\.store"):
        open_artifacts(f"{tmp_path}/f", "m").write_once("a", b"")


@pytest.mark.parametrize("address", ["", "s3://bucket/x", "memory://x"])
def test_other_stores_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"release\.store"):
        open_artifacts(address, "m")
