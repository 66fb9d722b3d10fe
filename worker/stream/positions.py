"""How far a partition pair has come: ledger, offsets, clocks and bitmaps. Values only; no payloads."""

import msgspec


class Ledger(msgspec.Struct, frozen=True):
    """Records taken, each in exactly one column; `pending` is what waits in the join."""

    consumed: int = 0
    trained: int = 0
    dead_lettered: int = 0
    expired: int = 0
    duplicate: int = 0
    late: int = 0
    withdrawn: int = 0
    control: int = 0
    pending: int = 0

    def balanced(self) -> bool:
        return self.consumed == sum(int(getattr(self, f)) for f in self.__struct_fields__[1:])

    def __add__(self, other: "Ledger") -> "Ledger":
        return Ledger(*(getattr(self, f) + getattr(other, f) for f in self.__struct_fields__))


class SideState(msgspec.Struct, frozen=True):
    """One topic of a partition pair. `pending`, `trained`: serialised 64-bit bitmaps of offsets.

    `clock`: largest event time of valid events and watermarks (ms, -1 none). `order_key`: largest event time read.
    `oldest`: the oldest offset that matters: from here a new owner re-reads.
    """

    topic: str
    topic_id: str
    next_offset: int
    clock: int
    order_key: int
    oldest: int
    pending: bytes
    trained: bytes


class PartitionState(msgspec.Struct, frozen=True):
    """Positions, clocks, ledger and bitmaps of one partition pair (one side in inline mode)."""

    partition: int
    ledger: Ledger
    sides: tuple[SideState, ...]


class Consumed(msgspec.Struct, frozen=True):
    """In which order records were taken: sources (topic, partition, first offset) and one code a record.

    A code below `MARK` is a record of `sources[code]`; `MARK + i` is the moment in which the idle label side
    `sources[i]` followed its feature side's clock. `order` is zlib of little-endian uint16 codes.
    """

    sources: tuple[tuple[str, int, int], ...]
    order: bytes
    records: int


MARK = 1 << 15
