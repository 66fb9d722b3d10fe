"""The Kafka source against Apache Kafka: what is read, from where, and what happens when the log changes under it."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.services.kafka import (
    CODECS,
    KafkaServer,
    create_topics,
    eventually,
    produce,
    produce_transaction,
)
from worker.errors import ConfigError, OffsetsLost, Transient
from worker.stream.kafka.columns import missing_codecs
from worker.stream.kafka.connection import KafkaConfig
from worker.stream.kafka.source import KafkaSource
from worker.stream.kafka.topics import TopicAdmin
from worker.stream.records import Records, TopicPartition

pytestmark = pytest.mark.usefixtures("apache_kafka")  # the embedded broker does less

Open = Callable[..., KafkaSource]


@pytest.fixture
def open_source() -> Iterator[Open]:
    opened = []

    def make(servers: str, group: str, *topics: str, **settings: object) -> KafkaSource:
        config = KafkaConfig(servers, group, session_timeout_ms=6_000, **settings)  # type: ignore[arg-type]
        opened.append(KafkaSource(config, topics))
        return opened[-1]

    yield make
    for source in opened:
        source.close()


def own(source: KafkaSource, *wanted: TopicPartition, others: tuple[KafkaSource, ...] = ()) -> None:
    """Poll until `source` owns exactly `wanted`."""

    def owns() -> bool:
        for other in others:
            other.poll(0.05)
        assert source.poll(0.05) == [], "records came before a seek"
        source.take_rebalance()
        return source.assignment() == frozenset(wanted)

    eventually(owns, what=f"assignment of {wanted}")


def read(source: KafkaSource, *ends: tuple[TopicPartition, int]) -> dict[TopicPartition, list[Records]]:
    """Poll until each partition's position has reached its end; return what came."""
    got: dict[TopicPartition, list[Records]] = {tp: [] for tp, _ in ends}

    def reached() -> bool:
        for records in source.poll(0.1):
            got[records.source].append(records)
        return all(got[tp] and got[tp][-1].next_offset >= end for tp, end in ends)

    eventually(reached, what=f"reading to {ends}")
    return got


def values(chunks: list[Records]) -> list[bytes | None]:
    return [value for chunk in chunks for value in chunk.values]


def test_records_come_in_order_from_the_sought_offset_and_none_before_a_seek(
    kafka: str, topic_prefix: str, open_source: Open
) -> None:
    topic = topic_prefix + "features"
    create_topics(kafka, topic)
    produce(kafka, topic, [(b"k%d" % i, b"v%d" % i) for i in range(1000)])
    tp = TopicPartition(topic, 0)
    source = open_source(kafka, topic_prefix + "g", topic, max_poll_records=70)
    own(source, tp)
    assert source.poll(0.2) == []
    source.seek(tp, 300)
    chunks = read(source, (tp, 1000))[tp]
    assert values(chunks) == [b"v%d" % i for i in range(300, 1000)]
    assert [offset for chunk in chunks for offset in chunk.offsets] == list(range(300, 1000))
    assert all(len(chunk) <= 70 for chunk in chunks)
    assert chunks[0].keys[0] == b"k300"
    assert chunks[-1].timestamps[-1] > 1_600_000_000_000


def test_a_seek_back_and_forth_delivers_only_what_lies_behind_it(
    kafka: str, topic_prefix: str, open_source: Open
) -> None:
    topic = topic_prefix + "features"
    create_topics(kafka, topic)
    produce(kafka, topic, [(None, b"v%d" % i) for i in range(500)])
    tp = TopicPartition(topic, 0)
    source = open_source(kafka, topic_prefix + "g", topic, max_poll_records=50)
    own(source, tp)
    source.seek(tp, 0)
    read(source, (tp, 50))
    source.seek(tp, 400)
    assert values(read(source, (tp, 500))[tp])[0] == b"v400"
    source.seek(tp, 10)
    assert values(read(source, (tp, 500))[tp]) == [b"v%d" % i for i in range(10, 500)]


def test_a_paused_partition_waits_and_goes_on_where_it_stopped(
    kafka: str, topic_prefix: str, open_source: Open
) -> None:
    features, labels = topic_prefix + "features", topic_prefix + "labels"
    create_topics(kafka, features, labels)
    for topic in (features, labels):
        produce(kafka, topic, [(None, b"v%d" % i) for i in range(2000)])
    f, lab = TopicPartition(features, 0), TopicPartition(labels, 0)
    source = open_source(kafka, topic_prefix + "g", features, labels, max_poll_records=100)
    own(source, f, lab)
    source.seek(f, 0)
    source.seek(lab, 0)
    got: dict[TopicPartition, list[Records]] = {f: [], lab: []}
    wanted, turns = f, 0

    def done() -> bool:
        nonlocal wanted, turns
        wanted, turns = (lab if wanted == f else f), turns + 1
        source.fetch_only(frozenset((wanted,)))
        for records in source.poll(0.1):
            assert records.source == wanted
            got[records.source].append(records)
        return all(chunks and chunks[-1].next_offset == 2000 for chunks in got.values())

    eventually(done, what="reading by turns")
    assert turns > 10
    for chunks in got.values():
        assert values(chunks) == [b"v%d" % i for i in range(2000)]


def test_null_keys_and_values_and_empty_values_are_told_apart(kafka: str, topic_prefix: str, open_source: Open) -> None:
    topic = topic_prefix + "features"
    create_topics(kafka, topic)
    produce(kafka, topic, [(b"e-1", None), (None, b"x"), (None, b""), (b"", b"y")])
    tp = TopicPartition(topic, 0)
    source = open_source(kafka, topic_prefix + "g", topic)
    own(source, tp)
    source.seek(tp, 0)
    chunks = read(source, (tp, 4))[tp]
    assert [key for chunk in chunks for key in chunk.keys] == [b"e-1", None, None, b""]
    assert values(chunks) == [None, b"x", b"", b"y"]


def test_a_content_type_header_is_found_among_others(kafka: str, topic_prefix: str, open_source: Open) -> None:
    topic = topic_prefix + "features"
    create_topics(kafka, topic)
    produce(kafka, topic, [(None, b"plain")])
    produce(kafka, topic, [(None, b"typed")], headers=[("trace", b"1"), ("Content-Type", b"text/csv"), ("z", b"")])
    tp = TopicPartition(topic, 0)
    source = open_source(kafka, topic_prefix + "g", topic)
    own(source, tp)
    source.seek(tp, 0)
    chunks = read(source, (tp, 2))[tp]
    types = [chunk.content_types.get(index) for chunk in chunks for index in range(len(chunk))]
    assert types == [None, b"text/csv"]


def test_every_codec_and_an_8_mb_record_come_through(kafka: str, topic_prefix: str, open_source: Open) -> None:
    assert missing_codecs() == []
    topic = topic_prefix + "features"
    create_topics(kafka, topic)
    for codec in CODECS:
        produce(kafka, topic, [(None, f"{codec} {i}".encode() * 20) for i in range(30)], codec=codec)
    giant = bytes(range(256)) * 32_000
    produce(kafka, topic, [(b"giant", giant)])
    produce(kafka, topic, [(b"after", b"small")])
    tp = TopicPartition(topic, 0)
    source = open_source(kafka, topic_prefix + "g", topic, max_poll_bytes=1 << 20, max_partition_fetch_bytes=1 << 20)
    own(source, tp)
    source.seek(tp, 0)
    got = values(read(source, (tp, 152))[tp])
    assert got[:150] == [f"{codec} {i}".encode() * 20 for codec in CODECS for i in range(30)]
    assert got[150:] == [giant, b"small"]


def test_aborted_records_stay_out_and_the_position_passes_the_markers(
    apache_kafka: str, topic_prefix: str, open_source: Open
) -> None:
    topic = topic_prefix + "features"
    create_topics(apache_kafka, topic)
    produce_transaction(apache_kafka, topic, [(b"e-1", b"1"), (b"e-2", b"2")])
    produce_transaction(apache_kafka, topic, [(b"e-3", b"3")], abort=True)
    produce(apache_kafka, topic, [(b"e-4", b"4")])
    produce_transaction(apache_kafka, topic, [(b"e-5", b"5")], abort=True)
    tp = TopicPartition(topic, 0)
    source = open_source(apache_kafka, topic_prefix + "g", topic)
    own(source, tp)
    source.seek(tp, 0)
    end = source.end_offsets([tp])[tp]
    assert end == 8  # five records and three markers
    chunks = read(source, (tp, end))[tp]
    assert values(chunks) == [b"1", b"2", b"4"]
    assert chunks[-1].next_offset == end
    assert source.beginning_offsets([tp]) == {tp: 0}
    # From the middle of an aborted transaction nothing but the position comes.
    source.seek(tp, 6)
    assert values(read(source, (tp, end))[tp]) == []


def test_a_position_before_the_log_says_how_many_offsets_are_gone(
    apache_kafka: str, topic_prefix: str, open_source: Open
) -> None:
    topic = topic_prefix + "features"
    create_topics(apache_kafka, topic)
    produce(apache_kafka, topic, [(None, b"v")] * 50)
    tp = TopicPartition(topic, 0)
    _delete_before(apache_kafka, topic, 40)
    source = open_source(apache_kafka, topic_prefix + "g", topic)
    own(source, tp)
    assert source.beginning_offsets([tp]) == {tp: 40}
    source.seek(tp, 10)
    with pytest.raises(OffsetsLost, match=rf"{topic}, partition 0: offset 10 is older .* 40 to 50: 30 offsets .*reset"):
        read(source, (tp, 50))
    assert source.lost_offsets == {tp: 30}


def test_a_position_beyond_the_log_is_refused(kafka: str, topic_prefix: str, open_source: Open) -> None:
    topic = topic_prefix + "features"
    create_topics(kafka, topic)
    produce(kafka, topic, [(None, b"v")] * 5)
    tp = TopicPartition(topic, 0)
    source = open_source(kafka, topic_prefix + "g", topic)
    own(source, tp)
    source.seek(tp, 12)
    with pytest.raises(OffsetsLost, match="offset 12 is beyond the log, which holds 0 to 5"):
        read(source, (tp, 13))


@pytest.mark.parametrize("refilled", [2, 30])
def test_a_topic_created_again_is_an_error_and_never_a_silent_wait(
    apache_kafka: str, topic_prefix: str, open_source: Open, refilled: int
) -> None:
    """With fewer records than the position the broker refuses it; with more, only the topic's id tells."""
    topic = topic_prefix + "features"
    create_topics(apache_kafka, topic)
    produce(apache_kafka, topic, [(None, b"old")] * 10)
    tp = TopicPartition(topic, 0)
    source = open_source(apache_kafka, topic_prefix + "g", topic)
    own(source, tp)
    before = source.topic_ids()
    source.seek(tp, 0)
    read(source, (tp, 10))
    source.check_progress(time.monotonic() + 5)
    with TopicAdmin(KafkaConfig(apache_kafka)) as admin:
        admin.delete([topic])
        eventually(lambda: not admin.describe([topic]), what="deletion")
    create_topics(apache_kafka, topic)
    produce(apache_kafka, topic, [(None, b"new")] * refilled)
    with pytest.raises(OffsetsLost, match="state reset"):
        eventually(lambda: bool(source.poll(0.1) and False), what="an error")
    assert source.topic_ids() != before


def test_a_deleted_topic_is_an_error(apache_kafka: str, topic_prefix: str, open_source: Open) -> None:
    topic = topic_prefix + "features"
    create_topics(apache_kafka, topic)
    source = open_source(apache_kafka, topic_prefix + "g", topic)
    tp = TopicPartition(topic, 0)
    own(source, tp)
    source.seek(tp, 0)
    source.check_progress(time.monotonic() + 5)
    with TopicAdmin(KafkaConfig(apache_kafka)) as admin:
        admin.delete([topic])
    with pytest.raises(OffsetsLost, match="was deleted"):
        eventually(lambda: bool(source.poll(0.1) and False), what="an error")


def test_a_missing_topic_is_named_not_created_and_does_not_hang(
    apache_kafka: str, topic_prefix: str, open_source: Open
) -> None:
    topic = topic_prefix + "features"
    source = open_source(apache_kafka, topic_prefix + "g", topic)

    def named() -> bool:
        assert source.poll(0.1) == []
        return source.problem == f"topic {topic} does not exist: create it with `gradstream init`"

    eventually(named, what="the problem")
    with pytest.raises(Transient, match="does not exist"):
        source.topic_ids()
    begin = time.monotonic()
    source.close()
    assert time.monotonic() - begin < 10
    with TopicAdmin(KafkaConfig(apache_kafka)) as admin:
        assert admin.describe([topic]) == {}


def test_closing_moves_no_committed_offsets_and_acknowledging_does(
    kafka: str, topic_prefix: str, open_source: Open
) -> None:
    topic, group = topic_prefix + "features", topic_prefix + "g"
    create_topics(kafka, topic)
    produce(kafka, topic, [(None, b"v")] * 37)
    tp = TopicPartition(topic, 0)
    source = open_source(kafka, group, topic)
    own(source, tp)
    source.seek(tp, 0)
    read(source, (tp, 37))
    with TopicAdmin(KafkaConfig(kafka)) as admin:
        assert not admin.has_committed_offsets(group, [topic])
        source.acknowledge({tp: 20, TopicPartition(topic, 5): 1})
        source.close()
        assert admin.group_committed(group, [topic]) == {tp: 20}
        assert admin.has_committed_offsets(group, [topic])
        assert not admin.has_committed_offsets(group, ["other"])
    again = open_source(kafka, group, topic)
    own(again, tp)
    assert again.poll(0.2) == [], "a committed offset became a position"


def test_a_closed_broker_is_named_and_questions_raise(open_source: Open) -> None:
    with pytest.raises(Transient, match=r"connecting to Kafka at localhost:1: .*bootstrap"):
        open_source("localhost:1", "g", "features", bootstrap_timeout_ms=300)


def test_wrong_settings_name_their_key() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.ssl_cafile = '/none\.pem': there is no such file"):
        KafkaSource(KafkaConfig("localhost:1", "g", security_protocol="SSL", ssl_cafile="/none.pem"), ["features"])


def test_reading_goes_on_after_the_broker_was_away(
    apache_kafka: str, start_kafka: Callable[[], KafkaServer], topic_prefix: str, open_source: Open
) -> None:
    server = start_kafka()
    servers, topic = server.bootstrap_servers, topic_prefix + "features"
    create_topics(servers, topic)
    produce(servers, topic, [(None, b"v%d" % i) for i in range(10)])
    tp = TopicPartition(topic, 0)
    source = open_source(servers, topic_prefix + "g", topic)
    own(source, tp)
    source.seek(tp, 0)
    read(source, (tp, 10))
    server.stop()

    def noticed() -> bool:
        assert source.poll(0.1) == []
        return source.problem is not None and "does not answer" in source.problem

    eventually(noticed, what="the problem")
    source.acknowledge({tp: 10})
    with pytest.raises(Transient):
        source.end_offsets([tp])
    server.start()
    produce(servers, topic, [(None, b"after")])
    got: list[bytes | None] = []

    def reads() -> bool:
        got.extend(value for records in source.poll(0.1) for value in records.values)
        if source.take_rebalance():  # the group may have forgotten us
            assert not source.assignment() or source.assignment() == {tp}
        return bool(got)

    eventually(reads, what="reading on")
    assert got == [b"after"]
    assert source.problem is None
    assert source.reopened == 0


def _delete_before(servers: str, topic: str, offset: int) -> None:
    from kafka import KafkaAdminClient
    from kafka import TopicPartition as ClientPartition

    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.delete_records({ClientPartition(topic, 0): offset})
    finally:
        admin.close()
