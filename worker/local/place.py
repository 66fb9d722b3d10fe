"""Where a demo plays: servers of its own, or the container stack. Starts and finds them; replays and draws nothing."""

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from worker.cli.connect import quick_kafka_config
from worker.cli.topics import event_topics, other_topics
from worker.errors import ConfigError, Transient, Unreachable
from worker.local import figures
from worker.local.broker import EmbeddedBroker
from worker.local.child import Child, free_port
from worker.local.figures import Figures
from worker.local.flights_settings import PARTITIONS, flights_settings
from worker.local.stack import StackReader
from worker.local.store import EmbeddedStore
from worker.settings import Settings, load_settings
from worker.stream.kafka.topics import TopicAdmin, check_topics

# With the embedded broker the first join of a group takes half the session timeout.
_SESSION_MS = 6_000
_MARK_EVERY = 500
_WORKER_GRACE_S = 12.0  # a worker ends within 10 s of SIGTERM, its last commit done


@dataclass(frozen=True, slots=True)
class Place:
    """`read` returns the figures of now, None where nobody answers. `mark_every`: see `Plan`.

    `worker` is the one that the demo started, None in the stack.
    """

    settings: Settings
    read: Callable[[], Figures | None]
    shown: Mapping[str, str]
    mark_every: int
    worker: Child | None


def own_place(stage: ExitStack) -> Place:
    """Start broker, store and worker with their data in a temporary folder; they end with `stage`."""
    folder = Path(stage.enter_context(tempfile.TemporaryDirectory(prefix="gradstream-demo-")))
    store = stage.enter_context(EmbeddedStore(_made(folder / "store")))
    broker = stage.enter_context(EmbeddedBroker(_made(folder / "broker")))
    port = free_port()
    config = folder / "gradstream.toml"
    config.write_text(
        flights_settings(
            bootstrap_servers=broker.bootstrap_servers,
            redis_url=store.url,
            http_port=port,
            session_timeout_ms=_SESSION_MS,
        )
    )
    settings = _load(config)
    with closing(TopicAdmin(quick_kafka_config(settings))) as admin:
        admin.create(event_topics(settings), PARTITIONS, 1)
        admin.create(other_topics(settings), 1, 1)
    command = [sys.executable, "-m", "worker", "worker", "--init", "--config", str(config)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRADSTREAM_")}
    worker = stage.enter_context(Child(command, folder / "worker.log", grace_s=_WORKER_GRACE_S, env=environment))
    shown = {
        "metrics": f"http://127.0.0.1:{port}/metrics",
        "Kafka": broker.bootstrap_servers,
        "Redis": store.url,
        "worker's log": str(worker.log),
        "try": f"gradstream status --config {config}",
    }
    return Place(settings, partial(figures.read, shown["metrics"]), shown, mark_every=_MARK_EVERY, worker=worker)


def stack_place(stage: ExitStack, own: Path | None = None) -> Place:
    """Find the container stack on this machine, or what the settings file `own` names; it goes on when the demo ends.

    Raises `Unreachable` when it does not answer.
    """
    folder = Path(stage.enter_context(tempfile.TemporaryDirectory(prefix="gradstream-demo-")))
    kafka = f"localhost:{os.environ.get('STACK_KAFKA_PORT', '29092')}"
    redis = f"redis://localhost:{os.environ.get('STACK_REDIS_PORT', '16379')}/0"
    prometheus = f"http://localhost:{os.environ.get('STACK_PROMETHEUS_PORT', '9090')}"
    config = own or folder / "gradstream.toml"
    if own is None:
        config.write_text(flights_settings(bootstrap_servers=kafka, redis_url=redis))
    settings = _load(config) if own is None else load_settings(own, {})
    kafka = settings.kafka.bootstrap_servers
    try:
        with closing(TopicAdmin(quick_kafka_config(settings))) as admin:
            found = admin.describe(event_topics(settings))
    except Transient as error:
        raise Unreachable(f"the container stack does not answer: start it with `make up` ({error})") from error
    if missing := [name for name in event_topics(settings) if name not in found]:
        raise ConfigError(f"Kafka at {kafka} has no topics {', '.join(missing)}: start the whole stack with `make up`")
    check_topics(found, event_topics(settings))
    shown = {"Kafka": kafka, "Redis": redis, "Prometheus": prometheus, "try": f"gradstream status --config {config}"}
    # Everything that it has scraped of the workers, in the text format in which they told it.
    url = f"{prometheus}/federate?match[]=%7B__name__%3D~%22gradstream_.%2B%22%7D"
    return Place(settings, StackReader(settings, url), shown, mark_every=0, worker=None)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _load(config: Path) -> Settings:
    """The demo's settings are its own: a variable meant for a real worker must not bend them."""
    return load_settings(config, {}, environ={})
