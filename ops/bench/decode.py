"""Strict decoding: µs from the bytes of an event to its columns, in chunks as one poll brings them."""

from statistics import mean

import msgspec

from ops.bench.events import SPEC, T0, Record, example, feature, label
from ops.bench.figure import Figure, cost, timed
from ops.bench.sizes import Sizes
from worker.stream.events import Decoder, Role
from worker.stream.records import Records, TopicPartition

CHUNK = 4000
TARGET_US = 2.5


def chunk(records: list[Record], start: int = 0) -> Records:
    """Return records of one topic as one poll brings them."""
    n = len(records)
    source = TopicPartition(records[0][0], 0)
    offsets = list(range(start, start + n))
    values: list[bytes | None] = [value for _, _, value in records]
    keys: list[bytes | None] = [key for _, key, _ in records]
    return Records(source, offsets, [T0 + 10**9] * n, keys, values, start + n)


def measure(sizes: Sizes) -> list[Figure]:
    n = min(CHUNK, sizes.micro)
    sent: dict[Role, Records] = {
        "features": chunk([feature(i) for i in range(n)]),
        "labels": chunk([label(i) for i in range(n)]),
        "examples": chunk([example(i) for i in range(n)]),
    }
    figures = []
    for role, records in sent.items():
        decoder = Decoder(SPEC, role)
        assert not decoder.decode(records).refusals
        taken = timed(lambda: decoder.decode(records), 3 * sizes.repeats, 1e6 / n)  # noqa: B023  (called at once)
        size = mean(len(value or b"") for value in records.values)
        target = TARGET_US if role == "features" else None
        figures.append(cost(f"strict decoding, {role} of {size:.0f} bytes", "µs/event", taken, target))
    return [*figures, _plain(sent["features"], sizes)]


def _plain(records: Records, sizes: Sizes) -> Figure:
    """Measure the JSON library alone, into dicts: what strictness and columns are compared with."""
    decode = msgspec.json.Decoder().decode
    taken = timed(lambda: [decode(value or b"") for value in records.values], sizes.repeats, 1e6 / len(records))
    return cost("msgspec into dicts, the same features", "µs/event", taken)
