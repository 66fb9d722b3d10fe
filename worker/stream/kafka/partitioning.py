"""Do producers put a key where others look for it? Compares sampled keys with the two usual partitioners. Pure.

Kafka's own producers take murmur2 of the key, librdkafka's default is CRC-32: with one of each, features and labels
of an id lie in different partitions and never meet, and nothing fails. Murmur2: Austin Appleby, 2008, 32 bits,
seed 0x9747b28c as in Kafka's clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

from worker.stream.records import Records

_PER_CHUNK = 20
_ENOUGH = 2_000  # keys a topic; then the counts are halved, so that a producer that changes is noticed
_MIN_KEYS = 20
_SHARE = 0.95  # a topic counts as written by a partitioner when this share of its keys agrees
_M32 = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return murmur2 of `data` as Kafka's clients compute it (unsigned 32 bits)."""
    m = 0x5BD1E995
    length = len(data)
    h = (0x9747B28C ^ length) & _M32
    for at in range(0, length & ~3, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & _M32
        k = (k ^ (k >> 24)) * m & _M32
        h = (h * m & _M32) ^ k
    if tail := data[length & ~3 :]:
        h = (h ^ int.from_bytes(tail, "little")) * m & _M32
    h = (h ^ (h >> 13)) * m & _M32
    return h ^ (h >> 15)


def kafka_partition(key: bytes, partitions: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def librdkafka_partition(key: bytes, partitions: int) -> int:
    return crc32(key) % partitions


@dataclass(slots=True)
class _Sample:
    partitions: int
    keys: int = 0
    null_keys: int = 0
    murmur2: int = 0
    crc32: int = 0

    def halve(self) -> None:
        self.keys, self.null_keys = self.keys // 2, self.null_keys // 2
        self.murmur2, self.crc32 = self.murmur2 // 2, self.crc32 // 2


class PartitioningCheck:
    """Samples the first keys of each chunk, newer ones counting more; `findings` says what is wrong."""

    def __init__(self) -> None:
        self._samples: dict[str, _Sample] = {}

    def observe(self, records: Records, partition_count: int) -> None:
        """Take note of some keys of `records`. Topics of one partition have nothing to say."""
        if partition_count < 2:
            return
        topic = records.source.topic
        sample = self._samples.get(topic)
        if sample is None or sample.partitions != partition_count:  # keys of before lie where they lay
            sample = self._samples[topic] = _Sample(partition_count)
        if sample.keys + sample.null_keys >= _ENOUGH:
            sample.halve()
        partition = records.source.partition
        for key, value in zip(records.keys[:_PER_CHUNK], records.values[:_PER_CHUNK], strict=True):
            if key is None:
                sample.null_keys += not _may_be_watermark(value)
                continue
            sample.keys += 1
            sample.murmur2 += kafka_partition(key, partition_count) == partition
            sample.crc32 += librdkafka_partition(key, partition_count) == partition

    def findings(self, *, joined: bool = True) -> list[str]:
        """Return one sentence for each thing to mend, with its remedy. Nothing is wrong inline: no two topics meet."""
        if not joined:
            return []
        found = [sentence for topic in sorted(self._samples) for sentence in _about(topic, self._samples[topic])]
        by_topic = {topic: _partitioner(sample) for topic, sample in sorted(self._samples.items())}
        named = {topic: name for topic, name in by_topic.items() if name}
        if len(set(named.values())) > 1:
            found.append(_disagree(named))
        return found


def _may_be_watermark(value: bytes | None) -> bool:
    """A watermark record belongs to its partition and not to an id: that it has no key is no fault."""
    return value is not None and len(value) < 64 and b'"watermark"' in value


def _partitioner(sample: _Sample) -> str | None:
    if sample.keys < _MIN_KEYS:
        return None
    if sample.murmur2 >= _SHARE * sample.keys:
        return "murmur2"
    return "CRC-32" if sample.crc32 >= _SHARE * sample.keys else None


def _about(topic: str, sample: _Sample) -> list[str]:
    sentences = []
    if sample.null_keys:
        sentences.append(
            f"{sample.null_keys} of {sample.keys + sample.null_keys} sampled records of topic {topic} have no key, so "
            "they lie in any partition and may never meet their partner: send the id as the key"
        )
    if sample.keys >= _MIN_KEYS and _partitioner(sample) is None:
        sentences.append(
            f"the keys of topic {topic} fit neither Kafka's partitioner ({sample.murmur2} of {sample.keys}) nor that "
            f"of librdkafka ({sample.crc32}): its producers differ or partitions were added since; let all of them use "
            "one partitioner (librdkafka: partitioner=murmur2_random)"
        )
    return sentences


def _disagree(named: Mapping[str, str]) -> str:
    words = ", ".join(f"{topic} by {name}" for topic, name in named.items())
    return (
        f"topics are partitioned differently ({words}), so events of one id do not meet: set "
        "partitioner=murmur2_random in the producers that use librdkafka"
    )
