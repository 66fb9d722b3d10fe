"""Dead letters in Kafka: written with their source in headers, listed, and sent again to where they came from."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaConsumer
from kafka import TopicPartition as ClientPartition

from worker.errors import ConfigError, Transient
from worker.stream.dead_letters import DeadLetter
from worker.stream.kafka import guards
from worker.stream.kafka.connection import KafkaConfig, consumer_arguments, opened, translated
from worker.stream.kafka.outbox import TRUNCATED, Outbox, Outgoing
from worker.stream.records import TopicPartition

_ANSWER_MS = 5_000
_POLL_MS = 500
_SILENT_POLLS = 20


class KafkaDeadLetters:
    """Answers to `worker.stream.source.DeadLetters`.

    Value and key are the original bytes; a value that the broker refuses by size is cut, and
    `gradstream-truncated` holds its original size, so that one giant can not hold up every commit.
    """

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._topic = topic
        self._outbox = Outbox(config)

    def send(self, letters: Sequence[DeadLetter]) -> None:
        self._outbox.send(_outgoing(self._topic, letter) for letter in letters)

    def flush(self, timeout_s: float) -> None:
        self._outbox.flush(timeout_s)

    def close(self) -> None:
        self._outbox.close()


def _outgoing(topic: str, letter: DeadLetter) -> Outgoing:
    headers = {
        "gradstream-reason": letter.refusal.reason,
        "gradstream-topic": letter.source.topic,
        "gradstream-partition": str(letter.source.partition),
        "gradstream-offset": str(letter.offset),
        "gradstream-detail": letter.refusal.detail,
    }
    pairs = tuple((name, text.encode("utf-8", "backslashreplace")) for name, text in headers.items())
    return Outgoing(topic, letter.key, letter.value, pairs)


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter as it lies in its topic at `partition`, `offset`; `source` and `source_offset` are the record's.

    `source` is None where the headers do not tell (a record that we did not write). `truncated` is the original
    size of a value that was cut, else None.
    """

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    reason: str
    detail: str
    source: TopicPartition | None
    source_offset: int | None
    truncated: int | None = None
    headers: dict[str, str] = field(default_factory=dict)


def read_all(config: KafkaConfig, topic: str, limit: int | None = None) -> Iterator[StoredLetter]:
    """Yield what the topic held when asked, oldest first in each partition, at most `limit` of them.

    Joins no group and moves no offsets. Raises `Transient` when the topic is missing or no broker answers.
    """
    consumer: KafkaConsumer = opened(KafkaConsumer, config, **consumer_arguments(config), group_id=None)
    try:
        guards.never_create_topics(consumer)
        with translated(f"reading topic {topic}"):
            yield from _read(consumer, topic, limit)
    finally:
        consumer.close(autocommit=False, timeout_ms=1_000)


def _read(consumer: KafkaConsumer, topic: str, limit: int | None) -> Iterator[StoredLetter]:
    partitions = [ClientPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
    if not partitions:
        raise Transient(f"topic {topic} does not exist: create it with `gradstream init`")
    first = consumer.beginning_offsets(partitions, timeout_ms=_ANSWER_MS)
    ends = consumer.end_offsets(partitions, timeout_ms=_ANSWER_MS)
    consumer.assign(partitions)
    for source in partitions:
        consumer.seek(source, first[source])
    left = -1 if limit is None else limit  # below zero: no limit, and never reaches it
    silent = 0
    untold = set(partitions)
    while left and any((guards.position(consumer, source) or 0) < ends[source] for source in partitions):
        found = consumer.poll(_POLL_MS)
        silent = 0 if found else silent + 1
        if silent > _SILENT_POLLS:
            raise Transient(f"topic {topic}: no broker answers")
        for source, records in found.items():
            if source in untold:
                # The embedded broker's end counts only the first record of the last batch; its fetches tell the rest.
                untold.discard(source)
                ends[source] = max(ends[source], consumer.highwater(source) or 0)
            for record in records:
                if left and record.offset < ends[source]:
                    left -= 1
                    yield _stored(record)


def _stored(record: Any) -> StoredLetter:
    headers = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers}
    topic, partition = headers.get("gradstream-topic"), _number(headers.get("gradstream-partition"))
    return StoredLetter(
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        key=record.key,
        value=record.value,
        reason=headers.get("gradstream-reason", ""),
        detail=headers.get("gradstream-detail", ""),
        source=None if topic is None or partition is None else TopicPartition(topic, partition),
        source_offset=_number(headers.get("gradstream-offset")),
        truncated=_number(headers.get(TRUNCATED)),
        headers=headers,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def can_send_again(letter: StoredLetter) -> bool:
    """Say whether the original record is all there: its source is known and its value was not cut."""
    return letter.source is not None and letter.truncated is None


def send_again(config: KafkaConfig, letters: Iterable[StoredLetter], timeout_s: float = 30.0) -> int:
    """Send original key and value to the original topic and partition; return how many, once all are acknowledged.

    The original partition, so that an event still lies beside its label whatever partitioner its producer used.
    Raises `ConfigError` for a letter that is not whole (see `can_send_again`), before anything is sent.
    """
    outgoing = []
    for letter in letters:
        if letter.source is None or not can_send_again(letter):
            raise ConfigError(
                f"the dead letter in partition {letter.partition} at offset {letter.offset} can not be sent again: "
                + ("its value was cut" if letter.truncated is not None else "its headers name no source")
            )
        outgoing.append(Outgoing(letter.source.topic, letter.key, letter.value, partition=letter.source.partition))
    outbox = Outbox(config)
    try:
        outbox.send(outgoing)
        outbox.flush(timeout_s)
    finally:
        outbox.close()
    return len(outgoing)
