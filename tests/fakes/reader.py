"""What replay reads from: any offset of a log in memory, a few records at a time."""

from tests.fakes.source import FakeLog
from worker.errors import OffsetsLost
from worker.stream.records import Records, TopicPartition


class FakeReader:
    """`Read` over a `FakeLog`. `most`: records in one answer, so that commits and answers do not fall together."""

    def __init__(self, log: FakeLog, most: int = 7) -> None:
        self.log = log
        self.most = most

    def __call__(self, source: TopicPartition, offset: int, count: int) -> Records:
        topic = self.log.topics[source.topic]
        if offset < (begin := topic.starts[source.partition]):
            raise OffsetsLost(f"topic {source.topic}, partition {source.partition}: the log begins at {begin}")
        stop = min(offset + min(count, self.most), self.log.end(source))
        there = [(n, topic.partitions[source.partition][n]) for n in range(offset, stop)]
        given = [(n, record) for n, record in there if record.deliverable]
        if not given and stop < self.log.end(source):
            return self(source, stop, count)
        types = {i: record.content_type for i, (_, record) in enumerate(given) if record.content_type is not None}
        return Records(
            source, [n for n, _ in given], [r.timestamp for _, r in given], [r.key for _, r in given],
            [r.value for _, r in given], stop, types,
        )  # fmt: skip
