"""The stream that is measured: 20 numeric features, about 480 bytes of JSON an event, labels 1000 records late."""

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from math import exp

from kafka import KafkaProducer

from worker.spec import Feature, Spec

T0 = 1_764_000_000_000
D = 20
DELAY = 1000  # records between a feature and its label, one a millisecond
NAMES = tuple(f"x{i:02d}" for i in range(D))
SPEC = Spec(tuple(Feature(name) for name in NAMES))
_POOL = 4096  # different rows; drawn once, because drawing takes longer than what is measured

Record = tuple[str, bytes, bytes]  # role of the topic, key, value


def id_of(i: int) -> str:
    return f"event-{i:07d}"


def _rows() -> list[tuple[bytes, int]]:
    """Return features as JSON, and a label that depends on them."""
    rng = random.Random(1)  # noqa: S311  (the same rows every time, not secret ones)
    weights = [rng.gauss(0, 0.7) for _ in NAMES]
    rows = []
    for _ in range(_POOL):
        values = [round(rng.gauss(0, 1), 12) for _ in NAMES]
        chance = 1 / (1 + exp(-sum(w * x for w, x in zip(weights, values, strict=True))))
        text = ",".join(f'"{name}":{value!r}' for name, value in zip(NAMES, values, strict=True))
        rows.append((text.encode(), int(rng.random() < chance)))
    return rows


_ROWS = _rows()


def feature(i: int) -> Record:
    id_ = id_of(i).encode()
    return "features", id_, b'{"id":"%b","ts":%d,"features":{%b}}' % (id_, T0 + i, _ROWS[i % _POOL][0])


def label(i: int, delay_ms: int = DELAY) -> Record:
    id_ = id_of(i).encode()
    return "labels", id_, b'{"id":"%b","ts":%d,"label":%d}' % (id_, T0 + i + delay_ms, _ROWS[i % _POOL][1])


def example(i: int) -> Record:
    id_, (text, value) = id_of(i).encode(), _ROWS[i % _POOL]
    return "examples", id_, b'{"id":"%b","ts":%d,"features":{%b},"label":%d}' % (id_, T0 + i, text, value)


def joined(count: int) -> Iterator[Record]:
    """Yield features and labels in the order in which a live system would send them."""
    for i in range(count + DELAY):
        if i < count:
            yield feature(i)
        if i >= DELAY:
            yield label(i - DELAY)


def send(kafka: str, topics: dict[str, str], records: Iterable[Record]) -> int:
    """Send records as an ordinary producer does (its default batches, no compression); return how many."""
    producer = KafkaProducer(bootstrap_servers=kafka, linger_ms=20, enable_idempotence=False)
    count, source = 0, iter(records)
    try:
        while part := list(islice(source, 5000)):
            futures = [producer.send(topics[role], value, key) for role, key, value in part]
            count += len(futures)
            futures[-1].get(60)
        producer.flush(60)
    finally:
        producer.close()
    return count
