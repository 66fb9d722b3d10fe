"""What an administrator asks and does, against a real broker."""

import pytest

from tests.services.kafka import create_topics, produce, produce_transaction
from worker.errors import ConfigError, Transient
from worker.stream.kafka.connection import KafkaConfig
from worker.stream.kafka.topics import TopicAdmin, TopicInfo, check_topics
from worker.stream.records import TopicPartition


def test_topics_are_created_once_and_described(apache_kafka: str, topic_prefix: str) -> None:
    one, two = topic_prefix + "one", topic_prefix + "two"
    with TopicAdmin(KafkaConfig(apache_kafka)) as admin:
        assert admin.create([one], 3, 1) == [one]
        assert admin.create([one, two], 2, 1) == [two]
        found = admin.describe([one, two, topic_prefix + "none"])
        assert {name: info.partitions for name, info in found.items()} == {one: 3, two: 2}
        assert all(info.cleanup_policy == "delete" for info in found.values())
        assert admin.describe([]) == {}
        with pytest.raises(ConfigError, match=rf"creating topic {topic_prefix}odd"):
            admin.create([topic_prefix + "odd"], 0, 1)


def test_a_topic_created_again_has_another_id(apache_kafka: str, topic_prefix: str) -> None:
    topic = topic_prefix + "t"
    create_topics(apache_kafka, topic)
    with TopicAdmin(KafkaConfig(apache_kafka)) as admin:
        before = admin.describe([topic])[topic].topic_id
        admin.delete([topic])
        create_topics(apache_kafka, topic)
        assert before != admin.describe([topic])[topic].topic_id
        assert len(before) == 36


def test_end_offsets_are_what_a_reader_of_committed_records_can_reach(apache_kafka: str, topic_prefix: str) -> None:
    topic = topic_prefix + "t"
    create_topics(apache_kafka, topic, partitions=2)
    produce(apache_kafka, topic, [(None, b"v")] * 3)
    produce_transaction(apache_kafka, topic, [(None, b"v")], abort=True)
    sources = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with TopicAdmin(KafkaConfig(apache_kafka)) as admin:
        assert admin.beginning_offsets(sources) == dict.fromkeys(sources, 0)
        assert admin.end_offsets(sources) == dict(zip(sources, (5, 0), strict=True))
        assert admin.end_offsets([]) == {}
        with pytest.raises(Transient, match="asking for offsets"):
            admin.end_offsets([TopicPartition(topic_prefix + "none", 0)])


def test_a_group_that_never_committed_has_no_offsets(kafka: str, topic_prefix: str) -> None:
    with TopicAdmin(KafkaConfig(kafka)) as admin:
        assert admin.group_committed(topic_prefix + "g", ["t"]) == {}
        assert not admin.has_committed_offsets(topic_prefix + "g", ["t"])


def test_topics_that_can_not_be_read_together_are_refused_with_the_remedy() -> None:
    good = TopicInfo(4, "id", "delete")
    check_topics({"f": good, "l": good}, ["f", "l"])
    with pytest.raises(ConfigError, match=r"topic l has cleanup\.policy=compact.*set it to delete"):
        check_topics({"f": good, "l": TopicInfo(4, "id", "compact")}, ["f", "l"])
    with pytest.raises(ConfigError, match=r"equal numbers of partitions \(f 4, l 3\)"):
        check_topics({"f": good, "l": TopicInfo(3, "id", "delete")}, ["f", "l"])
    with pytest.raises(Transient, match="topic l does not exist"):
        check_topics({"f": good}, ["f", "l"])
