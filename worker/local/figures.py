"""What a worker shows on /metrics, read back as numbers for the demo's view. Reads text; draws nothing.

Sums over all workers of the text where a figure is a count, takes the largest where it is a state.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from worker.observe import catalogue as c

_SERIES = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

EXAMPLES, STATE_VERSION = c.EXAMPLES.name, c.STATE_VERSION.name

Labels = Mapping[str, str]


def series(text: str) -> Iterator[tuple[str, Labels, float]]:
    """Yield (name, labels, value) of every line of Prometheus' text format that is a series."""
    for line in text.splitlines():
        if found := _SERIES.match(line):
            name, labels, value = found.groups()
            yield name, dict(_LABEL.findall(labels or "")), float(value)


@dataclass(frozen=True, slots=True)
class Figures:
    """One reading. None where a figure is not there (yet). `outcomes` counts records that reached their end."""

    outcomes: Mapping[str, int] = field(default_factory=dict)
    pending: Mapping[str, int] = field(default_factory=dict)
    evaluation: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (metric, window)
    values: Mapping[str, float] = field(default_factory=dict)  # plain gauges and counters, by name
    lags: Mapping[str, int] = field(default_factory=dict)  # by topic:partition
    health: str = "starting"

    @property
    def settled(self) -> int:
        """Records in a final column of the ledger: all but those that wait."""
        return sum(self.outcomes.values())

    @property
    def lag(self) -> int | None:
        return sum(self.lags.values()) if self.lags else None

    @property
    def examples(self) -> int:
        return int(self.values.get(c.EXAMPLES.name, 0))

    def value(self, metric: c.Metric) -> float | None:
        return self.values.get(metric.name)

    @classmethod
    def read(cls, text: str) -> Self:
        outcomes: dict[str, int] = {}
        pending: dict[str, int] = {}
        evaluation: dict[tuple[str, str], float] = {}
        values: dict[str, float] = {}
        lags: dict[str, int] = {}
        health = "starting"
        for name, labels, value in series(text):
            if name == c.EVENTS.name:
                outcomes[labels["outcome"]] = outcomes.get(labels["outcome"], 0) + int(value)
            elif name == c.PENDING.name:
                pending[labels["kind"]] = pending.get(labels["kind"], 0) + int(value)
            elif name == c.EVALUATION.name:
                evaluation[labels["metric"], labels["window"]] = value
            elif name == c.LAG.name:
                lags[f"{labels['topic']}:{labels['partition']}"] = int(value)
            elif name == c.HEALTH.name:
                health = labels["state"] if value else health
            elif name == c.EXAMPLES.name:
                values[name] = values.get(name, 0.0) + value
            elif name in _PLAIN:
                values[name] = max(value, values.get(name, value))
        return cls(outcomes, pending, evaluation, values, lags, health)


_PLAIN = {
    metric.name
    for metric in (c.LOSS, c.GRAD_NORM_LAST, c.WEIGHT_NORM, c.LEARNING_RATE, c.STATE_VERSION, c.REBALANCES, c.FENCED)
}


def read(url: str) -> Figures | None:
    """Return what the worker says now; None where nobody answers."""
    if not url.startswith("http://"):
        return None
    try:
        with urlopen(url, timeout=2) as answer:  # noqa: S310 - the scheme is checked above
            return Figures.read(answer.read().decode())
    except (URLError, OSError, ValueError):
        return None
