"""A metrics topic in memory. Messages are written and read as strict JSON, as any reader would."""

import json
from collections.abc import Mapping
from typing import Any


def _not_json(literal: str) -> None:
    raise AssertionError(f"{literal} is not JSON")


class FakeMetricsTopic:
    """Answers to `worker.stream.source.MetricsTopic`."""

    dropped = 0

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def send(self, message: Mapping[str, object]) -> None:
        self.messages.append(json.loads(json.dumps(message, allow_nan=False), parse_constant=_not_json))
