"""What the container stack says of its workers: books and evaluation from Redis, losses and rates from Prometheus.

Redis is exact and has the past of every worker; Prometheus is some seconds behind and may be missing.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from worker.cli.connect import redis_store
from worker.cli.status import status_document
from worker.errors import StateMissing, Transient
from worker.local import figures
from worker.local.figures import Figures
from worker.settings import Settings

_NO_END = ("consumed", "pending")  # columns of the ledger in which no record ends


class StackReader:
    """Callable: returns one reading; None where Redis does not answer or no state exists yet."""

    def __init__(self, settings: Settings, prometheus_url: str) -> None:
        self._model = settings.model.name
        self._store = redis_store(settings)
        self._url = prometheus_url

    def __call__(self) -> Figures | None:
        try:
            partitions = [stored.state for stored in self._store.partitions()]
            document = status_document(self._model, self._store.load(), partitions, [], None)
        except (Transient, StateMissing):
            return None
        return _figures(document, figures.read(self._url) or Figures())


def _figures(document: Mapping[str, Any], seen: Figures) -> Figures:
    ledger = document["ledger"]
    return replace(
        seen,
        outcomes={name: count for name, count in ledger.items() if name not in _NO_END},
        pending={"features": ledger["pending"]},
        evaluation=_evaluation(document["evaluation"]),
        values={
            **seen.values,
            figures.EXAMPLES: document["examples"],
            figures.STATE_VERSION: document["state_version"],
        },
        health=document["health"]["state"],
    )


def _evaluation(document: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    windows = {"all": document} | document["windows"]
    return {
        (metric, window): float(value)
        for window, metrics in windows.items()
        for metric, value in metrics.items()
        if isinstance(value, int | float)
    }
