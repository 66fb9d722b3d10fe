"""Reads whole topics with a plain Kafka client. Part of the checker."""

from collections.abc import Iterable
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from tests.chaos.check.events import Record


def read_topic(bootstrap_servers: str, topic: str) -> dict[int, list[Record]]:
    """Return every record of a topic by partition, in offset order."""
    return {n: [Record(r.offset, r.timestamp, r.key, r.value) for r in rs] for n, rs in _read(bootstrap_servers, topic)}


def read_letters(bootstrap_servers: str, topic: str) -> frozenset[tuple[str, int, int, str]]:
    """Return (topic, partition, offset, reason) of each refused record, once: some may be there twice."""
    letters = set()
    for _, records in _read(bootstrap_servers, topic):
        for record in records:
            head = {name.removeprefix("gradstream-"): value.decode() for name, value in record.headers}
            letters.add((head["topic"], int(head["partition"]), int(head["offset"]), head["reason"]))
    return frozenset(letters)


def _read(bootstrap_servers: str, topic: str) -> Iterable[tuple[int, list[Any]]]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers, enable_auto_commit=False, isolation_level="read_committed"
    )
    try:
        sources = [TopicPartition(topic, n) for n in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(sources)
        consumer.seek_to_beginning(*sources)
        ends = consumer.end_offsets(sources)
        records: dict[int, list[Any]] = {source.partition: [] for source in sources}
        while any(consumer.position(source) < ends[source] for source in sources):
            for source, batch in consumer.poll(200).items():
                records[source.partition] += batch
        return records.items()
    finally:
        consumer.close()
