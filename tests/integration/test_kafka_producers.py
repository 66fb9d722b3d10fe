"""Dead letters, their replay and metrics, against a real broker and against none."""

import json
import time
from collections.abc import Iterator

import pytest

from tests.services.kafka import create_topics, eventually, produce
from tests.services.redis import free_port
from worker.errors import ConfigError, Transient
from worker.stream.dead_letters import DeadLetter, Refusal
from worker.stream.kafka.connection import KafkaConfig
from worker.stream.kafka.letters import KafkaDeadLetters, StoredLetter, can_send_again, read_all, send_again
from worker.stream.kafka.metrics import KafkaMetricsTopic
from worker.stream.records import TopicPartition

pytestmark = pytest.mark.usefixtures("apache_kafka")  # the embedded broker does less


def letter(offset: int, value: bytes | None, key: bytes | None = b"k", detail: str = "field x1") -> DeadLetter:
    return DeadLetter(TopicPartition("features", 1), offset, key, value, Refusal("not_json", detail))


@pytest.fixture
def dead_letters(kafka: str, topic_prefix: str) -> Iterator[tuple[KafkaDeadLetters, KafkaConfig, str]]:
    topic, config = topic_prefix + "dead", KafkaConfig(kafka)
    create_topics(kafka, topic)
    letters = KafkaDeadLetters(config, topic)
    yield letters, config, topic
    letters.close()


def test_a_dead_letter_keeps_bytes_and_says_where_it_came_from(
    dead_letters: tuple[KafkaDeadLetters, KafkaConfig, str],
) -> None:
    letters, config, topic = dead_letters
    letters.send([letter(7, b"\xff\xfe{", detail="größer als 1 · \ud800"), letter(8, None), letter(9, None, None)])
    letters.flush(20)
    letters.send([letter(10, b"later")])  # now handed over at once
    letters.flush(20)
    stored = list(read_all(config, topic))
    assert [(each.key, each.value) for each in stored] == [
        (b"k", b"\xff\xfe{"),
        (b"k", None),
        (None, b""),
        (b"k", b"later"),
    ]
    assert [each.source_offset for each in stored] == [7, 8, 9, 10]
    assert stored[0].source == TopicPartition("features", 1)
    assert (stored[0].reason, stored[0].detail) == ("not_json", "größer als 1 · \\ud800")
    assert set(stored[0].headers) == {
        "gradstream-reason", "gradstream-topic", "gradstream-partition", "gradstream-offset", "gradstream-detail",
    }  # fmt: skip
    assert [each.offset for each in read_all(config, topic, limit=2)] == [0, 1]
    assert list(read_all(config, topic, limit=0)) == []


def test_a_letter_too_large_for_the_broker_is_cut_and_says_so(
    dead_letters: tuple[KafkaDeadLetters, KafkaConfig, str],
) -> None:
    """One giant among others, larger than message.max.bytes (16 MiB): it must not hold up every commit."""
    letters, config, topic = dead_letters
    giant = b"x" * (20 << 20)
    letters.send([letter(1, b"before"), letter(2, giant), letter(3, b"after")])
    letters.flush(60)
    by_offset = {each.source_offset: each for each in read_all(config, topic)}
    assert by_offset[2].truncated == len(giant)
    assert by_offset[2].value == giant[:100_000]
    assert [by_offset[offset].value for offset in (1, 3)] == [b"before", b"after"]
    assert not can_send_again(by_offset[2])


def test_letters_wait_while_their_topic_is_missing_and_none_is_lost(kafka: str, topic_prefix: str) -> None:
    topic = topic_prefix + "dead"
    letters = KafkaDeadLetters(KafkaConfig(kafka), topic)
    try:
        letters.send([letter(offset, b"v") for offset in range(20)])
        with pytest.raises(
            Transient, match=rf"20 records for topic {topic} are not acknowledged yet: .*gradstream init"
        ):
            letters.flush(0.5)
        create_topics(kafka, topic)
        eventually(lambda: letters.flush(5) is None, what="acknowledgement")  # type: ignore[func-returns-value]
        assert [each.source_offset for each in read_all(KafkaConfig(kafka), topic)] == list(range(20))
    finally:
        letters.close()


def test_without_a_broker_flushing_raises_in_time_and_sending_does_not_block() -> None:
    config = KafkaConfig(f"localhost:{free_port()}", bootstrap_timeout_ms=300)
    letters = KafkaDeadLetters(config, "dead")
    letters.send([letter(1, b"v")])
    with pytest.raises(Transient, match="connecting to Kafka"):
        letters.flush(0.5)
    letters.close()


def test_a_replayed_letter_goes_to_its_own_topic_and_partition(kafka: str, topic_prefix: str) -> None:
    topic, config = topic_prefix + "features", KafkaConfig(kafka)
    create_topics(kafka, topic, partitions=3)
    whole = StoredLetter(0, 0, 0, b"k", b"mended", "not_json", "", TopicPartition(topic, 2), 5)
    assert send_again(config, [whole]) == 1
    found = list(read_all(config, topic))
    assert [(each.partition, each.key, each.value, each.headers) for each in found] == [(2, b"k", b"mended", {})]
    foreign = found[0]
    with pytest.raises(ConfigError, match="partition 2 at offset 0 can not be sent again: its headers name no source"):
        send_again(config, [foreign])


def test_reading_a_missing_topic_names_it(kafka: str, topic_prefix: str) -> None:
    with pytest.raises(Transient, match="does not exist"):
        list(read_all(KafkaConfig(kafka), topic_prefix + "none"))


def test_metrics_arrive_as_json_and_what_is_not_json_is_dropped_and_counted(kafka: str, topic_prefix: str) -> None:
    topic, config = topic_prefix + "metrics", KafkaConfig(kafka)
    create_topics(kafka, topic)
    metrics = KafkaMetricsTopic(config, topic)
    metrics.send({"model": "m", "loss": None, "step": 3, "non_finite": ["loss"]})
    metrics.send({"nested": {"deep": float("nan")}})  # not JSON: readers would refuse it
    metrics.send({"model": "m", "loss": 0.5})
    eventually(lambda: len(list(read_all(config, topic))) == 2, what="two messages")
    metrics.close()
    metrics.send({"too": "late"})
    assert metrics.dropped == 2
    first, second = (json.loads(each.value or b"") for each in read_all(config, topic))
    assert first == {"model": "m", "loss": None, "step": 3, "non_finite": ["loss"]}
    assert second == {"model": "m", "loss": 0.5}


def test_metrics_without_a_broker_are_dropped_counted_and_closing_is_quick() -> None:
    metrics = KafkaMetricsTopic(KafkaConfig(f"localhost:{free_port()}"), "metrics", capacity=10)
    begin = time.monotonic()
    for step in range(1000):
        metrics.send({"step": step})
    sent = time.monotonic()
    metrics.close()
    assert sent - begin < 5  # a client that blocked would take minutes
    assert time.monotonic() - sent < 10
    assert metrics.dropped == 1000


def test_metrics_for_a_missing_topic_are_dropped_and_the_topic_is_not_created(
    apache_kafka: str, topic_prefix: str
) -> None:
    topic, config = topic_prefix + "metrics", KafkaConfig(apache_kafka)
    metrics = KafkaMetricsTopic(config, topic)
    metrics.send({"step": 1})
    eventually(lambda: metrics.dropped == 1, what="a drop")
    metrics.close()
    with pytest.raises(Transient, match="does not exist"):
        list(read_all(config, topic))


def test_records_that_are_not_ours_are_listed_without_a_source(kafka: str, topic_prefix: str) -> None:
    topic = topic_prefix + "dead"
    create_topics(kafka, topic)
    produce(kafka, topic, [(b"k", b"v")], headers=[("gradstream-partition", b"x")])
    (stored,) = read_all(KafkaConfig(kafka), topic)
    assert (stored.source, stored.reason, stored.source_offset) == (None, "", None)
