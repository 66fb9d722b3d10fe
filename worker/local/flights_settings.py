"""The settings under which the flights are learned, as the text of a settings file: demo, container stack and tests.

Values only; where Kafka and Redis are is an argument.
"""

import json

from worker.local.flights import FEATURES, WINDOW_S
from worker.spec import Feature

MODEL = "flights"
LEARNING_RATE = 0.05
PARTITIONS = 2


def flights_settings(
    *,
    bootstrap_servers: str,
    redis_url: str,
    http_port: int = 0,
    http_host: str = "127.0.0.1",
    session_timeout_ms: int = 10_000,
) -> str:
    """Return a whole `gradstream.toml`."""
    sections: dict[str, dict[str, object]] = {
        "model": {"name": MODEL, "task": "binary"},
        "train": {"learning_rate": LEARNING_RATE, "batch_size": 64},
        "join": {"window_s": WINDOW_S},
        "kafka": {"bootstrap_servers": bootstrap_servers, "session_timeout_ms": session_timeout_ms},
        "redis": {"url": redis_url},
        "observe": {"http_host": http_host, "http_port": http_port},
    }
    head = "# Will this flight arrive more than 15 minutes late? Asked at departure, learned at arrival.\n"
    model, *others = [_table(f"[{name}]", values) for name, values in sections.items()]
    return "\n".join([head, model, *map(_feature, FEATURES), *others])


def _feature(feature: Feature) -> str:
    values: dict[str, object] = {"name": feature.name, "kind": feature.kind}
    if feature.kind == "categorical":
        values["bits"] = feature.bits
    return _table("[[model.features]]", values)


def _table(head: str, values: dict[str, object]) -> str:
    # Strings and whole or decimal numbers are written alike in JSON and TOML.
    return "\n".join([head, *(f"{key} = {json.dumps(value)}" for key, value in values.items())]) + "\n"
