"""What the state store holds of a model, read byte by byte as its page describes it. Part of the checker.

Raw values come in, plain ones go out; a value that can not be read raises, and the run fails.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from blake3 import blake3
from pyroaring import BitMap64
from safetensors.numpy import load as load_tensors

MARK = 1 << 15
COLUMNS = ("trained", "dead_lettered", "expired", "duplicate", "late", "withdrawn", "control", "pending")


class Entry(NamedTuple):
    """One commit of the log. `sources`: topic, partition, first offset; `order`: one code a record."""

    kind: str
    base: str
    version: str
    digest: str
    worker: str
    sources: list[tuple[str, int, int]]
    order: list[int]
    examples: int
    batch_size: int


class Side(NamedTuple):
    topic: str
    next_offset: int
    pending: set[int]
    trained: set[int]


class Books(NamedTuple):
    """Ledger and positions of one partition."""

    partition: int
    ledger: Mapping[str, int]
    sides: list[Side]

    @property
    def balanced(self) -> bool:
        return self.ledger["consumed"] == sum(self.ledger[column] for column in COLUMNS)


class Model(NamedTuple):
    version: str
    digest: str
    arrays: Mapping[str, Any]


def read_entry(fields: Mapping[bytes, bytes]) -> Entry:
    text = {name.decode(): value for name, value in fields.items()}
    order = np.frombuffer(zlib.decompress(text["order"]), "<u2") if text["order"] else np.empty(0, "<u2")
    if int(text["records"]) != np.count_nonzero(order < MARK) and int(text["records"]) != len(order):
        raise ValueError(f"commit {text['version']!r} counts {text['records']!r} records and names {len(order)}")
    return Entry(
        text["kind"].decode(),
        text["base"].decode(),
        text["version"].decode(),
        text["digest"].decode(),
        text["worker"].decode(),
        [(topic, partition, first) for topic, partition, first in json.loads(text["sources"])],
        order.tolist(),
        int(text["examples"]),
        int(text["batch_size"]),
    )


def read_books(blob: bytes) -> Books:
    start, checksum, body = blob[:80], blob[80:144], blob[144:]
    if start[:16] != b"GRADSTREAM1 PART" or blake3(start + body).hexdigest().encode() != checksum:
        raise ValueError("a partition blob is damaged")
    _, state = msgspec.msgpack.decode(body)
    sides = [Side(s["topic"], s["next_offset"], _bits(s["pending"]), _bits(s["trained"])) for s in state["sides"]]
    return Books(state["partition"], state["ledger"], sides)


def _bits(packed: bytes) -> set[int]:
    return set(BitMap64.deserialize(packed)) if packed else set()


def read_model(blob: bytes) -> Model:
    end = 160 + int(blob[80:96])
    header, payload = json.loads(blob[160:end]), blob[end:]
    if blob[:16] != b"GRADSTREAM1     " or blake3(payload).hexdigest() != header["digest"]:
        raise ValueError("the state blob is damaged")
    return Model(blob[16:80].decode().rstrip(), header["digest"], load_tensors(payload))


class Stored(NamedTuple):
    """Everything read at one quiet moment."""

    model: Model
    previous: Model | None
    books: Sequence[Books]
    log: Sequence[Entry]


def read_all(client: Any, model: str) -> Stored:
    """Read through a plain client of Redis."""
    root = f"gradstream:{{{model}}}"
    numbers = sorted(int(number) for number in client.smembers(f"{root}:partitions"))
    books = [read_books(client.get(f"{root}:partition:{number}")) for number in numbers]
    previous = client.get(f"{root}:state:previous")
    log = [read_entry(fields) for _, fields in client.xrange(f"{root}:commits")]
    state = read_model(client.get(f"{root}:state"))
    return Stored(state, read_model(previous) if previous else None, books, log)
