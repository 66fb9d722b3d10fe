"""A member of a Kafka consumer group that answers to `worker.stream.source.Source`.

Positions come from `seek` alone: Kafka's committed offsets are written for lag tools and never read back.
The client runs rebalance callbacks in its own thread, where they only pause and set flags, while the caller waits
in `poll`. Everything else happens in the caller's thread.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Event
from typing import Any

import structlog
from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, errors
from kafka import TopicPartition as ClientPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor

from worker.errors import OffsetsLost, Transient
from worker.stream.kafka import guards
from worker.stream.kafka.batches import Columns, nothing
from worker.stream.kafka.connection import KafkaConfig, consumer_arguments, opened, translated
from worker.stream.kafka.progress import Progress
from worker.stream.records import Records, TopicPartition

_CHECK_EVERY_S = 2.0  # how often positions are compared with end offsets, and topics with their ids
_IDLE_S = 1.0  # nothing came for so long: fetches may wait longer at the broker
_IDLE_WAIT_MS = 500
_QUIET_S = 2.0  # a partition that moved since then needs no comparison
_UNKNOWN_S = 1.0  # a client that has just started knows no topics: not yet a reason to tell a person to create them
_GONE_S = 3.0  # a broker that has just started may not know its topics yet
_ANSWER_MS = 5_000  # how long a question to the broker may take
_CLOSE_MS = 3_000
_UNHEARD_SESSIONS = 2  # a group that has not answered for so many sessions has thrown this member out
_UNHEARD_CHECKS = 3  # in a row: after a sleep of the whole process, an answer may be on its way


class KafkaSource:
    """See `Source`. Raises `Transient` when no broker answers, `ConfigError` when Kafka refuses the connection.

    `problem` says in one line why nothing comes, or is None. `rebalances`, `refused_acknowledgements`, `reopened`
    (by the watchdog) and `joined_again` (by a guard) count; `lost_offsets` tells, after `OffsetsLost`, how many offsets
    of which partition are gone.
    """

    def __init__(
        self,
        config: KafkaConfig,
        topics: Sequence[str],
        *,
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = 10.0,
    ) -> None:
        self._config = config
        self._topics = list(topics)
        self._clock = clock
        self._log = structlog.get_logger(__name__)
        self._owned: frozenset[TopicPartition] = frozenset()
        self._changed = False  # a rebalance that the caller has not been told of
        self._unsettled = False  # a rebalance after which everything is paused
        self._positions: dict[TopicPartition, int] = {}
        self._wanted: frozenset[TopicPartition] | None = None  # None: all
        self._ids: dict[str, str] = {}
        self._gone_since: dict[str, float] = {}
        self._unknown_since: float | None = None
        self._progress = Progress(patience_s)
        self._unheard_checks = 0
        self._join_patience_s = config.max_poll_interval_ms / 1000 + patience_s
        self._joined_at = self._next_check = self._last_came = clock()
        self._acknowledged = Event()
        self._acknowledged.set()
        self.problem: str | None = None
        self.reopened = 0
        self.joined_again = 0
        self.rebalances = 0
        self.refused_acknowledgements = 0
        self.lost_offsets: dict[TopicPartition, int] = {}
        self._consumer: KafkaConsumer | None = self._open()

    # -- the protocol ----------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[Records]:
        """See `Source`. While no broker answers it returns [] and `problem` says so."""
        try:
            consumer = self._consumer or self._open()
        except Transient as error:
            self.problem = str(error)
            return []
        self._consumer = consumer
        self._settle(consumer)
        if guards.join_again(consumer):
            self.joined_again += 1
        with translated("reading from Kafka"):
            if guards.is_fenced(consumer):
                raise errors.FencedInstanceIdError
            try:
                fetched = consumer.poll(round(timeout_s * 1000), max_records=self._config.max_poll_records)
            except errors.OffsetOutOfRangeError as error:
                raise self._lost(dict(error.args[0])) from error
            except errors.LogTruncationError as error:
                raise self._lost({source: self._position(source) for source in error.divergent_offsets}) from error
        self._progress.polled()
        self._pace_fetches(consumer, came=bool(fetched))
        records = self._collect(consumer, fetched)
        self.problem = None if records else self._find_problem(consumer)
        self.check_progress(self._clock())
        return records

    def take_rebalance(self) -> bool:
        """See `Source`. Positions of partitions that the caller now learns to have lost are forgotten here."""
        if not self._changed:
            return False
        self._changed = False
        owned = self.assignment()
        self._positions = {source: offset for source, offset in self._positions.items() if source in owned}
        return True

    def assignment(self) -> frozenset[TopicPartition]:
        consumer = self._consumer
        return self._owned if consumer is not None and guards.is_member(consumer) else frozenset()

    def confirmed_since(self, moment: float) -> bool:
        consumer = self._consumer
        return consumer is not None and guards.is_stable(consumer) and guards.confirmed_since(consumer, moment)

    def seek(self, source: TopicPartition, offset: int) -> None:
        """See `Source`. A partition that is not assigned any more is passed over: `take_rebalance` tells."""
        consumer = self._consumer
        if consumer is None or source not in consumer.assignment():
            return
        consumer.seek(_client(source), offset)
        self._positions[source] = offset
        if not self._unsettled:
            self._apply_pauses(consumer)

    def fetch_only(self, wanted: frozenset[TopicPartition]) -> None:
        self._wanted = wanted
        if self._consumer is not None and not self._unsettled:
            self._apply_pauses(self._consumer)

    def beginning_offsets(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask the broker: the first offset that is still there. `Transient` when it does not answer."""
        consumer = self._answering()
        return self._offsets(consumer.beginning_offsets, sources, "asking for the first offsets")

    def end_offsets(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See `Source`. The consumer reads committed records, so the answer is the last stable offset."""
        consumer = self._answering()
        return self._offsets(consumer.end_offsets, sources, "asking for the end offsets")

    def topic_ids(self) -> dict[str, str]:
        """See `Source`. `Transient` when a topic is missing or no broker answers."""
        consumer = self._answering()
        with translated("asking for the topics"), suppress(errors.UnknownTopicOrPartitionError):  # named below
            guards.refresh_metadata(consumer, _ANSWER_MS / 1000)
        for topic in self._topics:
            if not guards.is_known(consumer, topic):
                raise Transient(_missing(topic))
        return {topic: guards.known_topic_id(consumer, topic) for topic in self._topics}

    def partition_counts(self) -> dict[str, int]:
        """See `Source`. The client hears of a change within `metadata_max_age_ms`."""
        consumer = self._consumer
        if consumer is None:
            return {}
        counts = {topic: guards.partition_count(consumer, topic) for topic in self._topics}
        return {topic: count for topic, count in counts.items() if count}

    def acknowledge(self, positions: Mapping[TopicPartition, int]) -> None:
        """See `Source`. A refused one (a stale generation) is counted; the next poll joins the group again."""
        consumer = self._consumer
        offsets = {
            _client(source): OffsetAndMetadata(offset, "", -1)
            for source, offset in positions.items()
            if source in self._owned
        }
        if consumer is None or not offsets:
            return
        self._acknowledged = done = Event()
        try:
            future = consumer.commit_async(offsets, callback=self._on_acknowledged)
            future.add_both(lambda _: done.set())
        except errors.KafkaError:
            self._acknowledged.set()
            self.refused_acknowledgements += 1

    def close(self) -> None:
        """Leave the group (a static member stays until its session ends) without committing anything."""
        self._acknowledged.wait(1.0)  # the last acknowledgement is under way: lag tools should see it
        consumer, self._consumer = self._consumer, None
        self._owned = frozenset()
        if consumer is not None:
            _close(consumer)

    # -- the watchdog ----------------------------------------------------------------------------------------------

    def check_progress(self, now: float) -> None:
        """Compare positions with end offsets every few seconds; replace a client that has records and gives none.

        A new seek or a rebalance does not heal such a client. Raises `OffsetsLost` when a topic is not the one that
        the positions belong to. `now`: monotonic seconds.
        """
        consumer = self._consumer
        if consumer is None or now < self._next_check:
            return
        self._next_check = now + _CHECK_EVERY_S
        self._check_topics(consumer, now)
        if not guards.is_connected(consumer):
            self._progress.forget()
            self._joined_at = now
            return
        if not guards.is_stable(consumer):
            self._progress.forget()
            if now - self._joined_at > self._join_patience_s:
                self._reopen("the group was not joined", now)
            return
        self._joined_at = now
        if self._is_unheard(consumer, now):
            self._reopen("the group does not answer this member", now)
            return
        active = [source for source in self._positions if source in self._owned and self._is_wanted(source)]
        quiet = self._progress.quiet(active, now, _QUIET_S)
        try:
            ends = self.end_offsets(quiet) if quiet else {}
        except Transient as error:
            self.problem = str(error)
            self._progress.forget()
            return
        stuck = self._progress.stuck(self._positions, ends, now)
        if stuck:
            self._reopen("records wait and none come", now, stuck)

    def _is_unheard(self, consumer: KafkaConsumer, now: float) -> bool:
        silent = guards.unheard_s(consumer, now) > _UNHEARD_SESSIONS * self._config.session_timeout_ms / 1000
        self._unheard_checks = self._unheard_checks + 1 if silent else 0
        return self._unheard_checks >= _UNHEARD_CHECKS

    def _check_topics(self, consumer: KafkaConsumer, now: float) -> None:
        for topic in self._topics:
            found, known = guards.known_topic_id(consumer, topic), self._ids.get(topic)
            if found:
                self._gone_since.pop(topic, None)
                self._ids.setdefault(topic, found)
                if known and known != found:
                    raise OffsetsLost(_recreated(topic, known, found))
            elif known and now - self._gone_since.setdefault(topic, now) >= _GONE_S:
                raise OffsetsLost(
                    f"topic {topic} (id {known}) was deleted: its records are gone; create it again "
                    "(`gradstream init`) and begin again with `gradstream state reset --yes`"
                )

    def _reopen(self, why: str, now: float, stuck: Sequence[TopicPartition] = ()) -> None:
        self.reopened += 1
        self._log.warning("kafka_client_replaced", why=why, partitions=[f"{t}-{p}" for t, p in stuck])
        consumer, self._consumer = self._consumer, None
        self._progress.forget()
        self._joined_at, self._unheard_checks = now, 0
        if consumer is not None:
            # Its parting callback must not make the caller drop work that the new client may get back.
            consumer.subscribe(self._topics)
            _close(consumer)

    def _pace_fetches(self, consumer: KafkaConsumer, *, came: bool) -> None:
        now = self._clock()
        if came:
            self._last_came = now
        idle = now - self._last_came > _IDLE_S
        guards.wait_at_broker(consumer, _IDLE_WAIT_MS if idle else self._config.fetch_max_wait_ms)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _open(self) -> KafkaConsumer:
        config = self._config
        consumer = opened(
            KafkaConsumer,
            config,
            **consumer_arguments(config),
            group_id=config.group_id,
            group_instance_id=config.group_instance_id or None,
            session_timeout_ms=config.session_timeout_ms,
            heartbeat_interval_ms=max(1, min(3_000, config.session_timeout_ms // 3)),
            max_poll_interval_ms=config.max_poll_interval_ms,
            max_poll_records=config.max_poll_records,
            # Range alone: it gives one member the same partition of both topics. Cooperative ones split pairs.
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        guards.install(consumer, max(1, config.max_poll_bytes // config.max_poll_records))
        consumer.subscribe(self._topics, listener=_Listener(self, consumer))
        self._log.info("kafka_opened", group=config.group_id, topics=self._topics)
        return consumer

    def _answering(self) -> KafkaConsumer:
        self._consumer = consumer = self._consumer or self._open()
        return consumer

    def _settle(self, consumer: KafkaConsumer) -> None:
        """After a rebalance: let kept partitions go on from where they were read; new ones wait for `seek`.

        The client keeps position, pause flag and buffers of kept partitions in some rebalances and not in others,
        so both are set again.
        """
        if not self._unsettled:
            return
        self._unsettled = False
        for source in consumer.assignment():
            offset = self._positions.get(TopicPartition(*source))
            if offset is not None:
                consumer.seek(source, offset)
        self._apply_pauses(consumer)

    def _apply_pauses(self, consumer: KafkaConsumer) -> None:
        paused = consumer.paused()
        for source in consumer.assignment():
            wanted = source in self._positions and self._is_wanted(TopicPartition(*source))
            if wanted and source in paused:
                consumer.resume(source)
            elif not wanted and source not in paused:
                consumer.pause(source)

    def _is_wanted(self, source: TopicPartition) -> bool:
        return self._wanted is None or source in self._wanted

    def _position(self, source: ClientPartition) -> int:
        return self._positions.get(TopicPartition(*source), 0)

    def _collect(self, consumer: KafkaConsumer, fetched: Mapping[ClientPartition, list[Columns]]) -> list[Records]:
        """Return what came as `Records`, and empty ones for partitions whose position alone has moved."""
        now = self._clock()
        records = []
        for source, expected in list(self._positions.items()):
            client_source = _client(source)
            following = guards.position(consumer, client_source)
            chunks = fetched.get(client_source)
            if following is None or (chunks is None and following <= expected):
                continue
            columns = _joined(chunks or [])
            if early := columns.before(expected):  # from before a seek: never seen, and never to be delivered
                columns = columns.split(early)[1]
            self._positions[source] = following
            self._progress.moved(source, now)
            records.append(
                Records(
                    source,
                    columns.offsets,
                    columns.timestamps,
                    columns.keys,
                    columns.values,
                    following,
                    columns.content_types,
                )
            )
        return records

    def _offsets(self, ask: Any, sources: Iterable[TopicPartition], doing: str) -> dict[TopicPartition, int]:
        wanted = [_client(source) for source in sources]
        if not wanted:
            return {}
        with translated(doing):
            try:
                answer = ask(wanted, timeout_ms=_ANSWER_MS)
            except KeyError as error:  # the client's way to say that a partition had no answer
                raise Transient(f"{doing}: no answer for {error.args[0]}") from error
        return {TopicPartition(*source): int(offset) for source, offset in answer.items()}

    def _lost(self, wanted: Mapping[ClientPartition, int]) -> OffsetsLost:
        """Return the error for positions that point to no record: why, how many are gone, and what to do."""
        source, offset = min((TopicPartition(*source), offset) for source, offset in wanted.items())
        where = f"{source.topic}, partition {source.partition}: offset {offset}"
        try:
            identity = self.topic_ids()[source.topic]
            first, end = self.beginning_offsets([source])[source], self.end_offsets([source])[source]
        except Transient as error:
            return OffsetsLost(f"{where} is not in the log ({error})")
        known = self._ids.get(source.topic)
        if known and identity and known != identity:
            return OffsetsLost(_recreated(source.topic, known, identity))
        self.lost_offsets = {source: max(0, first - offset)}
        if offset < first:
            return OffsetsLost(
                f"{where} is older than the log, which holds {first} to {end}: {first - offset} offsets were removed "
                "unread; begin again with `gradstream state reset --yes` and give the topic a longer retention.ms"
            )
        if offset <= end:
            return OffsetsLost(
                f"{where} does not belong to the log any more: the broker lost records and has written others since "
                "(unclean leader election); begin again with `gradstream state reset --yes`"
            )
        return OffsetsLost(
            f"{where} is beyond the log, which holds {first} to {end}: the topic was cut or created again; "
            "begin again with `gradstream state reset --yes`"
        )

    def _find_problem(self, consumer: KafkaConsumer) -> str | None:
        if not guards.is_connected(consumer):
            return f"Kafka at {self._config.bootstrap_servers} does not answer"
        missing = [topic for topic in self._topics if not guards.is_known(consumer, topic)]
        if not missing:
            self._unknown_since = None
            return None
        now = self._clock()
        self._unknown_since = now if self._unknown_since is None else self._unknown_since
        return _missing(missing[0]) if now - self._unknown_since >= _UNKNOWN_S else _asking(missing[0])

    def _on_acknowledged(self, _: object, answer: object) -> None:
        if isinstance(answer, errors.KafkaError):
            self.refused_acknowledgements += 1
            self._log.info("kafka_acknowledgement_refused", why=type(answer).__name__)

    def rebalanced(self, consumer: KafkaConsumer, assigned: frozenset[TopicPartition]) -> None:
        """Take note of a new assignment (in the client's thread): pause all of it and say so.

        A partition without a position gets a placeholder, or the client would ask for the committed offset, and
        raise where there is none. It is paused, so nothing is fetched from there.
        """
        for source in assigned:
            client_source = _client(source)
            consumer.pause(client_source)
            if guards.position(consumer, client_source) is None:
                consumer.seek(client_source, self._positions.get(source, 0))
        self.rebalances += 1
        self._owned = assigned
        self._unsettled = self._changed = True


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Passes rebalances on. `revoked` does nothing: until the new assignment is known, nobody else has the old one."""

    def __init__(self, source: KafkaSource, consumer: KafkaConsumer) -> None:
        self._source = source
        self._consumer = consumer

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._source.rebalanced(self._consumer, frozenset(TopicPartition(*source) for source in assigned))

    def on_partitions_lost(self, lost: Any) -> None:  # noqa: ARG002
        self._source.rebalanced(self._consumer, frozenset())


def _client(source: TopicPartition) -> ClientPartition:
    return ClientPartition(source.topic, source.partition)


def _joined(chunks: list[Columns]) -> Columns:
    if len(chunks) == 1:
        return chunks[0]
    joined = nothing()
    for chunk in chunks:
        joined.extend(chunk)
    return joined


def _close(consumer: KafkaConsumer) -> None:
    try:
        consumer.close(autocommit=False, timeout_ms=_CLOSE_MS)
    except (errors.KafkaError, OSError, RuntimeError) as error:
        structlog.get_logger(__name__).info("kafka_close", why=type(error).__name__)


def _missing(topic: str) -> str:
    return f"topic {topic} does not exist: create it with `gradstream init`"


def _asking(topic: str) -> str:
    return f"asking Kafka for topic {topic}"


def _recreated(topic: str, before: str, after: str) -> str:
    return (
        f"topic {topic} was deleted and created again (id {before}, now {after}): the positions belong to the old one; "
        "begin again with `gradstream state reset --yes`"
    )
