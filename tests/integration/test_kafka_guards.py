"""The client's traps, each reproduced on the real client, and the guard that opens it."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as ClientPartition
from kafka.errors import NoOffsetForPartitionError
from kafka.structs import MemberState

from tests.services.kafka import create_topics, eventually, produce
from worker.stream.kafka import guards
from worker.stream.kafka.connection import KafkaConfig, consumer_arguments
from worker.stream.kafka.source import KafkaSource
from worker.stream.records import TopicPartition

pytestmark = pytest.mark.usefixtures("apache_kafka")
Make = Callable[..., KafkaConsumer]


@pytest.fixture
def consumer(kafka: str) -> Iterator[Make]:
    made = []

    def make(group: str | None = None) -> KafkaConsumer:
        config = KafkaConfig(kafka)
        made.append(KafkaConsumer(**consumer_arguments(config), group_id=group, session_timeout_ms=6_000))
        return made[-1]

    yield make
    for each in made:
        each.close(autocommit=False, timeout_ms=3_000)


def starve(client: KafkaConsumer, a: ClientPartition, b: ClientPartition) -> None:
    """Bring a client into the state seen after a pause: data of `a` parked, a drained reader of `b` in line."""
    client.assign([a, b])
    for source in (a, b):
        client.seek(source, 0)
        client.pause(source)
    fetcher: Any = client._fetcher
    client.resume(a)

    def fetched() -> bool:
        client.poll(50, max_records=1)
        return bool(fetcher._next_partition_records)

    eventually(fetched, what="a reader in line")
    client.pause(a)
    fetcher._paused_partition_records[a] = fetcher._next_partition_records
    drained = fetcher._next_partition_records.__class__.__new__(fetcher._next_partition_records.__class__)
    drained.__dict__.update(fetcher._next_partition_records.__dict__)
    drained.topic_partition = b
    fetcher._next_partition_records = drained
    if hasattr(drained, "record_iterator"):
        drained.record_iterator = None
    else:
        drained._data = None
    assert not drained
    client.resume(a)


@pytest.mark.parametrize("guarded", [False, True])
def test_a_drained_reader_starves_a_resumed_partition_without_the_guard(
    kafka: str, topic_prefix: str, consumer: Make, guarded: bool
) -> None:
    topic = topic_prefix + "t"
    create_topics(kafka, topic, partitions=2)
    produce(kafka, topic, [(None, b"v")] * 20)
    client = consumer()
    if guarded:
        guards.install(client, 4096)
    a, b = ClientPartition(topic, 0), ClientPartition(topic, 1)
    starve(client, a, b)
    came = sum(len(found) for _ in range(8) for found in client.poll(50).values())
    assert (came > 0) is guarded


@pytest.mark.parametrize("guarded", [False, True])
def test_a_forgotten_join_keeps_a_worker_outside_its_group_without_the_guard(
    kafka: str, topic_prefix: str, consumer: Make, guarded: bool
) -> None:
    """The state seen in fresh consumers with short polls: rejoining, need_rejoin() False, heartbeats off."""
    topic = topic_prefix + "t"
    create_topics(kafka, topic)
    client = consumer(topic_prefix + "g")
    client.subscribe([topic])
    coordinator: Any = client._coordinator

    def poll() -> None:
        if guarded:
            guards.join_again(client)
        client.poll(20)
        for source in client.assignment():
            client.pause(source)

    eventually(lambda: bool(_ignoring_positions(poll) or client.assignment()), what="joining")
    coordinator.rejoining = True
    coordinator.state = MemberState.REBALANCING
    coordinator._disable_heartbeat()
    assert not client._coordinator.need_rejoin()
    if guarded:
        eventually(lambda: bool(_ignoring_positions(poll) or guards.is_stable(client)), what="joining again")
        assert not coordinator.rejoining
    else:
        for _ in range(20):
            _ignoring_positions(poll)
        assert coordinator.rejoining
        assert not guards.is_stable(client)


@pytest.mark.parametrize("guarded", [False, True])
def test_a_join_completed_between_two_polls_is_made_again_without_the_guard(
    kafka: str, topic_prefix: str, consumer: Make, guarded: bool
) -> None:
    """With two members that answer each other between each other's polls it never ends."""
    topic = topic_prefix + "t"
    create_topics(kafka, topic)
    client = consumer(topic_prefix + "g")
    if guarded:
        guards.keep_joins(client)
    client.subscribe([topic])
    coordinator: Any = client._coordinator

    def poll() -> None:
        guards.join_again(client)  # or it may hang in the trap above
        client.poll(20)

    def settled() -> bool:
        _ignoring_positions(poll)
        return bool(client.assignment()) and guards.is_stable(client) and not coordinator.need_rejoin()

    eventually(settled, what="joining; a first assignment may be empty, with another one to come")
    coordinator.request_rejoin()
    _ignoring_positions(lambda: client.poll(0))
    join = coordinator._join_task
    eventually(join.succeeded, what="the answer of the group")
    generation = coordinator._generation.generation_id
    eventually(lambda: bool(_ignoring_positions(poll) or guards.is_stable(client)), what="taking it up")
    assert (coordinator._generation.generation_id == generation) is guarded


def _ignoring_positions(poll: Callable[[], object]) -> bool:
    """A bare client raises where there is no position; that is not what these tests are about."""
    with suppress(NoOffsetForPartitionError):
        poll()
    return False


def _was_created(client: KafkaConsumer, topic: str) -> bool:
    try:
        client.poll(50)
    except NoOffsetForPartitionError:  # it is there, and assigned already
        return True
    return guards.is_known(client, topic)


@pytest.mark.parametrize("guarded", [False, True])
def test_the_client_creates_topics_it_asks_for_without_the_guard(
    apache_kafka: str, topic_prefix: str, consumer: Make, guarded: bool
) -> None:
    """`allow_auto_create_topics=False` does not reach its metadata requests."""
    topic = topic_prefix + "missing"
    client = KafkaConsumer(**consumer_arguments(KafkaConfig(apache_kafka)), allow_auto_create_topics=False)
    try:
        if guarded:
            guards.install(client, 4096)
        client.subscribe([topic])
        if guarded:
            for _ in range(5):
                client.poll(50)
            assert not guards.is_known(client, topic)
        else:
            eventually(lambda: _was_created(client, topic), what="an unwanted topic")
    finally:
        client.close(autocommit=False, timeout_ms=3_000)


def test_the_high_water_mark_is_unknown_before_a_fetch_while_end_offsets_answer(
    kafka: str, topic_prefix: str, consumer: Make
) -> None:
    topic = topic_prefix + "t"
    create_topics(kafka, topic)
    produce(kafka, topic, [(None, b"v")] * 3)
    client, tp = consumer(), ClientPartition(topic, 0)
    client.assign([tp])
    client.seek(tp, 0)
    assert client.highwater(tp) is None
    assert client.end_offsets([tp]) == {tp: 3}


def test_the_watchdog_replaces_a_client_that_has_records_and_gives_none(kafka: str, topic_prefix: str) -> None:
    topic = topic_prefix + "t"
    create_topics(kafka, topic)
    produce(kafka, topic, [(None, b"v%d" % i) for i in range(10)])
    now = 0.0
    config = KafkaConfig(kafka, topic_prefix + "g", session_timeout_ms=6_000, max_poll_records=4)
    source = KafkaSource(config, [topic], clock=lambda: now, patience_s=10)
    tp = TopicPartition(topic, 0)
    got: list[bytes | None] = []

    def poll() -> bool:
        """As the loop does it: what is owned after a rebalance is sought again."""
        got.extend(value for records in source.poll(0.05) for value in records.values)
        if source.take_rebalance() and tp in source.assignment():
            source.seek(tp, len(got))
        return False

    try:
        eventually(lambda: poll() or len(got) == 4, what="the first records")
        silent: Any = source._consumer
        silent._fetcher.fetched_records = lambda *_, **__: ({}, True)  # as a client whose fetcher has lost its way
        for _ in range(30):
            now += 1.0
            poll()
        assert source.reopened == 1
        assert source._consumer is not silent
        eventually(lambda: poll() or len(got) == 10, what="the other records")
        assert got == [b"v%d" % i for i in range(10)]
    finally:
        source.close()
