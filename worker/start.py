"""What has to be true before a worker joins its group: topics, server, and a state to go on from."""

from worker.cli.connect import empty_checkpoint, log_entry
from worker.cli.topics import event_topics
from worker.errors import StateMissing, Transient
from worker.observe.logs import get_logger
from worker.ownership import RESET
from worker.settings import Settings
from worker.state.redis_store import RedisStore
from worker.stream.join import JoinRules
from worker.stream.kafka.topics import TopicAdmin, check_topics
from worker.stream.records import TopicPartition
from worker.turn import check_spec


def join_rules(settings: Settings) -> JoinRules:
    join = settings.join
    assert join.on_expiry != "fake_negative_weighted"  # refused while loading
    return JoinRules(
        round(join.window_s * 1000), round(join.lateness_s * 1000), round(join.disorder_s * 1000),
        join.remember, join.max_pending, join.on_expiry,
    )  # fmt: skip


def sources(admin: TopicAdmin, settings: Settings) -> list[TopicPartition]:
    """Return every partition of the event topics."""
    found = admin.describe(event_topics(settings))
    return [TopicPartition(name, n) for name, info in found.items() for n in range(info.partitions)]


def ensure_topics(admin: TopicAdmin, settings: Settings) -> list[str]:
    """Return notes about topics. Raises `Transient` for a missing one, `ConfigError` for one that can not serve."""
    stream, events = settings.stream, event_topics(settings)
    found = admin.describe([*events, stream.dead_letters_topic, *filter(None, [stream.metrics_topic])])
    check_topics(found, events)
    if stream.dead_letters_topic not in found:
        raise Transient(f"topic {stream.dead_letters_topic} does not exist: create it with `gradstream init`")
    if stream.metrics_topic and stream.metrics_topic not in found:
        return [
            f"topic {stream.metrics_topic} does not exist: metrics messages are dropped; `gradstream init` makes it"
        ]
    return []


def ensure_state(store: RedisStore, admin: TopicAdmin, settings: Settings, worker: str) -> None:
    """Create the empty state where nothing was ever learned; raise `StateMissing` where something was."""
    try:
        check_spec(settings.spec(), store.load())
    except StateMissing:
        group = settings.stream.group_id
        if admin.has_committed_offsets(group, event_topics(settings)):
            raise StateMissing(
                f"model {settings.model.name} has no state, but group {group} has committed offsets in Kafka: a state "
                f"was lost; bring Redis back from its backup, or begin again with {RESET}"
            ) from None
        if _create(store, settings, worker):
            get_logger().info("empty state created", model=settings.model.name)


def _create(store: RedisStore, settings: Settings, worker: str) -> bool:
    empty = empty_checkpoint(settings)
    return store.create(empty, log_entry("init", settings, worker, empty.kernel))
