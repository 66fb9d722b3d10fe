"""`gradstream lineage archive`, `lineage list` and `train rollback` on the real thing, while workers run."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka import TopicPartition as ClientPartition
from kafka.admin import KafkaAdminClient

from tests.e2e.pairs import Pairs
from tests.e2e.world import NewWorld, World, wait_for, worlds
from worker.stream.kafka.connection import KafkaConfig, client_arguments
from worker.stream.positions import Ledger

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

SMALL: list[dict[str, object]] = [{"name": "x1"}]


@pytest.fixture
def new_world(apache_kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewWorld]:
    with worlds(apache_kafka, redis_url, tmp_path_factory, SMALL) as make:
        yield lambda **changes: make(release__store=f"file://{tmp_path_factory.mktemp('store')}", **changes)


def refused(world: World, *arguments: str) -> tuple[int, str]:
    """Return exit code and the one line that it said."""
    done = world.command(*arguments)
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""
    return done.returncode, done.stderr


def verified(world: World) -> None:
    told = world.json("lineage", "verify")
    assert told["equal"]
    assert told["digest"] == world.digest()
    assert told["examples"] == world.checkpoint().learner.examples


def test_rollback_under_two_workers_at_work_undoes_and_is_learned_again(new_world: NewWorld) -> None:
    """Nothing is doubled, the books balance, and the outcome is what log and records make of it."""
    world = new_world(partitions=4)
    pairs = Pairs(world)
    workers = [world.start("--init"), world.start()]
    world.wait_until_shared(2)
    pairs.send(200)
    pairs.learned()
    back_to = world.json("lineage", "archive")["kept"]
    for _ in range(3):
        pairs.send(400)
        world.wait_until_taken(2 * pairs.sent - 500)
        before = world.json("status")["state_version"]
        done = world.json("train", "rollback", "--to", str(back_to), "--yes")
        assert done["state_version"] > before
        assert done["back_to"] == back_to
        world.json("lineage", "archive", "--trim")
        pairs.send(50)
        pairs.learned()
    kinds = [logged.entry.kind for logged in world.store.commit_log()]
    assert "train" in kinds
    assert [worker.stop() for worker in workers] == [0, 0]
    pairs.learned()
    verified(world)
    listed = world.json("lineage", "list")
    assert listed["redis"]["trimmed"] > 0
    assert back_to in [one["state_version"] for one in listed["kept"]]


def test_back_to_the_empty_state_and_to_the_previous_one(new_world: NewWorld) -> None:
    world = new_world(partitions=2)
    pairs = Pairs(world)
    world.drain()
    assert world.json("lineage", "archive")["kept"] == 0
    pairs.send(30)
    world.drain()
    pairs.send(30)
    world.drain()
    pairs.learned()
    last, digest = world.checkpoint().version.number, world.digest()
    code, said = refused(world, "train", "rollback", "--to", "77", "--yes")
    assert code == 2
    assert f"there are 0, {last - 1}" in said
    dry = world.json("train", "rollback", "--to", "0", "--dry-run")
    assert (dry["examples_undone"], dry["commits_undone"], dry["state_version"]) == (60, last, None)
    code, said = refused(world, "train", "rollback", "--to", "0")
    assert (code, "60 examples" in said, "--yes" in said) == (2, True, True)
    assert world.checkpoint().version.number == last
    world.json("train", "rollback", "--to", str(last - 1), "--yes")
    assert world.ledger().consumed < 120
    world.drain()
    assert world.digest() == digest
    world.json("train", "rollback", "--to", "0", "--yes")
    assert world.ledger() == Ledger()
    world.drain()
    pairs.learned()
    verified(world)


def test_what_retention_took_is_named_and_nothing_is_changed(new_world: NewWorld) -> None:
    world = new_world()
    pairs = Pairs(world)
    pairs.send(10)
    world.drain()
    kept = world.json("lineage", "archive")["kept"]
    pairs.send(20)
    world.drain()
    last = world.checkpoint().version
    with closing(KafkaAdminClient(**client_arguments(KafkaConfig(world.kafka)))) as admin:
        admin.delete_records({ClientPartition(world.topics["labels"], 0): 15})
    code, said = refused(world, "train", "rollback", "--to", str(kept), "--yes")
    assert code == 7
    assert f"topic {world.topics['labels']}, partition 0" in said
    assert "goes on from 10, the log holds 15 to 30" in said
    assert world.checkpoint().version == last


def test_archive_every_so_often_until_it_is_told_to_end(new_world: NewWorld) -> None:
    world = new_world()
    pairs = Pairs(world)
    worker = world.start("--init")
    pairs.send(30)
    pairs.learned()
    log = world.folder / "archiver.log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "worker", "lineage", "archive", "--trim", "--every", "0.2", "--json"]
        archiver = subprocess.Popen(command, env=world.env(), stdout=out, stderr=subprocess.STDOUT)
        try:
            for _ in range(4):
                pairs.send(30)
                pairs.learned()
            last = world.checkpoint().version.number
            wait_for(lambda: lines(log) and lines(log)[-1]["archived_to"] >= last, "the last commit is archived")
            archiver.send_signal(signal.SIGTERM)
            assert archiver.wait(10) == 0
        finally:
            archiver.kill()
            archiver.wait()
    assert sum(line["commits"] for line in lines(log)) == last + 1
    assert worker.stop() == 0
    verified(world)


def lines(log: Path) -> list[dict[str, int]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]


def test_without_a_store_it_says_what_to_set(
    kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with worlds(kafka, redis_url, tmp_path_factory, SMALL) as make:
        world = make()
        for command in ("archive", "list"):
            code, said = refused(world, "lineage", command)
            assert code == 2
            assert "release.store is not set" in said
        code, said = refused(world, "train", "rollback", "--to", "3", "--yes")
        assert code == 2
        assert "state version 3 is not kept" in said
        world.settings["release.store"] = str(tmp_path_factory.mktemp("store"))
        assert refused(world, "lineage", "archive")[0] == 7
