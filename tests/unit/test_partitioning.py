"""Do producers agree on where a key lies? Known values, and what is said of topics that differ."""

import pytest

from worker.stream.kafka.partitioning import (
    PartitioningCheck,
    kafka_partition,
    librdkafka_partition,
    murmur2,
)
from worker.stream.records import Records, TopicPartition


@pytest.mark.parametrize(
    ("key", "signed"),
    [  # from Kafka's own test of its hash
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_agrees_with_kafkas_clients(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


def test_the_partitions_agree_with_the_client_library() -> None:
    from kafka.partitioner.default import murmur2 as client_murmur2

    for number in range(300):
        key = b"k" * (number % 7) + str(number * 7919).encode()
        assert murmur2(key) == client_murmur2(key) & 0xFFFFFFFF
        assert 0 <= kafka_partition(key, 5) < 5


def chunk(topic: str, partition: int, keys: list[bytes | None]) -> Records:
    n = len(keys)
    return Records(TopicPartition(topic, partition), list(range(n)), [0] * n, keys, [b""] * n, n)


def feed(check: PartitioningCheck, topic: str, partitioner: object, count: int = 4) -> None:
    """Show the check 400 keys of a topic, each in the partition that `partitioner(key, count)` names."""
    assert callable(partitioner)
    keys = [b"e-%d" % number for number in range(400)]
    for partition in range(count):
        mine: list[bytes | None] = [key for key in keys if partitioner(key, count) == partition]
        for at in range(0, len(mine), 20):
            check.observe(chunk(topic, partition, mine[at : at + 20]), count)


def test_topics_of_one_partitioner_have_nothing_to_say() -> None:
    for partitioner in (kafka_partition, librdkafka_partition):
        check = PartitioningCheck()
        feed(check, "features", partitioner)
        feed(check, "labels", partitioner)
        assert check.findings() == []


def test_topics_of_two_partitioners_are_named_with_the_remedy() -> None:
    check = PartitioningCheck()
    feed(check, "features", kafka_partition)
    feed(check, "labels", librdkafka_partition)
    (finding,) = check.findings()
    assert "features by murmur2, labels by CRC-32" in finding
    assert "partitioner=murmur2_random" in finding
    assert check.findings(joined=False) == []


def test_keys_that_fit_neither_partitioner_are_named() -> None:
    check = PartitioningCheck()
    feed(check, "features", lambda key, count: len(key) % count)
    (finding,) = check.findings()
    assert finding.startswith("the keys of topic features fit neither Kafka's partitioner")


def test_null_keys_are_counted() -> None:
    check = PartitioningCheck()
    check.observe(chunk("labels", 0, [None, None, b"e-1"]), 2)
    (finding,) = check.findings()
    assert finding.startswith("2 of 3 sampled records of topic labels have no key")


def test_a_watermark_record_needs_no_key() -> None:
    check = PartitioningCheck()
    records = Records(TopicPartition("labels", 0), [0, 1], [5, 5], [None, None], [b'{"watermark": 1}', None], 2)
    check.observe(records, 2)
    (finding,) = check.findings()
    assert finding.startswith("1 of 1 sampled records of topic labels have no key")


def test_one_partition_says_nothing_whatever_it_holds() -> None:
    check = PartitioningCheck()
    check.observe(chunk("labels", 0, [None] * 100), 1)
    assert check.findings() == []


def test_few_keys_prove_nothing() -> None:
    check = PartitioningCheck()
    check.observe(chunk("features", 3, [b"a", b"b", b"c", b"d"]), 4)
    assert check.findings() == []


def test_a_producer_that_changes_is_noticed_even_after_long() -> None:
    check = PartitioningCheck()
    for _ in range(50):
        feed(check, "features", kafka_partition)
        feed(check, "labels", kafka_partition)
    assert check.findings() == []
    for _ in range(20):
        feed(check, "labels", librdkafka_partition)
    assert any("labels" in finding for finding in check.findings())
