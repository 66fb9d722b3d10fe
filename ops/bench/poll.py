"""What a client alone can read: `python -m ops.bench.poll client|adapter BROKER COUNT TOPIC…` prints seconds and
those of the processor.

A process of its own, so that it can be kept on the core that the worker gets. `client` is kafka-python as it is,
`adapter` the worker's source on top of it. Both fetch with the same sizes; nothing is decoded.
"""

import json
import logging
import sys
import time
import uuid
from collections.abc import Callable, Sequence

from kafka import KafkaConsumer
from kafka import TopicPartition as ClientPartition

from worker.observe.logs import configure_logs
from worker.stream.kafka.connection import KafkaConfig, consumer_arguments
from worker.stream.kafka.source import KafkaSource
from worker.stream.records import TopicPartition

Taken = tuple[float, float]  # seconds, and those that the processor was busy for this process


def client_alone(config: KafkaConfig, topics: Sequence[str], count: int) -> Taken:
    """Return what kafka-python takes to hand out `count` records."""
    consumer = KafkaConsumer(**consumer_arguments(config), max_poll_records=config.max_poll_records)
    sources = [ClientPartition(topic, 0) for topic in topics]
    consumer.assign(sources)
    consumer.seek_to_beginning(*sources)
    taken = _taken(lambda: sum(map(len, consumer.poll(100).values())), count)
    consumer.close(autocommit=False)
    return taken


def adapter_alone(config: KafkaConfig, topics: Sequence[str], count: int) -> Taken:
    """Return what the worker's source takes for the same, from its first seek on."""
    source = KafkaSource(config, topics)
    sources = {TopicPartition(topic, 0) for topic in topics}
    while source.assignment() != sources:
        source.poll(0.05)
    source.take_rebalance()
    for one in sources:
        source.seek(one, 0)
    taken = _taken(lambda: sum(map(len, source.poll(0.1))), count)
    source.close()
    return taken


def _taken(poll: Callable[[], int], count: int) -> Taken:
    left, started, busy = count, time.perf_counter(), time.process_time()
    while left > 0:
        left -= poll()
    return time.perf_counter() - started, time.process_time() - busy


def main(arguments: Sequence[str]) -> None:
    way, broker, count, *topics = arguments
    configure_logs("error")  # stdout is for the result alone
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # as the worker's source sets it
    config = KafkaConfig(broker, f"poll-{uuid.uuid4().hex[:12]}")
    ways = {"client": client_alone, "adapter": adapter_alone}
    print(json.dumps(ways[way](config, topics, int(count))))


if __name__ == "__main__":
    main(sys.argv[1:])
