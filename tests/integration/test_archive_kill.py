"""An archiver that is killed at any moment leaves whole files, and the next one makes the archive complete."""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.store_samples import checkpoint, commit_on, entry, learner, partition, under_recipe
from tests.services.redis import wait_until
from worker.lineage.archive import LineageLog, archive_once, overview
from worker.lineage.kept import kept, kept_versions
from worker.lineage.segments import Segments, version_of
from worker.release.artifacts import open_artifacts
from worker.state.redis_connect import connect
from worker.state.redis_store import RedisStore
from worker.state.store import Committed, Fence, Version

KILLS = 12
ARCHIVER = """
import sys
from worker.lineage import archive
from worker.release.artifacts import open_artifacts
from worker.state.redis_connect import connect
from worker.state.redis_store import RedisStore
archive.PAGE = 2  # many segments, so that a kill falls between them
url, model, folder = sys.argv[1:]
store, artifacts = RedisStore(connect(url), model), open_artifacts(folder, model)
print("ready", flush=True)
while True:
    archive.archive_once(store, artifacts, trim=True)
"""


class Trained:
    """A model whose every version is known."""

    def __init__(self, url: str, model: str) -> None:
        self.store = RedisStore(connect(url), model)
        base = checkpoint()
        assert self.store.create(base, entry("init"))
        fence = self.store.claim(0, Fence(""), partition(0))
        assert fence
        self.base, self.fence, self.made = base, fence, [base.version]

    def train(self, count: int) -> None:
        for _ in range(count):
            number = self.base.version.number + 1
            commit = commit_on(self.base, {0: self.fence}, next_offset=number, state=learner(number))
            done = self.store.commit(under_recipe(commit))
            assert isinstance(done, Committed)
            self.base, self.fence = commit.checkpoint, done.fences[0]
            self.made.append(self.base.version)


@pytest.fixture
def trained(redis_url: str, model: str) -> Iterator[Trained]:
    yield (made := Trained(redis_url, model))
    made.store._link.drop_connections()


def archiver(url: str, model: str, folder: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", ARCHIVER, url, model, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    return process


def end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout
    process.stdout.close()


def check(trained: Trained, folder: Path) -> None:
    artifacts = open_artifacts(str(folder), trained.store.model)
    chain = Segments(artifacts, trained.store.model)
    archived = [version_of(fields) for segment in chain.since(None) for _, fields in segment.entries()]
    assert archived == [str(version) for version in trained.made[: len(archived)]], "whole, in order, none twice"
    told = [commit.version for commit in LineageLog(trained.store, artifacts).entries()]
    assert told == trained.made
    for one in kept_versions(artifacts, trained.store.model):
        assert kept(artifacts, trained.store.model, one.version).positions(trained.store.model)


def test_killed_at_any_moment_it_leaves_whole_segments_and_loses_no_commit(
    trained: Trained, redis_url: str, model: str, tmp_path: Path
) -> None:
    rng = random.Random(5)
    for _ in range(KILLS):
        process = archiver(redis_url, model, tmp_path)
        for _ in range(rng.randint(1, 25)):
            trained.train(rng.randint(1, 4))
        end(process)
        check(trained, tmp_path)
    artifacts = open_artifacts(str(tmp_path), model)
    done = archive_once(trained.store, artifacts, trim=True)
    assert done.end == str(trained.made[-1])
    check(trained, tmp_path)
    seen = overview(trained.store, artifacts)
    assert (seen.commits, seen.in_redis, seen.waiting) == (len(trained.made), 1, 0)


def test_three_archivers_at_once_double_and_lose_nothing(
    trained: Trained, redis_url: str, model: str, tmp_path: Path
) -> None:
    artifacts = open_artifacts(str(tmp_path), model)
    processes = [archiver(redis_url, model, tmp_path) for _ in range(3)]
    trained.train(300)
    last: Version = trained.made[-1]
    wait_until(lambda: overview(trained.store, artifacts).last == str(last))
    assert [process.poll() for process in processes] == [None] * 3, "one of them failed"
    for process in processes:
        end(process)
    check(trained, tmp_path)
