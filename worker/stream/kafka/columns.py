"""Fetched records as columns, in the place of the client's record-by-record reader.

`PartitionColumns` answers to what the client's fetcher asks of its own reader (`take`, `drain`, truth value,
`next_fetch_offset`), so positions, pauses and fetches stay the client's business. Installed by `guards.py`,
which also knows how the client is inside; this file must not.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from kafka import codec
from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.record.util import calc_crc32c

from worker.stream.kafka import batches
from worker.stream.kafka.batches import BatchHeader, Columns, DamagedBatch

# Codec number in a batch: name, whether its library is installed, decompression.
_CODECS: dict[int, tuple[str, Callable[[], bool], Callable[[bytes], bytes]]] = {
    1: ("gzip", codec.has_gzip, codec.gzip_decode),
    2: ("snappy", codec.has_snappy, codec.snappy_decode),
    3: ("lz4", codec.has_lz4, codec.lz4_decode),
    4: ("zstd", codec.has_zstd, codec.zstd_decode),
}


def missing_codecs() -> list[str]:
    """Return the names of compressions that can not be read here. Any producer or topic may choose any of them."""
    return [name for name, installed, _ in _CODECS.values() if not installed()]


def decompress(attributes: int, body: bytes) -> bytes:
    """Return the records of a batch as plain bytes; raise `UnsupportedCodecError` where a library is missing."""
    number = attributes & batches.CODEC_MASK
    if not number:
        return body
    name, installed, decode = _CODECS.get(number, (f"number {number}", lambda: False, bytes))
    if not installed():
        raise UnsupportedCodecError(name)
    return bytes(decode(body))


class AbortedTransaction(Protocol):
    """An entry of a fetch response: records of `producer_id` from `first_offset` on are void, up to a marker."""

    producer_id: int
    first_offset: int


class Taken(list[Columns]):
    """What one `take` gave: at most one `Columns`. Its length is the share of the poll's allowance it used up.

    The fetcher subtracts `len()` of what it took from the records it may still return. Counting bytes as records
    here bounds a poll in both: 500 records of 1 MB would otherwise be half a gigabyte in one call.
    """

    def __init__(self, columns: Columns, cost: int) -> None:
        super().__init__([columns])
        self._cost = cost

    def __len__(self) -> int:
        return self._cost


class PartitionColumns:
    """The fetched bytes of one partition, handed out batch by batch.

    `bytes_per_record` converts: a poll that may return n records returns at most n times as many bytes
    (but always at least one record, whatever its size).
    """

    def __init__(
        self,
        fetch_offset: int,
        topic_partition: Any,
        data: bytes,
        aborted: Iterable[AbortedTransaction],
        on_drain: Callable[["PartitionColumns"], None],
        bytes_per_record: int,
    ) -> None:
        self.topic_partition = topic_partition
        self.fetch_offset = fetch_offset
        self.next_fetch_offset = fetch_offset
        self.leader_epoch = -1
        self.bytes_read = 0
        self._data: bytes | None = data
        self._at = 0
        self._passed = fetch_offset  # the offset after the last batch looked at, whether it held records or not
        self._left = batches.nothing()
        self._aborted = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._void_producers: set[int] = set()
        self._on_drain = on_drain
        self._bytes_per_record = bytes_per_record

    def __bool__(self) -> bool:
        return self._data is not None

    def drain(self) -> None:
        if self._data is not None:
            self._data = None
            self._left = batches.nothing()
            self._on_drain(self)

    def take(self, allowance: int) -> "Taken | list[Columns]":
        """Return up to `allowance` records (and its worth of bytes); move `next_fetch_offset` past what was passed.

        A damaged batch raises only when it is the first thing left: what lies before it is delivered first.
        """
        taken, self._left = self._left, batches.nothing()
        bytes_allowed = allowance * self._bytes_per_record
        try:
            while len(taken.offsets) < allowance and taken.nbytes < bytes_allowed:
                batch = self._next_batch()
                if batch is None:
                    break
                taken.extend(batch)
        except (DamagedBatch, UnsupportedCodecError) as error:
            if not taken.offsets:
                topic, partition = self.topic_partition
                if isinstance(error, UnsupportedCodecError):
                    raise
                raise CorruptRecordError(f"{topic}-{partition} at offset {self.next_fetch_offset}: {error}") from error
        return self._hand_out(taken, allowance, bytes_allowed)

    def _hand_out(self, taken: Columns, allowance: int, bytes_allowed: int) -> "Taken | list[Columns]":
        fits = _fitting(taken, allowance, bytes_allowed)
        if fits < len(taken.offsets):
            taken, self._left = taken.split(fits)
        if self._left.offsets:
            self.next_fetch_offset = taken.offsets[-1] + 1
        else:
            self.next_fetch_offset = self._passed
            if self._exhausted():
                self.drain()
        if not taken.offsets:
            return []
        self.bytes_read += taken.nbytes
        return Taken(taken, max(len(taken.offsets), taken.nbytes // self._bytes_per_record))

    def _exhausted(self) -> bool:
        return self._data is not None and batches.batch_end(self._data, self._at) is None

    def _next_batch(self) -> Columns | None:
        """Return the next batch that holds records to deliver; pass control batches and void ones."""
        while self._data is not None and (header := batches.read_header(self._data, self._at)) is not None:
            columns = self._read(header, self._data)
            self._at = header.end
            self.leader_epoch = header.leader_epoch
            self._passed = max(self._passed, header.next_offset)
            if columns is not None and columns.offsets:
                return columns
        return None

    def _read(self, header: BatchHeader, data: bytes) -> Columns | None:
        view = memoryview(data)
        if calc_crc32c(view[header.start + batches.CHECKED_FROM : header.end]) != header.crc:
            raise DamagedBatch(f"the checksum of the batch at offset {header.base_offset} is wrong")
        body = data[header.start + batches.HEADER_BYTES : header.end]
        if self._is_void(header, body) or header.attributes & batches.CONTROL:
            return None
        columns = batches.read_records(header, decompress(header.attributes, body))
        # A fetch in the middle of a batch returns the whole of it.
        early = columns.before(self.fetch_offset)
        return columns.split(early)[1] if early else columns

    def _is_void(self, header: BatchHeader, body: bytes) -> bool:
        """Say whether the batch belongs to an aborted transaction; keep track of those that begin and end here."""
        if header.producer_id < 0:
            return False
        while self._aborted and self._aborted[0].first_offset < header.next_offset:
            self._void_producers.add(self._aborted.popleft().producer_id)
        if header.attributes & batches.CONTROL:
            if batches.is_abort_marker(body):
                self._void_producers.discard(header.producer_id)
            return False
        return bool(header.attributes & batches.TRANSACTIONAL) and header.producer_id in self._void_producers


def _fitting(taken: Columns, allowance: int, bytes_allowed: int) -> int:
    """Return how many of the records may be handed out now: at least one, so that a giant never blocks the way."""
    count = min(len(taken.offsets), allowance)
    if taken.nbytes <= bytes_allowed or count <= 1:
        return count
    total = 0
    for index in range(count):
        value = taken.values[index]
        total += len(value) if value is not None else 0
        if total > bytes_allowed:
            return max(1, index)
    return count
