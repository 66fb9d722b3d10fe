"""The worker, put together from its parts. The only place that knows them all."""

import os
import socket
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.metadata import version

from worker.cli.connect import kafka_config, redis_store
from worker.drain import Drain
from worker.learn.learner import Learner
from worker.loop import Loop, Pace
from worker.observe.endpoint import Endpoint, Pulse
from worker.observe.logs import configure_logs, get_logger
from worker.observe.prometheus import Identity, Meters
from worker.observe.worker import WorkerObserver, announcer
from worker.ownership import Ownership
from worker.patience import Patience
from worker.settings import Settings
from worker.start import ensure_state, ensure_topics, join_rules, sources, topics_of
from worker.state.redis_store import RedisStore
from worker.stop import Stop
from worker.stream.events import Decoder
from worker.stream.intake import Intake
from worker.stream.kafka.columns import missing_codecs
from worker.stream.kafka.connection import KafkaConfig
from worker.stream.kafka.letters import KafkaDeadLetters
from worker.stream.kafka.metrics import KafkaMetricsTopic
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
    person, stop, pulse = Person.here(settings), Stop(), Pulse()
    observe = settings.observe
    configure_logs(observe.log_level, observe.log_format, model=settings.model.name, worker=person.worker)
    meters = Meters(
        Identity(version("gradstream"), settings.model.name, settings.model.task, Learner.kernel),
        list(topics_of(settings).values()),
    )
    with ExitStack() as resources:
        resources.enter_context(stop.installed())
        endpoint = resources.enter_context(closing(Endpoint(observe.http_port, meters.text, pulse, observe.http_host)))
        get_logger().info("serving metrics", url=endpoint.url)
        store, kafka = redis_store(settings), kafka_config(settings)
        metrics = None
        if settings.stream.metrics_topic:
            metrics = resources.enter_context(closing(KafkaMetricsTopic(kafka, settings.stream.metrics_topic)))
        identity = {
            "model": settings.model.name, "worker": person.worker, "host": person.host, "pid": person.pid,
            "http": endpoint.url,
        }  # fmt: skip
        observer = WorkerObserver(
            meters, pulse, metrics, announcer(store, person.worker), identity, settings.spec().task,
            observe.metrics_every_ms / 1000,
        )  # fmt: skip
        patience = Patience(PATIENCE_S, observer.waiting, stop.overdue)
        with closing(TopicAdmin(kafka)) as admin:
            _prepare(settings, store, admin, observer, patience, person.worker if init else None)
            loop, turns = _assemble(settings, store, kafka, observer, patience, person, resources)
            drained = Drain(admin, store, patience(lambda: sources(admin, settings)), patience) if drain else None
            loop.run(stop, drained)
        get_logger().info(
            "ended", state_version=turns.checkpoint.version.number, examples=turns.checkpoint.learner.examples,
            drained=drain and not stop(),
        )  # fmt: skip


def _prepare(
    settings: Settings, store: RedisStore, admin: TopicAdmin, observer: WorkerObserver, patience: Patience,
    creator: str | None,
) -> None:  # fmt: skip
    """Check both servers before the group is joined, and the state's existence (`creator`: make it if need be)."""
    for note in patience(lambda: ensure_topics(admin, settings)):
        observer.note(note)
    store.wait_until_ready(PATIENCE_S)
    for warning in patience(store.check_server):
        observer.note(warning)
    if codecs := missing_codecs():
        observer.note(f"batches compressed with {', '.join(codecs)} can not be read here: install the codec")
    if creator is not None:
        patience(lambda: ensure_state(store, admin, settings, creator))


def _assemble(
    settings: Settings, store: RedisStore, kafka: KafkaConfig, observer: WorkerObserver, patience: Patience,
    person: Person, resources: ExitStack,
) -> tuple[Loop, Turns]:  # fmt: skip
    spec, stream, names = settings.spec(), settings.stream, topics_of(settings)
    decoders = {
        topic: Decoder(
            spec,
            role,
            max_event_bytes=stream.max_event_bytes,
            max_future_s=settings.join.max_future_s,
            unknown_features=stream.unknown_features,
        )
        for role, topic in names.items()
    }
    dead_letters = resources.enter_context(closing(KafkaDeadLetters(kafka, stream.dead_letters_topic)))
    intake = Intake(stream.mode == "joined", join_rules(settings), RowFormat(spec), settings.train.batch_size)
    source = resources.enter_context(closing(KafkaSource(kafka, tuple(names.values()))))
    ownership = Ownership(source, store, intake, tuple(names.values()), stream.start, observer)
    stamp = Stamp(person.worker, Learner.kernel, settings.digest())
    turns = Turns(
        store, Learner(spec, settings.hyper()), spec, intake, ownership, dead_letters, patience, observer, stamp
    )
    pace = Pace(
        settings.commit.every_s, settings.commit.every_examples, stream.max_idle_ms / 1000,
        settings.join.idle_labels == "advance",
    )  # fmt: skip
    return Loop(source, dead_letters, decoders, intake, ownership, turns, observer, pace), turns
