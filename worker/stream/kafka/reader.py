"""Reads records from a given offset on, outside any group: for replay. Knows positions, not what is in records."""

from typing import Any

from kafka import KafkaConsumer, errors
from kafka import TopicPartition as ClientPartition

from worker.errors import OffsetsLost, Transient
from worker.stream.kafka import guards
from worker.stream.kafka.batches import nothing
from worker.stream.kafka.connection import KafkaConfig, consumer_arguments, opened, translated
from worker.stream.positions import PartitionState
from worker.stream.records import Records, TopicPartition

_POLL_MS = 500
_SILENT_POLLS = 40
_ANSWER_MS = 10_000


class KafkaReader:
    """Call it with (source, offset, count) for the next records, bounded by what a poll brings. Close it when done.

    Raises `OffsetsLost` where the log no longer has the offset, `Transient` where no broker answers.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._consumer: KafkaConsumer = opened(
            KafkaConsumer, config, **consumer_arguments(config), group_id=None, max_poll_records=config.max_poll_records
        )
        guards.install(self._consumer, max(1, config.max_poll_bytes // config.max_poll_records))
        self._source: TopicPartition | None = None
        self._ends: dict[TopicPartition, int] = {}

    def __call__(self, source: TopicPartition, offset: int, count: int) -> Records:
        """Return at least one record, or none (and where reading would go on) at the end of the log."""
        with translated(f"reading topic {source.topic}, partition {source.partition}"):
            client_source = self._turn_to(source, offset)
            found, silent = nothing(), 0
            while not found.offsets and self._reached(client_source) < self._end(source):
                fetched = self._poll(source, offset, count)
                for columns in fetched.get(client_source, ()):
                    found.extend(columns)
                silent += 1
                if silent > _SILENT_POLLS:
                    raise Transient(f"topic {source.topic}, partition {source.partition}: no broker answers")
        following = max(offset, self._reached(client_source))
        return Records(
            source, found.offsets, found.timestamps, found.keys, found.values, following, found.content_types
        )

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1_000)

    def beginning_offsets(self, state: PartitionState) -> dict[TopicPartition, int]:
        """Return the first offsets that the log still has of a partition's topics."""
        sources = [TopicPartition(side.topic, state.partition) for side in state.sides]
        return {source: self._beginning_offset(source) for source in sources}

    def _beginning_offset(self, source: TopicPartition) -> int:
        client_source = ClientPartition(*source)
        with translated(f"asking where topic {source.topic}, partition {source.partition} begins"):
            return int(self._consumer.beginning_offsets([client_source], timeout_ms=_ANSWER_MS)[client_source])

    def _turn_to(self, source: TopicPartition, offset: int) -> ClientPartition:
        client_source = ClientPartition(*source)
        if source != self._source:  # one at a time: what was fetched of others is fetched again when it is wanted
            self._consumer.assign([client_source])
            self._source = source
        if self._reached(client_source) != offset:
            self._check_there(source, offset)
            self._consumer.seek(client_source, offset)
        return client_source

    def _poll(self, source: TopicPartition, offset: int, count: int) -> dict[Any, Any]:
        """Ask for records; retention may take what is read next at any moment."""
        try:
            return self._consumer.poll(_POLL_MS, max_records=count)  # type: ignore[no-any-return]
        except errors.OffsetOutOfRangeError:
            self._check_there(source, offset)
            raise  # beyond the end: the log was cut, or is read from a replica that is behind

    def _check_there(self, source: TopicPartition, offset: int) -> None:
        if offset < (begin := self._beginning_offset(source)):
            raise OffsetsLost(
                f"topic {source.topic}, partition {source.partition}: offset {offset} is needed and the log begins "
                f"at {begin}: retention took {begin - offset} records"
            )

    def _reached(self, client_source: ClientPartition) -> int:
        position = guards.position(self._consumer, client_source)
        return -1 if position is None else position

    def _end(self, source: TopicPartition) -> int:
        if source not in self._ends:
            client_source = ClientPartition(*source)
            ends: dict[Any, int] = self._consumer.end_offsets([client_source], timeout_ms=_ANSWER_MS)
            self._ends[source] = int(ends[client_source])
        return self._ends[source]
