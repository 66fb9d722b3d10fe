"""Record batches: what Kafka's client writes, our columns read; what is damaged is never read as something else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from worker.errors import ConfigError
from worker.stream.kafka.batches import Columns, DamagedBatch, batch_end, read_header, varint
from worker.stream.kafka.columns import PartitionColumns

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

rows = st.lists(
    st.tuples(
        st.integers(-(2**40), 2**41),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200) | st.integers(0, 20_000).map(lambda size: b"v" * size),
        st.lists(st.tuples(st.sampled_from(["trace", "content-type", "Content-Type", "é"]), st.binary(max_size=9)), max_size=3),
    ),
    min_size=1,
    max_size=30,
)  # fmt: skip


def batch(
    records: Sequence[Row], base: int = 0, *, codec: int = 0, producer: int = -1, transactional: bool = False
) -> bytes:
    """Return the bytes of one batch as the client's producer writes it, at offset `base` of a log."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=transactional,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        batch_size=1 << 30,
    )
    for offset, (timestamp, key, value, headers) in enumerate(records):
        builder.append(offset, timestamp, key, value, headers)
    built = bytearray(builder.build())
    built[:8] = base.to_bytes(8, "big")  # brokers write it; the checksum does not cover it
    return bytes(built)


def marker(base: int, producer: int, *, abort: bool) -> bytes:
    """Return a control batch: the end of a transaction."""
    plain = bytearray(
        batch([(0, (0).to_bytes(2, "big") + (0 if abort else 1).to_bytes(2, "big"), b"", [])], base, producer=producer)
    )
    attributes = int.from_bytes(plain[21:23], "big") | 0x30
    plain[21:23] = attributes.to_bytes(2, "big")
    return sealed(plain)


def sealed(plain: bytearray) -> bytes:
    from kafka.record.util import calc_crc32c

    plain[17:21] = calc_crc32c(memoryview(plain)[21:]).to_bytes(4, "big")
    return bytes(plain)


@dataclass
class Aborted:
    producer_id: int
    first_offset: int


def reader(
    data: bytes, start: int = 0, *, aborted: Sequence[Aborted] = (), per_record: int = 1 << 20
) -> PartitionColumns:
    return PartitionColumns(start, ("features", 0), data, aborted, lambda _: None, per_record)


def drained(part: PartitionColumns, allowance: int = 1000) -> Columns:
    """Take until nothing is left; return all columns as one."""
    whole = Columns([], [], [], [], {}, 0)
    while part:
        for columns in part.take(allowance):
            whole.extend(columns)
    return whole


@given(rows, st.integers(0, 2**50), st.sampled_from([0, 1, 2, 3, 4]), st.integers(1, 40))
def test_columns_are_what_the_client_reads(records: list[Row], base: int, codec: int, allowance: int) -> None:
    data = batch(records, base, codec=codec)
    part = reader(data, base)
    ours = drained(part, allowance)
    theirs: list[Any] = [record for found in MemoryRecords(data) for record in found]
    assert ours.offsets == [record.offset for record in theirs]
    assert ours.timestamps == [record.timestamp for record in theirs]
    assert ours.keys == [record.key for record in theirs]
    assert ours.values == [record.value for record in theirs]
    for index, record in enumerate(theirs):
        types = [value for name, value in record.headers if name.lower() == "content-type"]
        assert ours.content_types.get(index) == (types[-1] if types else None)
    assert part.next_fetch_offset == base + len(records)


@given(rows, st.data())
def test_one_flipped_byte_never_passes(records: list[Row], data: st.DataObject) -> None:
    """The checksum covers everything behind it; in front of it length and format are checked."""
    whole = bytearray(batch(records))
    at = data.draw(st.integers(17, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptRecordError, match=r"features-0 at offset 0: "):
        reader(bytes(whole)).take(10)


@given(rows, st.integers(0, 29))
def test_a_fetch_into_the_middle_of_a_batch_begins_there(records: list[Row], skip: int) -> None:
    start = min(skip, len(records) - 1)
    assert drained(reader(batch(records), start)).offsets == list(range(start, len(records)))


@given(st.lists(rows, min_size=1, max_size=4), st.integers(1, 7))
def test_the_position_follows_what_was_handed_out(batches_of: list[list[Row]], allowance: int) -> None:
    data, base = b"", 0
    for records in batches_of:
        data += batch(records, base)
        base += len(records)
    part, expected = reader(data + batch(batches_of[0], base)[:-1]), 0  # the last batch is cut short
    while part:
        for columns in part.take(allowance):
            assert columns.offsets[0] == expected
            assert len(columns.offsets) <= allowance
            expected = columns.offsets[-1] + 1
        assert part.next_fetch_offset == expected
    assert expected == base


def row(value: bytes) -> Row:
    return (0, None, value, [])


def test_a_poll_is_bounded_in_bytes_and_a_giant_still_comes() -> None:
    data = batch([row(b"x" * 1000) for _ in range(10)]) + batch([row(b"y" * 50_000)], 10)
    part = reader(data, per_record=100)
    first = part.take(30)
    assert [len(columns.offsets) for columns in first] == [3]  # 3 000 bytes are the worth of 30 records
    assert len(first) >= 30, "bytes count against the poll's records"
    assert drained(part, 30).offsets == list(range(3, 11))


def test_aborted_records_and_markers_are_passed() -> None:
    data = (
        batch([row(b"a")], 0, producer=1, transactional=True)
        + batch([row(b"b")], 1, producer=2, transactional=True)
        + marker(2, 1, abort=True)
        + batch([row(b"c")], 3, producer=1, transactional=True)
        + marker(4, 2, abort=False)
        + marker(5, 1, abort=False)
    )
    part = reader(data, aborted=[Aborted(1, 0)])
    assert drained(part).values == [b"b", b"c"]
    assert part.next_fetch_offset == 6


def test_nothing_but_markers_moves_the_position_alone() -> None:
    part = reader(marker(0, 1, abort=True))
    assert part.take(5) == []
    assert not part
    assert part.next_fetch_offset == 1


def test_what_lies_before_a_damaged_batch_is_delivered_first() -> None:
    broken = bytearray(batch([row(b"b")], 1))
    broken[-1] ^= 1
    part = reader(batch([row(b"a")]) + bytes(broken))
    assert part.take(10)[0].values == [b"a"]
    with pytest.raises(CorruptRecordError, match="at offset 1: the checksum"):
        part.take(10)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_refused_by_name(magic: int) -> None:
    data = bytearray(batch([row(b"a")]))
    data[16] = magic
    with pytest.raises(ConfigError, match=r"older than Kafka 0\.11"):
        reader(bytes(data)).take(1)


def test_headers_and_ends_of_cut_buffers() -> None:
    data = batch([row(b"a")])
    assert read_header(data[:5], 0) is None
    assert batch_end(data[:-1], 0) is None
    assert batch_end(data, 0) == len(data)
    with pytest.raises(DamagedBatch, match="longer than ten bytes"):
        varint(b"\xff" * 11, 0)
