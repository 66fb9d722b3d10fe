"""`gradstream status`: what has been learned, how well, and who is at it. Reads; never changes anything."""

from typing import TYPE_CHECKING, Any

from worker.cli.options import Config, Debug, Json, Set, settings

if TYPE_CHECKING:
    from worker.settings import Settings
    from worker.state.store import Checkpoint, Ledger, PartitionState

    Lag = dict[str, int]


def status(config: Config = None, sets: Set = None, as_json: Json = False, _debug: Debug = False) -> None:
    """Show what has been learned, how well, and by whom.

    State version, examples, ledger, evaluation, health, workers, turns and lag. Needs no running worker, and no Kafka.

    Example:
      gradstream status
      gradstream status --json | jq .ledger
    """
    from worker.cli.connect import ready_store
    from worker.cli.output import print_json

    loaded = settings(config, sets)
    store = ready_store(loaded)
    checkpoint = store.load()
    partitions = [stored.state for stored in store.partitions()]
    document = status_document(loaded.model.name, checkpoint, partitions, store.workers(), _lag(loaded, partitions))
    if as_json:
        print_json(document)
        return
    from worker.cli.status_view import print_status

    difference = loaded.spec().difference(dict(checkpoint.spec))
    print_status(document, _clocks(partitions), difference)


def status_document(
    model: str,
    checkpoint: "Checkpoint",
    partitions: "list[PartitionState]",
    workers: list[dict[str, object]],
    lag: "Lag | None",
) -> dict[str, Any]:
    """Return what `status --json` prints."""
    import msgspec

    from worker.learn.evaluation import summary
    from worker.learn.health import health
    from worker.observe.last_turns import together
    from worker.spec import read_spec

    learned = checkpoint.learner
    evaluation = summary(learned, read_spec(checkpoint.spec).task)
    return {
        "model": model,
        "state_version": checkpoint.version.number,
        "examples": learned.examples,
        "steps": learned.steps,
        "ledger": msgspec.to_builtins(_total(partitions)),
        "evaluation": evaluation,
        "health": health(
            evaluation,
            skipped=int(learned.arrays["counters.skipped"][0]),
            last_skipped=int(learned.arrays["counters.last_skipped"][0]),
        ),
        "workers": workers,
        "turns": together(workers),
        "lag": lag,
    }


def _total(partitions: "list[PartitionState]") -> "Ledger":
    from worker.state.store import Ledger

    return sum((partition.ledger for partition in partitions), Ledger())


def _clocks(partitions: "list[PartitionState]") -> dict[str, int]:
    """Return the latest event time of each topic, in milliseconds; topics without any are left out."""
    latest: dict[str, int] = {}
    for partition in partitions:
        for side in partition.sides:
            if side.clock >= 0:
                latest[side.topic] = max(side.clock, latest.get(side.topic, side.clock))
    return latest


def _lag(loaded: "Settings", partitions: "list[PartitionState]") -> "Lag | None":
    """Return records that are there and not committed, by `topic:partition`; None without Kafka."""
    from worker.cli.connect import quick_kafka_config
    from worker.cli.topics import event_topics
    from worker.errors import ConfigError, Transient
    from worker.stream.kafka.topics import TopicAdmin
    from worker.stream.records import TopicPartition

    try:
        with TopicAdmin(quick_kafka_config(loaded)) as admin:
            found = admin.describe(event_topics(loaded))
            sources = [
                TopicPartition(name, n) for name, topic in sorted(found.items()) for n in range(topic.partitions)
            ]
            begin, end = admin.beginning_offsets(sources), admin.end_offsets(sources)
    except (Transient, ConfigError):
        return None  # what was learned can be read without Kafka, so it is shown without Kafka
    read = {TopicPartition(side.topic, p.partition): side.next_offset for p in partitions for side in p.sides}
    return {
        f"{source.topic}:{source.partition}": max(0, end[source] - read.get(source, begin[source]))
        for source in sources
    }
