"""The message of the metrics topic, from plain values. Pure: no client, no clock.

A message is strict JSON for any reader: a number that is not finite is `null`, and `non_finite` names the field.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.learn.state import Report


@dataclass(frozen=True, slots=True)
class Moment:
    """Whose measurements these are, and of when.

    `ts` is the wall clock in milliseconds since 1970; `step` and `examples` count over the model's whole life;
    `event_lag_ms` is wall clock minus event time of the newest example (None: not known).
    """

    model: str
    worker: str
    ts: int
    state_version: int
    step: int
    examples: int
    event_lag_ms: int | None = None
    pending_features: int | None = None
    pending_labels: int | None = None


def metrics_message(moment: Moment, report: Report) -> dict[str, object]:
    """Return one message for what a turn learned.

    `loss` and `grad_norm` are means over the turn's rows (a batch weighs as its rows), `grad_norm_max` the maximum,
    before clipping; a value without any row is `null` and not flagged.
    """
    message: dict[str, object] = {
        "model": moment.model,
        "worker": moment.worker,
        "ts": moment.ts,
        "state_version": moment.state_version,
        "step": moment.step,
        "examples": moment.examples,
        "loss": _mean(report.loss, report.rows),
        "grad_norm": _mean(report.grad_norm, report.rows),
        "grad_norm_max": _maximum(report.grad_norm_max, report.rows),
        "learning_rate": report.learning_rate,
        "weight_norm": report.weight_norm,
        "update_ratio": report.update_ratio,
        "rows": sum(report.rows),
        "rows_skipped": sum(report.skipped),
        "event_lag_ms": moment.event_lag_ms,
        "pending_features": moment.pending_features,
        "pending_labels": moment.pending_labels,
    }
    return _flagged(message)


def _flagged(message: Mapping[str, object]) -> dict[str, object]:
    """Replace numbers that are not finite by None and list their fields under `non_finite` (empty: none)."""
    bad = [name for name, value in message.items() if isinstance(value, float) and not math.isfinite(value)]
    return {**message, **dict.fromkeys(bad), "non_finite": bad}


def _mean(values: Sequence[float], rows: Sequence[int]) -> float | None:
    """Mean weighted by rows; batches of which no row was left say nothing (their value is a filler)."""
    told = [(value, n) for value, n in zip(values, rows, strict=True) if n]
    if not told:
        return None
    return float(sum(value * n for value, n in told)) / sum(n for _, n in told)


def _maximum(values: Sequence[float], rows: Sequence[int]) -> float | None:
    """Maximum over batches with rows; not finite if one is (`max` would pass a NaN over, depending on order)."""
    told = [float(value) for value, n in zip(values, rows, strict=True) if n]
    if not told:
        return None
    return max(told) if all(map(math.isfinite, told)) else math.nan
