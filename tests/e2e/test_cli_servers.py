"""The commands as a user runs them, on real Kafka and Redis."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import Event, World, feature, label
from tests.services.kafka import create_topics
from tests.services.redis import free_port
from worker.stream.kafka.connection import KafkaConfig, client_arguments
from worker.stream.kafka.letters import KafkaDeadLetters, read_all
from worker.stream.kafka.topics import TopicAdmin

FEATURES: list[dict[str, object]] = [{"name": "x1"}, {"name": "carrier", "kind": "categorical", "bits": 4}]


@pytest.fixture
def world(kafka: str, redis_url: str, tmp_path: Path) -> Iterator[World]:
    made = World(kafka, redis_url, tmp_path, FEATURES, partitions=2)
    yield made
    for process in made.children:
        process.close()


def gradstream(folder: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a folder with no variables of ours but these."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRADSTREAM_")}
    env |= {f"GRADSTREAM_{name}": value for name, value in variables.items()}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "worker", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=90, check=False)


def topic_names(prefix: str) -> dict[str, str]:
    roles = ("features", "labels", "dead_letters", "metrics")
    return {f"STREAM__{role.upper()}_TOPIC": f"{prefix}{role}" for role in roles}


def one_line(done: "subprocess.CompletedProcess[str]", code: int) -> str:
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("gradstream: error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_init_writes_the_file_and_creates_topics_that_fit(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    variables = topic_names(topic_prefix) | {"KAFKA__BOOTSTRAP_SERVERS": kafka}
    create_topics(kafka, f"{topic_prefix}labels", partitions=3)
    done = gradstream(tmp_path, "init", "--partitions", "5", "--json", **variables)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["file"] == {"path": "gradstream.toml", "action": "written"}
    assert [(t["topic"].removeprefix(topic_prefix), t["partitions"], t["action"]) for t in report["topics"]] == [
        ("features", 3, "created"),  # as many as the labels that were there: an event has to lie beside its label
        ("labels", 3, "kept"),
        ("dead_letters", 1, "created"),
        ("metrics", 1, "created"),
    ]
    with TopicAdmin(KafkaConfig(kafka)) as admin:
        found = admin.describe(variables[f"STREAM__{role}_TOPIC"] for role in ("FEATURES", "LABELS", "METRICS"))
    assert [info.partitions for _, info in sorted(found.items())] == [3, 3, 1]
    again = gradstream(tmp_path, "init", **variables)
    assert again.returncode == 0
    assert "created" not in again.stdout
    assert "kept" in again.stdout


def test_init_refuses_topics_of_unequal_partitions(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    create_topics(kafka, f"{topic_prefix}features", partitions=2)
    create_topics(kafka, f"{topic_prefix}labels", partitions=3)
    variables = topic_names(topic_prefix) | {"KAFKA__BOOTSTRAP_SERVERS": kafka}
    line = one_line(gradstream(tmp_path, "init", **variables), 2)
    assert f"{topic_prefix}features 2" in line
    assert f"{topic_prefix}labels 3" in line


def test_init_refuses_a_compacted_topic(apache_kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    from kafka.admin import KafkaAdminClient

    name = f"{topic_prefix}features"
    client: Any = KafkaAdminClient(**client_arguments(KafkaConfig(apache_kafka)))
    try:
        topic = {"num_partitions": 1, "replication_factor": 1, "configs": {"cleanup.policy": "compact"}}
        client.create_topics({name: topic})
        client.wait_for_topics([name], timeout_ms=10_000)
    finally:
        client.close()
    variables = topic_names(topic_prefix) | {"KAFKA__BOOTSTRAP_SERVERS": apache_kafka}
    line = one_line(gradstream(tmp_path, "init", **variables), 2)
    assert f"topic {name} has cleanup.policy=compact" in line


def test_without_a_state_commands_end_with_7_and_reset_makes_one(world: World) -> None:
    for arguments in (["status"], ["state", "show"], ["state", "restore", "--previous"]):
        one_line(world.command(*arguments), 7)
    assert world.json("state", "reset", "--yes") == {"state_version": 0}
    status = world.json("status")
    assert (status["model"], status["state_version"], status["examples"]) == (world.name, 0, 0)
    assert set(status["ledger"].values()) == {0}
    assert world.json("state", "show")["weights"] == {"x1": 0.0, "carrier": {}}
    assert world.json("state", "reset", "--yes") == {"state_version": 1}, "a version never comes twice"
    one_line(world.command("state", "restore", "--previous"), 7)  # a reset leaves nothing to go back to


def test_unreachable_servers_end_with_6_and_status_does_without_kafka(world: World) -> None:
    nowhere = f"localhost:{free_port()}"
    line = one_line(world.command("status", "--set", f"redis.url=redis://{nowhere}/0"), 6)
    assert nowhere in line
    one_line(world.command("dead-letters", "list", "--set", f"kafka.bootstrap_servers={nowhere}"), 6)
    world.json("state", "reset", "--yes")
    world.settings["kafka.bootstrap_servers"] = nowhere
    assert world.json("status")["lag"] is None


def test_what_was_refused_is_listed_shown_and_sent_again(world: World) -> None:
    now = int(time.time() * 1000)
    bad = b'\x1b[31m{"id": "e-3"'
    events: list[Event] = [
        feature("e-1", now, x1=1.0, carrier="UA"),
        label("e-1", now + 5, 1),
        feature("e-2", now, x1="one", carrier="UA"),
        Event("features", "e-3", bad, 1),
    ]
    world.send(events)
    world.drain()
    status = world.json("status")
    assert status["ledger"]["dead_lettered"] == 2
    assert status["ledger"]["trained"] == 2
    assert set(status["lag"].values()) == {0}
    listed = world.json("dead-letters", "list")["dead_letters"]
    assert sorted(letter["reason"] for letter in listed) == ["not_json", "wrong_type"]
    letter = next(letter for letter in listed if letter["reason"] == "not_json")
    assert letter["topic"] == world.topics["features"]
    assert letter["partition"] == 1
    position = f"{letter['topic']}:{letter['partition']}:{letter['offset']}"
    shown = world.command("dead-letters", "show", position)
    assert '\\x1b[31m{"id": "e-3"' in shown.stdout
    assert "\x1b" not in shown.stdout
    raw = subprocess.run(
        [sys.executable, "-m", "worker", "dead-letters", "show", position, "--raw"],
        env=world.env(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert raw.stdout == bad
    dry = world.json("dead-letters", "replay", "--reason", "not_json", "--dry-run")
    assert dry == {"sent": 0, "cut": 0, "topics": {world.topics["features"]: 1}}
    assert len(world.read("features")) == 3
    assert world.json("dead-letters", "replay", "--reason", "not_json")["sent"] == 1
    again = world.read("features")[-1]
    assert (again.partition, again.key, again.value) == (1, b"e-3", bad)
    assert sum(world.json("status")["lag"].values()) == 1


def test_a_letter_that_was_written_twice_is_told_once(world: World) -> None:
    """After a crash a worker may refuse the same record again."""
    world.send([Event("features", "e-3", b"[", 0)])
    world.drain()
    kafka = KafkaConfig(world.kafka)
    topic = world.topics["dead-letters"]
    stored = next(read_all(kafka, topic))
    assert stored.source is not None
    assert stored.source_offset is not None
    writer = KafkaDeadLetters(kafka, topic)
    try:
        from worker.stream.dead_letters import DeadLetter, Refusal

        refusal = Refusal("not_json", stored.detail)
        writer.send([DeadLetter(stored.source, stored.source_offset, stored.key, stored.value, refusal)])
        writer.flush(10)
    finally:
        writer.close()
    assert len(list(read_all(kafka, topic))) == 2
    assert len(world.json("dead-letters", "list")["dead_letters"]) == 1
    assert world.json("dead-letters", "replay", "--dry-run")["topics"] == {world.topics["features"]: 1}


def test_state_show_has_what_the_worker_learned(world: World) -> None:
    now = int(time.time() * 1000)
    for i in range(40):
        world.send([feature(f"e-{i}", now + i, x1=float(i), carrier="UA" if i % 2 else "DL")])
        world.send([label(f"e-{i}", now + i, i % 2)])
    world.drain()
    shown = world.json("state", "show")
    learned = world.checkpoint().learner
    assert shown["digest"] == world.digest()
    assert shown["intercept"] == learned.arrays["intercept"][0]
    assert shown["weights"]["x1"] == learned.arrays["weight"][0]
    assert len(shown["weights"]["carrier"]) == 2
    assert shown["normalizer"]["x1"]["mean"] == pytest.approx(19.5)
    assert shown["normalizer"]["x1"]["count"] == 40
    before = world.json("status")["state_version"]
    assert world.json("state", "restore", "--previous")["state_version"] > before
