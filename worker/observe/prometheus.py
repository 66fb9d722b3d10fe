"""What a worker has measured, and its text for Prometheus. The only file that knows prometheus_client.

Plain values come in; nothing here reads a clock, a queue or a store, and nothing here may stop training: a value that
is not finite is counted and left out, an unknown label value becomes "other". Counters start at 0 with the process
(totals over the model's life are in the state). No global registry: two workers in one process do not mix.
"""

import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from worker.learn.state import Report
from worker.observe import catalogue as c
from worker.observe.observer import Turn
from worker.stream.records import TopicPartition

ALL = "all"  # the window that is the model's whole life
_OPENMETRICS = "application/openmetrics-text; version=1.0.0"
_LARGEST = float(np.finfo(np.float64).max)


class Tally:
    """Bucket counts and sum of one histogram; whole arrays are added at once (about 30 ns a value)."""

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = np.asarray(edges)
        self._counts = np.zeros(len(edges) + 1, np.int64)
        self._sum = 0.0

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Add finite values. An edge belongs to its own bucket (`le` is inclusive)."""
        places = np.searchsorted(self._edges, values, side="left")
        self._counts += np.bincount(places, minlength=len(self._counts))
        with np.errstate(over="ignore"):  # a sum beyond float64 stays at its end: inf would poison rates for ever
            self._sum = min(self._sum + float(values.sum()), _LARGEST)

    def family(self, metric: c.Metric) -> HistogramMetricFamily:
        bounds = [*map(str, self._edges.tolist()), "+Inf"]
        counts = np.cumsum(self._counts).tolist()
        return HistogramMetricFamily(metric.name, metric.help, list(zip(bounds, counts, strict=True)), self._sum)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a worker is, fixed for the life of the process: the labels of `gradstream_build_info`."""

    version: str
    model: str
    task: str
    kernel: str


class Meters:
    """The measurements of one worker. Every method is safe to call while a scrape reads."""

    def __init__(self, identity: Identity, topics: Collection[str]) -> None:
        """`topics`: the event topics of this worker; any other becomes "other" in labels."""
        self._lock = threading.Lock()
        self._topics = frozenset(topics)
        built = [m for m in c.CATALOGUE if m.built]
        self._series: dict[str, dict[tuple[str, ...], float]] = {m.name: {} for m in built if m.type != "histogram"}
        self._tallies = {m.name: Tally(m.buckets) for m in built if m.type == "histogram"}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collected(self._families))
        self._start_at_zero(built)
        self._set(c.PARTITIONS, 0.0)
        self._set(c.BUILD_INFO, 1.0, identity.version, identity.model, identity.task, identity.kernel)

    def _start_at_zero(self, metrics: Iterable[c.Metric]) -> None:
        """Show counters before their first event, or the first increase is invisible to `rate()`."""
        for metric in metrics:
            if metric.type != "counter":
                continue
            if not metric.labels:
                self._add(metric, 0)
            elif len(metric.labels) == 1:
                for value in metric.values[metric.labels[0]]:
                    self._add(metric, 0, value)
        for topic in self._topics:
            for outcome in c.OUTCOMES:
                self._add(c.EVENTS, 0, topic, outcome)

    # What the loop reports

    def events(self, topic: str, outcome: str, n: int) -> None:
        """`n` records of `topic` reached a final column of the ledger; call once their commit is done."""
        with self._lock:
            self._add(c.EVENTS, n, self._topic(topic), outcome)

    def step(self, report: Report) -> None:
        """Take in what one turn learned; call once its commit is done, or a turn learned again counts twice."""
        with self._lock:
            self._add(c.EXAMPLES, sum(report.rows))
            self._add(c.NONFINITE, sum(report.skipped), "row")
            for rows, skipped in zip(report.rows, report.skipped, strict=True):
                outcome = "learned" if not skipped else "partial" if rows else "skipped"
                self._add(c.STEPS, 1, outcome)
            told = [i for i, rows in enumerate(report.rows) if rows]  # a batch without rows has no loss
            self._last(c.LOSS, [report.loss[i] for i in told], "loss")
            norms = self._finite([report.grad_norm[i] for i in told], "grad_norm")
            self._tallies[c.GRAD_NORM.name].add(norms)
            if norms.size:
                self._set(c.GRAD_NORM_LAST, float(norms[-1]))
            if told:  # a turn that only moved positions says nothing of the weights
                self._last(c.WEIGHT_NORM, (report.weight_norm,), "weight_norm")
                self._last(c.UPDATE_RATIO, (report.update_ratio,), "update_ratio")
            self._last(c.LEARNING_RATE, (report.learning_rate,), "learning_rate")

    def commit(self, turn: Turn) -> None:
        """Take in how a turn came to its commit, whatever it learned."""
        with self._lock:
            self._observe(c.COMMIT_SECONDS, self._duration(turn.commit_s))
            self._observe(c.TURN_WAIT, self._duration(turn.wait_s))
            self._observe(c.TURN_EXAMPLES, sum(turn.report.rows))
            self._observe(c.TURN_STALENESS, turn.staleness)
            self._add(c.TURNS, 1, "committed" if turn.token else "without_token")
            self._add(c.TURNS, turn.conflicts, "conflict")
            self._add(c.COMMIT_CONFLICTS, turn.conflicts)
            self._set(c.STATE_VERSION, turn.version.number)
            self._set(c.STATE_BYTES, turn.state_bytes)

    def turn_lost(self, outcome: str) -> None:
        """A turn ended without a commit; `outcome`: one of `catalogue.TURN_OUTCOMES`."""
        with self._lock:
            self._add(c.TURNS, 1, outcome)

    def stage(self, name: str, seconds: float) -> None:
        """`name`: one of `catalogue.STAGES`. A negative duration (a clock's fault) is 0 and counted."""
        with self._lock:
            self._add(c.STAGE_SECONDS, self._duration(seconds), name)

    def fenced(self) -> None:
        with self._lock:
            self._add(c.FENCED, 1)

    def went_back(self) -> None:
        with self._lock:
            self._add(c.WENT_BACK, 1)

    def claim(self) -> None:
        with self._lock:
            self._add(c.CLAIMS, 1)

    def rebalance(self) -> None:
        with self._lock:
            self._add(c.REBALANCES, 1)

    def metrics_dropped(self, n: int) -> None:
        with self._lock:
            self._add(c.METRICS_DROPPED, n)

    def topic_partitions(self, count: int) -> None:
        with self._lock:
            self._set(c.TOPIC_PARTITIONS, count)

    def owned(self, partitions: Collection[int]) -> None:
        """Take the numbers of the partitions owned now. Series of all others end here.

        A partition that went and kept its last lag would hold an alert for ever.
        """
        numbers = {str(partition) for partition in partitions}
        with self._lock:
            self._set(c.PARTITIONS, len(numbers))
            for metric in (c.LAG, c.SKIPPED_OFFSETS):
                series = self._series[metric.name]
                self._series[metric.name] = {place: n for place, n in series.items() if place[1] in numbers}

    def lag(self, lag: Mapping[TopicPartition, int]) -> None:
        """Take how many records of each partition owned now were not read yet."""
        with self._lock:
            self._series[c.LAG.name] = {self._place(source): float(max(n, 0)) for source, n in lag.items()}

    def skipped_offsets(self, source: TopicPartition, n: int) -> None:
        with self._lock:
            self._add(c.SKIPPED_OFFSETS, n, *self._place(source))

    def pending(self, kind: str, n: int) -> None:
        """`kind`: one of `catalogue.PENDING_KINDS`."""
        with self._lock:
            self._set(c.PENDING, n, kind)

    def label_delays(self, seconds: Sequence[float] | npt.NDArray[np.float64]) -> None:
        """Event time from feature to label of the examples of a turn; negative ones are observed as 0."""
        with self._lock:
            self._tallies[c.LABEL_DELAY.name].add(np.maximum(self._finite(seconds, "label_delay"), 0.0))

    def event_age(self, seconds: float) -> None:
        """Wall clock minus event time; 0 where the wall clock is behind the events."""
        with self._lock:
            self._set(c.EVENT_AGE, max(seconds, 0.0))

    def evaluation(self, summary: Mapping[str, object]) -> None:
        """Take the `evaluation` object of `status`: metrics over the whole life, and `windows` of the same metrics.

        Undefined (None) values have no series; metrics that the catalogue does not list are passed over.
        """
        windows = {ALL: summary}
        nested = summary.get("windows")
        if isinstance(nested, Mapping):
            windows |= {str(name): metrics for name, metrics in nested.items() if isinstance(metrics, Mapping)}
        with self._lock:
            self._series[c.EVALUATION.name].clear()
            self._series[c.LOSS_MEAN.name].clear()
            for window, metrics in windows.items():
                self._evaluate(window, metrics)

    def _evaluate(self, window: str, metrics: Mapping[str, object]) -> None:
        finite: dict[str, float] = {}
        for name in c.EVALUATION_METRICS:
            value = metrics.get(name)
            if isinstance(value, int | float) and self._is_finite(value, "evaluation"):
                finite[name] = float(value)
                self._set(c.EVALUATION, float(value), name, window)
        if "log_loss" in finite:
            self._set(c.LOSS_MEAN, finite["log_loss"], window)
        elif "rmse" in finite:
            self._set(c.LOSS_MEAN, finite["rmse"] ** 2, window)

    def health(self, state: str) -> None:
        """`state`: one of `catalogue.HEALTH_STATES`; an unknown one shows as "other"."""
        with self._lock:
            self._series[c.HEALTH.name].clear()
            for known in c.HEALTH_STATES:
                self._set(c.HEALTH, 0.0, known)
            self._set(c.HEALTH, 1.0, state)

    # What a scrape reads

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return all series as text, and its content type: OpenMetrics where `accept` asks for it."""
        wanted = _OPENMETRICS if "application/openmetrics-text" in accept else ""  # odd headers never reach a parser
        encode, content_type = choose_encoder(wanted)
        return encode(self._registry), content_type

    def _families(self) -> list[Family]:
        with self._lock:
            return [self._family(metric) for metric in c.CATALOGUE if metric.built]

    def _family(self, metric: c.Metric) -> Family:
        if metric.type == "histogram":
            return self._tallies[metric.name].family(metric)
        kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=metric.labels)
        for labels, value in self._series[metric.name].items():
            family.add_metric(labels, value)
        return family

    # The lock is held below this line

    def _add(self, metric: c.Metric, n: float, *labels: str) -> None:
        series = self._series[metric.name]
        key = _bounded(metric, labels)
        series[key] = series.get(key, 0.0) + n

    def _set(self, metric: c.Metric, value: float, *labels: str) -> None:
        self._series[metric.name][_bounded(metric, labels)] = float(value)

    def _observe(self, metric: c.Metric, value: float) -> None:
        self._tallies[metric.name].add(np.array([value], np.float64))

    def _last(self, metric: c.Metric, values: Sequence[float], where: str) -> None:
        finite = self._finite(values, where)
        if finite.size:
            self._set(metric, float(finite[-1]))

    def _finite(self, values: Sequence[float] | npt.NDArray[np.float64], where: str) -> npt.NDArray[np.float64]:
        array = np.asarray(values, np.float64)
        good = np.isfinite(array)
        if good.all():
            return array
        self._add(c.NONFINITE, int(array.size - good.sum()), where)
        return array[good]

    def _is_finite(self, value: float, where: str) -> bool:
        if math.isfinite(value):
            return True
        self._add(c.NONFINITE, 1, where)
        return False

    def _duration(self, seconds: float) -> float:
        if 0.0 <= seconds < math.inf:
            return seconds
        self._add(c.NONFINITE, 1, "negative_duration")
        return 0.0

    def _topic(self, topic: str) -> str:
        return topic if topic in self._topics else c.OTHER

    def _place(self, source: TopicPartition) -> tuple[str, str]:
        return self._topic(source.topic), str(source.partition)


class _Collected(Collector):
    """The registry asks this at each scrape."""

    def __init__(self, families: Callable[[], list[Family]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families()


def _bounded(metric: c.Metric, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Replace label values outside their closed list by "other"."""
    if not metric.values:
        return labels
    return tuple(
        value if name not in metric.values or value in metric.values[name] else c.OTHER
        for name, value in zip(metric.labels, labels, strict=True)
    )
