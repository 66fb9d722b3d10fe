"""Topics and groups as an administrator sees them: what exists, how it is set up, and where its offsets stand."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from kafka import IsolationLevel, KafkaAdminClient, OffsetSpec, errors
from kafka import TopicPartition as ClientPartition
from kafka.admin import ConfigResource, ConfigResourceType

from worker.errors import ConfigError, Transient
from worker.stream.kafka.connection import KafkaConfig, client_arguments, opened, translated
from worker.stream.records import TopicPartition

_READY_MS = 10_000
_BACK_OFF_S = 0.2
_UNKNOWN_TOPIC = 3  # error code of a topic that does not exist


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """How a topic is set up. `topic_id` is "" before Kafka 2.8, `cleanup_policy` "" where it may not be read."""

    partitions: int
    topic_id: str
    cleanup_policy: str


class TopicAdmin:
    """Questions and changes. Raises `Transient` when no broker answers, `ConfigError` when one refuses."""

    def __init__(self, config: KafkaConfig) -> None:
        self._admin: KafkaAdminClient = opened(KafkaAdminClient, config, **client_arguments(config))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with translated("closing the connection to Kafka"):
            self._admin.close()

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """Return what is known of each topic; those that do not exist are absent."""
        names = sorted(set(topics))
        with translated("asking for topics"):
            found = {}
            for topic in self._admin.describe_topics(names) if names else []:
                if topic["error_code"] == _UNKNOWN_TOPIC:
                    continue
                if topic["error_code"]:
                    raise errors.for_code(topic["error_code"])(topic["name"])
                found[topic["name"]] = topic
            policies = self._cleanup_policies(list(found))
        return {
            name: TopicInfo(len(topic["partitions"]), str(topic["topic_id"] or ""), policies.get(name, ""))
            for name, topic in found.items()
        }

    def create(self, topics: Iterable[str], partitions: int, replication: int = -1) -> list[str]:
        """Create those that do not exist and wait until they can be used; return their names.

        `replication` -1: the broker's default. The cleanup policy is set: a cluster's default may be `compact`.
        """
        created = []
        for name in topics:
            wanted = {
                "num_partitions": partitions,
                "replication_factor": replication,
                "configs": {"cleanup.policy": "delete"},
            }
            with translated(f"creating topic {name}"):
                try:
                    self._admin.create_topics({name: wanted})
                except errors.TopicAlreadyExistsError:
                    continue
            created.append(name)
        with translated("waiting for new topics"):
            self._admin.wait_for_topics(created, timeout_ms=_READY_MS)
        return created

    def delete(self, topics: Sequence[str]) -> None:
        with translated(f"deleting {', '.join(topics)}"):
            self._admin.delete_topics(list(topics))

    def beginning_offsets(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(sources, OffsetSpec.EARLIEST)

    def end_offsets(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offsets: what a reader of committed records can reach."""
        return self._offsets(sources, OffsetSpec.LATEST)

    def group_committed(self, group: str, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """Return the offsets that the group has committed in these topics; empty when there are none."""
        wanted = set(topics)
        with translated(f"asking for the committed offsets of group {group}"):
            try:
                answer = self._when_coordinated(group)
            except errors.GroupIdNotFoundError:
                return {}
        return {
            TopicPartition(*source): int(committed.offset)
            for source, committed in answer.items()
            if source.topic in wanted and committed.offset >= 0
        }

    def has_committed_offsets(self, group: str, topics: Iterable[str]) -> bool:
        return bool(self.group_committed(group, topics))

    def _when_coordinated(self, group: str) -> Mapping[ClientPartition, Any]:
        """The first question about any group makes the broker create its offsets topic, which takes a second."""
        deadline = time.monotonic() + _READY_MS / 1000
        while True:
            try:
                return dict(self._admin.list_group_offsets([group])[group])
            except (errors.CoordinatorNotAvailableError, errors.CoordinatorLoadInProgressError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(_BACK_OFF_S)

    def _offsets(self, sources: Iterable[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        wanted = {ClientPartition(*source): spec for source in sources}
        if not wanted:
            return {}
        with translated("asking for offsets"):
            answer = self._admin.list_partition_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, timeout_ms=_READY_MS
            )
        return {TopicPartition(*source): int(found.offset) for source, found in answer.items()}

    def _cleanup_policies(self, topics: Sequence[str]) -> dict[str, str]:
        if not topics:
            return {}
        # All of a topic's settings: the embedded broker hangs up on a question for one of them by name.
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics]
        answer = self._admin.describe_configs(resources, config_filter="all").get("topic", {})
        return {name: str(answer.get(name, {}).get("cleanup.policy", {}).get("value", "")) for name in topics}


def check_topics(found: Mapping[str, TopicInfo], topics: Sequence[str]) -> None:
    """Raise `ConfigError` (or `Transient` for a missing topic) where topics of events can not be read together."""
    for name in topics:
        if name not in found:
            raise Transient(f"topic {name} does not exist: create it with `gradstream init`")
        policy = found[name].cleanup_policy
        if policy not in ("delete", ""):
            raise ConfigError(
                f"topic {name} has cleanup.policy={policy}: compaction removes events before they are read; "
                "set it to delete"
            )
    counts = {name: found[name].partitions for name in topics}
    if len(set(counts.values())) > 1:
        named = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ConfigError(
            f"the topics must have equal numbers of partitions ({named}): an event and its label would lie in "
            "different partitions; add partitions to the smaller one"
        )
