"""The worker, put together from its parts. The only place that knows them all."""

import os
import socket
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from importlib.metadata import version

from worker.cli.connect import kafka_config, redis_store
from worker.cli.topics import event_topics
from worker.drain import Drain
from worker.errors import Unreachable
from worker.inspection import Inspection
from worker.learn.kernel import choose_kernel
from worker.learn.learner import Learner
from worker.lineage.recipe_here import recipe_here
from worker.loop import Loop, Pace
from worker.observe.endpoint import Endpoint, Pulse
from worker.observe.logs import configure_logs, get_logger
from worker.observe.prometheus import Identity, Meters
from worker.observe.worker import WorkerObserver, announcer
from worker.ownership import Ownership
from worker.patience import Patience
from worker.settings import Settings
from worker.start import ensure_state, ensure_topics, join_rules, sources
from worker.state.redis_store import RedisStore
from worker.stop import Stop
from worker.stream.events import Decoder
from worker.stream.intake import Intake
from worker.stream.kafka.columns import missing_codecs
from worker.stream.kafka.connection import KafkaConfig
from worker.stream.kafka.letters import KafkaDeadLetters
from worker.stream.kafka.metrics import KafkaMetricsTopic
from worker.stream.kafka.partitioning import PartitioningCheck
from worker.stream.kafka.source import KafkaSource
from worker.stream.kafka.topics import TopicAdmin
from worker.stream.rows import RowFormat
from worker.turn import Stamp, Turns

PATIENCE_S = 60.0  # how long Kafka or Redis may stay away before the worker gives up


@dataclass(frozen=True, slots=True)
class Person:
    """Who this worker is, in logs, in the commit log and in `status`."""

    worker: str
    host: str
    pid: int

    @classmethod
    def here(cls, settings: Settings) -> "Person":
        host, pid = socket.gethostname(), os.getpid()
        return cls(settings.kafka.group_instance_id or f"{host}-{pid}", host, pid)


def run_worker(settings: Settings, *, drain: bool = False, init: bool = False) -> None:
    """Train until stopped or drained. Raises `GradstreamError`; returns when the last commit is done."""
    person, stop = Person.here(settings), Stop()
    configure_logs(
        settings.observe.log_level, settings.observe.log_format, model=settings.model.name, worker=person.worker
    )
    with ExitStack() as resources:
        resources.enter_context(stop.installed())
        try:
            loop, drained = _loop(settings, person, stop, resources, drain=drain, init=init)
        except Unreachable as waited_for:
            if not stop():
                raise
            get_logger().info("ended before it began", waited_for=str(waited_for))
            return
        loop.run(stop, drained)
        done = loop.turns.checkpoint
        get_logger().info(
            "ended", state_version=done.version.number, examples=done.learner.examples, drained=drain and not stop()
        )


def _loop(
    settings: Settings, person: Person, stop: Stop, resources: ExitStack, *, drain: bool, init: bool
) -> tuple[Loop, Drain | None]:
    """Connect, check both servers, see to the state, and put the loop together. Waits while something is away."""
    learn = _learner(settings)
    store, kafka = redis_store(settings), kafka_config(settings)
    observer = _observer(settings, learn.kernel, store, kafka, person, resources)
    early = Patience(PATIENCE_S, observer.waiting, stop)  # there is no commit yet that a stop would wait for
    patience = Patience(PATIENCE_S, observer.waiting, stop.overdue)
    admin = resources.enter_context(closing(early(lambda: TopicAdmin(kafka))))
    _prepare(settings, store, admin, observer, early)
    if init:
        early(lambda: ensure_state(store, admin, settings, person.worker))
    every = early(lambda: sources(admin, settings))
    source = resources.enter_context(closing(early(lambda: KafkaSource(kafka, event_topics(settings)))))
    letters = resources.enter_context(closing(KafkaDeadLetters(kafka, settings.stream.dead_letters_topic)))
    ownership = Ownership(source, store, _intake(settings), event_topics(settings), settings.stream.start, observer)
    queue = store.turn_queue(settings.commit.turn_wait_ms / 1000)
    stamp = Stamp(person.worker, learn.kernel, settings.digest(), recipe_here(settings, learn.kernel))
    turns = Turns(ownership, learn, settings.spec(), letters, patience, queue, stamp)
    decoders = _decoders(settings)
    inspection = Inspection(PartitioningCheck(), decoders, source.partition_counts, observer)
    loop = Loop(source, decoders, turns, inspection, _pace(settings))
    return loop, Drain(admin, store, every, early) if drain else None


def _observer(
    settings: Settings, kernel: str, store: RedisStore, kafka: KafkaConfig, person: Person, resources: ExitStack
) -> WorkerObserver:
    """Serve metrics and health from here on: whatever the worker waits for next can be looked at."""
    observe, stream = settings.observe, settings.stream
    identity = Identity(version("gradstream"), settings.model.name, settings.model.task, kernel)
    meters, pulse = Meters(identity, event_topics(settings)), Pulse()
    endpoint = resources.enter_context(closing(Endpoint(observe.http_port, meters.text, pulse, observe.http_host)))
    get_logger().info("serving metrics", url=endpoint.url)
    metrics = None
    if stream.metrics_topic:
        metrics = resources.enter_context(closing(KafkaMetricsTopic(kafka, stream.metrics_topic)))
    facts = {"model": settings.model.name, **asdict(person), "http": endpoint.url, "kernel": kernel}
    announce, every_s = announcer(store, person.worker), observe.metrics_every_ms / 1000
    roles = {topic: role for role, topic in stream.event_topics.items()}
    observer = WorkerObserver(meters, pulse, metrics, announce, facts, settings.spec().task, roles, every_s)
    return resources.enter_context(closing(observer))


def _prepare(
    settings: Settings, store: RedisStore, admin: TopicAdmin, observer: WorkerObserver, patience: Patience
) -> None:
    """Check both servers before the group is joined."""
    patience(store.version)  # waits for a server that is starting or loading
    notes = [*patience(store.check_server), *patience(lambda: ensure_topics(admin, settings))]
    if codecs := missing_codecs():
        notes.append(f"batches compressed with {', '.join(codecs)} can not be read here: install the codec")
    for note in notes:
        observer.note(note)


def _intake(settings: Settings) -> Intake:
    joined = settings.stream.mode == "joined"
    return Intake(joined, join_rules(settings), RowFormat(settings.spec()), settings.train.batch_size)


def _decoders(settings: Settings) -> dict[str, Decoder]:
    spec, stream = settings.spec(), settings.stream
    return {
        topic: Decoder(
            spec,
            role,
            max_event_bytes=stream.max_event_bytes,
            max_future_s=settings.join.max_future_s,
            unknown_features=stream.unknown_features,
        )
        for role, topic in settings.stream.event_topics.items()
    }


def _learner(settings: Settings) -> Learner:
    spec = settings.spec()
    return Learner(spec, settings.hyper(), choose_kernel(settings.train.kernel, spec))


def _pace(settings: Settings) -> Pace:
    commit = settings.commit
    return Pace(
        commit.every_s,
        commit.every_examples,
        settings.stream.max_idle_ms / 1000,
        settings.join.idle_labels == "advance",
    )
