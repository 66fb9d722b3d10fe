"""What has to be true before a worker joins its group: topics, server, and a state to go on from."""

from typing import Literal

from worker.cli.connect import empty_checkpoint, log_entry
from worker.errors import ConfigError, StateMissing
from worker.observe.logs import get_logger
from worker.ownership import RESET
from worker.settings import Settings
from worker.state.redis_store import RedisStore
from worker.stream.join import JoinRules
from worker.stream.kafka.topics import TopicAdmin
from worker.turn import check_spec

Role = Literal["features", "labels", "examples"]


def topics_of(settings: Settings) -> dict[Role, str]:
    """Return the event topics by what they hold: features and labels, or examples."""
    stream = settings.stream
    if stream.mode == "joined":
        return {"features": stream.features_topic, "labels": stream.labels_topic}
    return {"examples": stream.examples_topic}


def join_rules(settings: Settings) -> JoinRules:
    join = settings.join
    assert join.on_expiry != "fake_negative_weighted"  # refused while loading
    return JoinRules(
        round(join.window_s * 1000), round(join.lateness_s * 1000), round(join.disorder_s * 1000),
        join.remember, join.max_pending, join.on_expiry,
    )  # fmt: skip


def check_topics(admin: TopicAdmin, settings: Settings) -> None:
    """Raise `ConfigError` for topics with which it can not work."""
    names = list(topics_of(settings).values())
    wanted = [*names, settings.stream.dead_letters_topic]
    if settings.stream.metrics_topic:
        wanted.append(settings.stream.metrics_topic)
    found = admin.describe(wanted)
    if missing := [name for name in wanted if name not in found]:
        raise ConfigError(f"topics {', '.join(missing)} do not exist: create them with `gradstream init`")
    for name in names:
        if "compact" in found[name].cleanup_policy:
            raise ConfigError(
                f"topic {name} has cleanup.policy={found[name].cleanup_policy}: compaction removes events that were "
                f"not learned yet; set it to delete"
            )
    counts = {name: found[name].partitions for name in names}
    if len(set(counts.values())) > 1:
        raise ConfigError(
            f"features and labels must have the same number of partitions, or an event never meets its label: "
            f"{', '.join(f'{name} has {n}' for name, n in counts.items())}"
        )


def ensure_state(store: RedisStore, admin: TopicAdmin, settings: Settings, worker: str) -> None:
    """Create the empty state where nothing was ever learned; raise `StateMissing` where something was."""
    try:
        check_spec(settings.spec(), store.load())
    except StateMissing:
        group = settings.stream.group_id
        if admin.has_committed_offsets(group, list(topics_of(settings).values())):
            raise StateMissing(
                f"model {settings.model.name} has no state, but group {group} has committed offsets in Kafka: a state "
                f"was lost; bring Redis back from its backup, or begin again with {RESET}"
            ) from None
        if _create(store, settings, worker):
            get_logger().info("empty state created", model=settings.model.name)


def _create(store: RedisStore, settings: Settings, worker: str) -> bool:
    empty = empty_checkpoint(settings)
    return store.create(empty, log_entry("init", settings, worker, empty.kernel))
