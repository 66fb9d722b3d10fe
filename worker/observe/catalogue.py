"""Every metric once: name, type, labels, help, buckets. Names are a promise to dashboards. Values only.

A metric's name is written here and nowhere else; label values come from the closed lists below (or from the worker's
own topics and partitions), never from data: ids, feature names and error texts as labels would grow without bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

OTHER = "other"  # what a label value outside its closed list becomes

OUTCOMES = ("trained", "dead_lettered", "expired", "duplicate", "late", "withdrawn", "control")
STEP_OUTCOMES = ("learned", "partial", "skipped")
TURN_OUTCOMES = ("committed", "without_token", "conflict", "fenced", "passed_on")
STAGES = ("poll", "decode", "join", "learn", "commit")
PENDING_KINDS = ("features", "labels")
HEALTH_STATES = ("starting", "learning", "no_better_than_baseline", "diverging", "non_finite")
NONFINITE_PLACES = (
    "row",
    "loss",
    "grad_norm",
    "weight_norm",
    "update_ratio",
    "learning_rate",
    "evaluation",
    "label_delay",
    "negative_duration",
)
EVALUATION_METRICS = (
    "examples",
    "positives",
    "log_loss",
    "baseline_log_loss",
    "normalized_entropy",
    "accuracy",
    "majority_accuracy",
    "no_change_accuracy",
    "auc",
    "calibration",
    "f1",
    "mae",
    "rmse",
    "baseline_rmse",
    "no_change_mae",
    "no_change_rmse",
)


def log_steps(lowest: int, highest: int) -> tuple[float, ...]:
    """Return bucket edges 1 and 3 of every power of ten from 10^lowest up to and with 10^highest."""
    edges = [float(f"{digit}e{power}") for power in range(lowest, highest) for digit in (1, 3)]
    return (*edges, float(f"1e{highest}"))


@dataclass(frozen=True, slots=True)
class Metric:
    """One promised series family.

    `values` closes a label to a list (anything else becomes "other"); a label without one is bounded by the caller.
    `built` is False while the part that would feed it does not exist: promised, but not exposed.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    built: bool = True


EVENTS = Metric(
    "gradstream_events_total",
    "counter",
    "Records that reached their final column of the ledger, counted when committed, since this process started.",
    ("topic", "outcome"),
    values={"outcome": OUTCOMES},
)
EXAMPLES = Metric("gradstream_examples_total", "counter", "Rows learned and committed since this process started.")
STEPS = Metric(
    "gradstream_steps_total",
    "counter",
    "Batches since this process started: learned, partial (rows left out as not finite), skipped (none was left).",
    ("outcome",),
    values={"outcome": STEP_OUTCOMES},
)
LOSS = Metric(
    "gradstream_loss", "gauge", "Mean loss of the last batch's predictions, made before its rows were learned."
)
LOSS_MEAN = Metric(
    "gradstream_loss_mean",
    "gauge",
    "Mean loss of predictions made before learning, over a window of examples (all: the model's whole life).",
    ("window",),
)
GRAD_NORM = Metric(
    "gradstream_grad_norm",
    "histogram",
    "Gradient norm of each batch before clipping, with the intercept, in standardised units.",
    buckets=log_steps(-6, 6),
)
GRAD_NORM_LAST = Metric("gradstream_grad_norm_last", "gauge", "Gradient norm of the last batch before clipping.")
WEIGHT_NORM = Metric("gradstream_weight_norm", "gauge", "Euclidean norm of the weights, without the intercept.")
UPDATE_RATIO = Metric(
    "gradstream_update_ratio", "gauge", "Norm of the last turn's change of the weights over the norm of the weights."
)
LEARNING_RATE = Metric("gradstream_learning_rate", "gauge", "Learning rate of the last step.")
EVALUATION = Metric(
    "gradstream_evaluation",
    "gauge",
    "Progressive evaluation (predict, then learn) by metric and window; absent where undefined.",
    ("metric", "window"),
    values={"metric": EVALUATION_METRICS},
)
HEALTH = Metric(
    "gradstream_health",
    "gauge",
    "1 for the state of learning in force, 0 for every other.",
    ("state",),
    values={"state": HEALTH_STATES},
)
NONFINITE = Metric(
    "gradstream_nonfinite_total",
    "counter",
    "Values kept out of model and sums because they were not finite (or, negative_duration, below zero).",
    ("where",),
    values={"where": NONFINITE_PLACES},
)
PENDING = Metric(
    "gradstream_pending",
    "gauge",
    "Events that wait in the join for their other half.",
    ("kind",),
    values={"kind": PENDING_KINDS},
)
LABEL_DELAY = Metric(
    "gradstream_label_delay_seconds",
    "histogram",
    "Event time from a feature to its label, for joined examples (0 for a label stamped before its feature).",
    buckets=(0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 10800.0, 21600.0, 43200.0, 86400.0, 259200.0, 604800.0),
)
LAG = Metric(
    "gradstream_consumer_lag_records",
    "gauge",
    "Records that can be read and were not yet, of the partitions this worker owns now.",
    ("topic", "partition"),
)
EVENT_AGE = Metric(
    "gradstream_event_age_seconds", "gauge", "Wall clock minus event time of the newest example learned."
)
COMMIT_SECONDS = Metric(
    "gradstream_commit_seconds",
    "histogram",
    "Time of one commit, from the call to the state store's answer.",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
COMMIT_CONFLICTS = Metric(
    "gradstream_commit_conflicts_total", "counter", "Turns learned again because another worker had committed first."
)
FENCED = Metric(
    "gradstream_fenced_total", "counter", "Times that partitions of this worker were found to have another owner."
)
TURNS = Metric(
    "gradstream_turns_total",
    "counter",
    "Turns by their end: committed, without_token (committed too), conflict (learned again), fenced, passed_on.",
    ("outcome",),
    values={"outcome": TURN_OUTCOMES},
)
TURN_WAIT = Metric(
    "gradstream_turn_wait_seconds",
    "histogram",
    "Time from asking for the turn to having it, of committed turns.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
TURN_EXAMPLES = Metric(
    "gradstream_turn_examples",
    "histogram",
    "Rows learned in one committed turn (0: it only moved positions).",
    buckets=(0.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0),
)
TURN_STALENESS = Metric(
    "gradstream_turn_staleness",
    "histogram",
    "Versions that others committed between two turns of this worker; one less than there are workers where all take "
    "turns alike.",
    buckets=(0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 127.0, 255.0, 1023.0),
)
WENT_BACK = Metric(
    "gradstream_state_went_back_total",
    "counter",
    "Times that the state store was found at an older state than this worker had seen.",
)
PARTITIONS = Metric("gradstream_partitions", "gauge", "Partitions (pairs, where joined) that this worker owns now.")
TOPIC_PARTITIONS = Metric(
    "gradstream_topic_partitions", "gauge", "Partitions (pairs, where joined) that the event topics have."
)
CLAIMS = Metric("gradstream_claims_total", "counter", "Partitions that this worker made its own.")
REBALANCES = Metric("gradstream_rebalances_total", "counter", "Changes of this worker's partitions.")
STATE_VERSION = Metric("gradstream_state_version", "gauge", "Number of the newest state version this worker has seen.")
STATE_BYTES = Metric("gradstream_state_bytes", "gauge", "Size of the last committed model state.")
SKIPPED_OFFSETS = Metric(
    "gradstream_skipped_offsets_total",
    "counter",
    "Offsets that the log no longer had when they were to be read; the worker then ends with exit code 7.",
    ("topic", "partition"),
)
METRICS_DROPPED = Metric(
    "gradstream_metrics_dropped_total", "counter", "Messages of the metrics topic given up: they never delay training."
)
STAGE_SECONDS = Metric(
    "gradstream_stage_seconds_total",
    "counter",
    "Time spent in each stage of the loop.",
    ("stage",),
    values={"stage": STAGES},
)
BUILD_INFO = Metric(
    "gradstream_build_info",
    "gauge",
    "1; what runs here: the program's version, the model's name and task, the kernel.",
    ("version", "model", "task", "kernel"),
)
RELEASE_VERSION = Metric(
    "gradstream_release_version",
    "gauge",
    "Release version that a channel points to.",
    ("channel",),
    values={"channel": ("stable", "canary")},
    built=False,
)
CANDIDATES = Metric(
    "gradstream_candidates",
    "gauge",
    "Release versions by life-cycle state.",
    ("state",),
    values={
        "state": (
            "candidate",
            "verified",
            "approved",
            "released",
            "superseded",
            "rejected",
            "revoked",
            "quarantined",
        )
    },
    built=False,
)
APPROVALS = Metric(
    "gradstream_approvals_total",
    "counter",
    "Decisions of approvers.",
    ("decision",),
    values={"decision": ("approve", "reject")},
    built=False,
)
EXPORT_SECONDS = Metric(
    "gradstream_export_seconds",
    "histogram",
    "Time of one export with its verification.",
    buckets=(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    built=False,
)

CATALOGUE: tuple[Metric, ...] = (
    EVENTS,
    EXAMPLES,
    STEPS,
    LOSS,
    LOSS_MEAN,
    GRAD_NORM,
    GRAD_NORM_LAST,
    WEIGHT_NORM,
    UPDATE_RATIO,
    LEARNING_RATE,
    EVALUATION,
    HEALTH,
    NONFINITE,
    PENDING,
    LABEL_DELAY,
    LAG,
    EVENT_AGE,
    COMMIT_SECONDS,
    COMMIT_CONFLICTS,
    FENCED,
    TURNS,
    TURN_WAIT,
    TURN_EXAMPLES,
    TURN_STALENESS,
    WENT_BACK,
    PARTITIONS,
    TOPIC_PARTITIONS,
    CLAIMS,
    REBALANCES,
    STATE_VERSION,
    STATE_BYTES,
    SKIPPED_OFFSETS,
    METRICS_DROPPED,
    STAGE_SECONDS,
    RELEASE_VERSION,
    CANDIDATES,
    APPROVALS,
    EXPORT_SECONDS,
    BUILD_INFO,
)
