"""Every private attribute of the client (3.0.x) that we touch, each with the failure that made it necessary.

A new release of the client is read against this file before the pin in pyproject.toml moves.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as ClientPartition
from kafka.net.inet import KafkaNetSocket
from kafka.structs import MemberState

from worker.stream.kafka.columns import PartitionColumns


def install(consumer: KafkaConsumer, bytes_per_record: int) -> None:
    """Prepare a consumer that has not subscribed yet.

    Records come as columns (the client's own reader costs 7.5 µs a record, ours 2). And metadata requests no longer
    create topics: the client has a setting for that but loses it on the way, so a worker started before `init`
    would create its topics with one partition each.
    """
    never_create_topics(consumer)
    keep_joins(consumer)
    fetcher = consumer._fetcher  # noqa: SLF001
    fetcher.PartitionRecords = _reader(bytes_per_record)
    look = fetcher.fetched_records

    def fetched_records(*arguments: Any, **named: Any) -> Any:
        line_up(fetcher)
        return look(*arguments, **named)

    fetcher.fetched_records = fetched_records


def _reader(bytes_per_record: int) -> Callable[..., PartitionColumns]:
    def read(fetch_offset: int, topic_partition: Any, records: Any, **arguments: Any) -> PartitionColumns:
        return PartitionColumns(
            fetch_offset,
            topic_partition,
            records._buffer,  # noqa: SLF001
            arguments["aborted_transactions"] or (),
            arguments["on_drain"],
            bytes_per_record,
        )

    return read


def close_failed_sockets() -> None:
    """Make the client close a socket whose connection failed. It left that to the garbage collector.

    While a broker is away there are several of them a second, each with a `ResourceWarning`.
    """
    if getattr(KafkaNetSocket.sock_connect, "closes", False):
        return
    connect = KafkaNetSocket.sock_connect

    @wraps(connect)
    async def sock_connect(self: Any, net: Any, sock: Any, *arguments: Any, **named: Any) -> Any:
        connected = None
        try:
            connected = await connect(self, net, sock, *arguments, **named)
            return connected
        finally:
            if connected is None:
                sock.close()

    sock_connect.closes = True  # type: ignore[attr-defined]
    KafkaNetSocket.sock_connect = sock_connect


def never_create_topics(client: KafkaProducer | KafkaConsumer) -> None:
    """The same for other clients: a missing dead-letter topic must be said, not made with the broker's defaults."""
    cluster = client._metadata if isinstance(client, KafkaProducer) else client._cluster  # noqa: SLF001
    cluster.config["allow_auto_create_topics"] = False


def abandon(producer: KafkaProducer) -> None:
    """End a producer whose `close` gave up on its flush: it keeps its thread, and complains again when collected."""
    producer._sender.force_close()  # noqa: SLF001
    producer._closed = True  # noqa: SLF001


def line_up(fetcher: Any) -> None:
    """Let data of resumed partitions come back at once. Runs each time the client looks for fetched records.

    Data of a paused partition is parked, and comes back only while the fetcher's reader in line is None:
    - a drained reader is falsy but not None, so a partition that was paused and resumed starved for ever; neither
      seek nor a rebalance healed it;
    - a reader of a partition that is paused now is parked too late for the others, which costs a sleep of 100 ms
      each time the caller changes the side it reads.
    """
    reader = fetcher._next_partition_records  # noqa: SLF001
    if reader is None:
        return
    if not reader:
        fetcher._next_partition_records = None  # noqa: SLF001
    elif fetcher._subscriptions.is_paused(reader.topic_partition):  # noqa: SLF001
        fetcher._paused_partition_records[reader.topic_partition] = reader  # noqa: SLF001
        fetcher._next_partition_records = None  # noqa: SLF001


class _Join:
    """A join under way, or one that succeeded and waits to be taken up: only a failure is over."""

    def __init__(self, future: Any) -> None:
        self._future = future
        self.succeeded = future.succeeded
        self.add_callback = future.add_callback
        self.add_errback = future.add_errback

    def __await__(self) -> Any:
        return self._future.__await__()

    @property
    def is_done(self) -> bool:
        return bool(self._future.failed())


def keep_joins(consumer: KafkaConsumer) -> None:
    """Let a join that is completed between two polls be taken up by the next one.

    The client looks whether its join is done before it awaits it, takes a finished one for used, and joins anew, which
    makes every other member join as well: two members that answer each other between each other's polls went on like
    that for ever, and one of them owned nothing.
    """
    coordinator = consumer._coordinator  # noqa: SLF001
    kept: dict[str, _Join | None] = {"join": None}

    def hold(_: object, future: Any) -> None:
        kept["join"] = None if future is None else _Join(future)

    held = property(lambda _: kept["join"], hold)
    coordinator.__class__ = type("Coordinator", (type(coordinator),), {"_join_task": held})


def join_again(consumer: KafkaConsumer) -> bool:
    """Await a join that nobody awaits; call before each poll. Return whether there was one.

    A join that a change of metadata caused may outlive a short poll. Afterwards `need_rejoin()` is False, heartbeats
    are off, poll returns nothing, nothing is raised, and the worker stays outside its group for ever.
    """
    coordinator = consumer._coordinator  # noqa: SLF001
    if not coordinator.rejoining or coordinator.need_rejoin():
        return False
    coordinator.request_rejoin()
    return True


def position(consumer: KafkaConsumer, source: ClientPartition) -> int | None:
    """Return the next offset, or None where it is not assigned.

    The public `position()` may ask brokers and block for committed offsets, which are never positions here.
    """
    state = consumer._subscription.assignment.get(source)  # noqa: SLF001
    return None if state is None or state.position is None else int(state.position.offset)


def wait_at_broker(consumer: KafkaConsumer, wait_ms: int) -> None:
    """Set how long the next fetches may wait at the broker for something to come.

    Short while records flow: a fetch that waits for one partition holds up the others that are resumed meanwhile.
    Long while nothing does: fifty empty fetches a second are a twentieth of a core.
    """
    consumer._fetcher.config["fetch_max_wait_ms"] = wait_ms  # noqa: SLF001


def is_member(consumer: KafkaConsumer) -> bool:
    """Say whether the group knows this consumer (a rebalance in progress included)."""
    return bool(consumer._coordinator.state is not MemberState.UNJOINED)  # noqa: SLF001


def is_stable(consumer: KafkaConsumer) -> bool:
    """Say whether the consumer is in its group and no rebalance is under way."""
    return bool(consumer._coordinator.state is MemberState.STABLE)  # noqa: SLF001


def confirmed_since(consumer: KafkaConsumer, moment: float) -> bool:
    """Say whether the group has answered a heartbeat sent, or a join made, after `moment` (monotonic seconds).

    An answer that was on its way before does not count: a process that was stopped reads it when it wakes up, long
    after the group has given its partitions away.
    """
    heartbeat = consumer._coordinator.heartbeat  # noqa: SLF001
    return bool(heartbeat.last_reset > moment or heartbeat.last_receive >= heartbeat.last_send > moment)


def is_fenced(consumer: KafkaConsumer) -> bool:
    """Say whether another member has taken this one's static id.

    The client then stops its heartbeats and says nothing: it goes on reading what the other one reads as well.
    For a moment at the beginning of a join it looks the same, to the last attribute but one.
    """
    coordinator = consumer._coordinator  # noqa: SLF001
    off = is_stable(consumer) and not coordinator._heartbeat_enabled  # noqa: SLF001
    return bool(off and coordinator.group_instance_id and not coordinator.rejoining)


def unheard_s(consumer: KafkaConsumer, now: float) -> float:
    """Return for how long the group has answered nothing. `now`: monotonic seconds.

    The client's heartbeats are a task of their own. Where that dies the group throws the member out, and the client
    goes on as if it were in it: state stable, fetches answered, nothing raised, for ever.
    """
    heartbeat = consumer._coordinator.heartbeat  # noqa: SLF001
    return float(now - max(heartbeat.last_reset, heartbeat.last_receive))


def is_connected(consumer: KafkaConsumer) -> bool:
    """Say whether any connection to a broker stands."""
    connections = list(consumer._manager._conns.values())  # noqa: SLF001
    return any(connection.connected for connection in connections)


def known_topic_id(consumer: KafkaConsumer, topic: str) -> str:
    """Return the id of a topic as last heard, "" where the topic is not there or the broker gives no ids."""
    found = consumer._cluster.topic_id(topic)  # noqa: SLF001
    return "" if found is None or not found.int else str(found)


def is_known(consumer: KafkaConsumer, topic: str) -> bool:
    """Say whether the last metadata held the topic. The public `partitions_for_topic` may block without limit."""
    return consumer._cluster.partitions_for_topic(topic) is not None  # noqa: SLF001


def partition_count(consumer: KafkaConsumer, topic: str) -> int:
    """Return the number of partitions as last heard, 0 where the topic is not known. Looked at in every round."""
    return len(consumer._cluster._partitions.get(topic, ()))  # noqa: SLF001


def refresh_metadata(consumer: KafkaConsumer, timeout_s: float) -> None:
    """Ask for metadata now and wait for it. Raises the client's errors (also when a topic is missing)."""
    manager = consumer._manager  # noqa: SLF001
    manager.run(manager.wait_for, consumer._cluster.request_update(), timeout_s * 1000)  # noqa: SLF001
