"""What one run does, drawn from its seed alone: settings, workers, stream and faults. Pure: the same seed, the same plan.

What a fault meets when its time comes (which worker holds the turn, what is in flight) is not in the plan.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

SLOTS = 6  # workers that may live at once, each with its own way to Kafka and to Redis
EVERYBODY = -1
FEATURES: tuple[Mapping[str, Any], ...] = (
    {"name": "x1"},
    {"name": "x2", "missing": "zero"},
    {"name": "carrier", "kind": "categorical", "bits": 6},
)
QUIET_S, LAST_S = 2.0, 4.0  # without a new fault, at the beginning and at the end
GAP_S = 1.9  # between faults, on average
STARTS_A_MINUTE = 9  # a start of a worker costs two seconds of a core


class Fault(NamedTuple):
    """`slot`: a worker's, or EVERYBODY. `for_s`: how long it lasts; `size`: what its kind says."""

    at_s: float
    kind: str
    slot: int
    for_s: float
    size: float


class Hold(NamedTuple):
    """A time in which nothing is sent to one topic; then everything at once."""

    topic: int
    at_s: float
    for_s: float


class StreamPlan(NamedTuple):
    ids_a_second: int
    delays_s: tuple[float, float]  # by how much each topic runs behind event time
    holds: tuple[Hold, ...]


class Plan(NamedTuple):
    seed: int
    seconds: float
    workers: int
    partitions: int
    static: bool
    settings: Mapping[str, Any]
    stream: StreamPlan
    faults: tuple[Fault, ...]


def plan(seed: int, seconds: float, kernels: tuple[str, ...] = ("numpy", "numpy", "numba")) -> Plan:
    """Return what seed `seed` does in `seconds` of wall time."""
    rng = random.Random(f"chaos-{seed}")
    settings = _settings(rng, kernels)
    workers = rng.choice([2, 3, 3, 4])
    turn_s, session_s = settings["commit.turn_wait_ms"] / 1000, settings["kafka.session_timeout_ms"] / 1000
    return Plan(
        seed=seed,
        seconds=seconds,
        workers=workers,
        partitions=rng.randint(4, 6),
        static=rng.random() < 0.4,
        settings=settings,
        stream=_stream(rng, seconds),
        faults=_faults(rng, seconds, turn_s, session_s),
    )


def _settings(rng: random.Random, kernels: tuple[str, ...]) -> dict[str, Any]:
    inline = rng.random() < 0.15
    reduction = "mean" if rng.random() < 0.2 else "sequential"
    return {
        "stream.mode": "inline" if inline else "joined",
        "stream.max_idle_ms": rng.choice([50, 200, 400]),
        "train.batch_size": rng.choice([1, 7, 16, 64]),
        "train.reduction": reduction,
        "train.kernel": rng.choice(kernels) if reduction == "sequential" else "numpy",
        "train.l2": rng.choice([0.0, 0.001]),
        "train.clip_norm": rng.choice([0.0, 2.0]),
        "join.window_s": 600,
        "join.disorder_s": rng.choice([0, 8]),
        "join.lateness_s": rng.choice([0, 60]),
        "join.on_expiry": rng.choice(["drop", "negative"]),
        "join.idle_labels": "advance" if rng.random() < 0.1 else "wait",
        "join.remember": rng.choice([100_000, 1_500]),
        "commit.every_s": rng.choice([0.05, 0.1, 0.25, 0.5, 1.0]),
        "commit.every_examples": rng.choice([0, 0, 0, 64, 256]),
        "commit.turn_wait_ms": rng.choice([300, 1000, 2000]),
        "kafka.session_timeout_ms": rng.choice([4000, 6000]),
    }


def _stream(rng: random.Random, seconds: float) -> StreamPlan:
    """Topics run level, one behind the other, or by fits and starts."""
    behind = rng.choice([(0.0, 0.0), (0.0, 0.0), (0.0, 4.0), (4.0, 0.0)])
    holds = tuple(
        Hold(rng.randrange(2), rng.uniform(2, seconds * 0.8), rng.uniform(0.5, 5)) for _ in range(rng.choice([0, 2, 5]))
    )
    return StreamPlan(rng.choice([60, 100, 150]), behind, tuple(sorted(holds, key=lambda hold: hold.at_s)))


Draw = Callable[[random.Random], float]


def _kinds(turn_s: float, session_s: float) -> dict[str, tuple[int, Draw, Draw]]:
    """Return each kind's weight, how long it lasts, and its size."""

    def none(_: random.Random) -> float:
        return 0.0

    def between(low: float, high: float) -> Draw:
        return lambda rng: rng.uniform(low, high)

    return {
        "kill": (12, between(0, 4), none),  # for_s: until it is started again
        "kill_at_turn": (8, between(0, 4), none),  # the one that was handed the turn this very moment
        "end": (8, between(0, 3), none),  # SIGTERM
        "pause": (8, between(0.05, 0.8 * turn_s), none),  # SIGSTOP, shorter than its turn is respected
        "pause_past_turn": (8, between(1.1 * turn_s, max(2 * turn_s, 0.7 * session_s)), none),
        "pause_past_session": (5, between(1.2 * session_s, session_s + 5), none),
        "add": (7, none, none),
        "remove": (4, none, none),
        "kafka_killed": (2, between(0, 2), none),
        "kafka_restarted": (1, between(0, 1), none),
        "redis_killed": (4, between(0, 3), none),
        "redis_restarted": (2, between(0, 1), none),
        "redis_lost_its_last_second": (4, between(0, 1), between(0.2, 1.2)),  # size: seconds cut off
        "kafka_cut": (5, none, none),
        "kafka_refused": (3, between(0.3, 4), none),
        "kafka_stalled": (4, between(0.3, 5), none),
        "kafka_slow": (4, between(1, 5), between(0.01, 0.2)),  # size: seconds a chunk is late
        "kafka_narrow": (2, between(1, 4), between(5_000, 60_000)),  # size: bytes a second
        "redis_cut": (6, none, none),
        "redis_refused": (3, between(0.3, 4), none),
        "redis_stalled": (4, between(0.3, 5), none),
        "redis_slow": (4, between(1, 5), between(0.002, 0.1)),
        "redis_replies_lost": (6, between(0.3, 3), none),
        "turn_deleted": (5, none, none),
    }


KINDS = tuple(_kinds(1.0, 1.0))
STARTING = {"kill", "kill_at_turn", "end", "add"}
BROKER = {"kafka_killed", "kafka_restarted"}
OF_A_WORKER = {"kill", "end", "pause", "pause_past_turn", "pause_past_session", "remove"}


def _faults(rng: random.Random, seconds: float, turn_s: float, session_s: float) -> tuple[Fault, ...]:
    kinds = _kinds(turn_s, session_s)
    names, weights = list(kinds), [weight for weight, _, _ in kinds.values()]
    faults: list[Fault] = []
    at_s, starts, brokers = QUIET_S, STARTS_A_MINUTE * seconds / 60, max(1, round(seconds / 60))
    while (at_s := at_s + max(0.1, rng.expovariate(1 / GAP_S))) < seconds - LAST_S:
        kind = rng.choices(names, weights)[0]
        _, lasts, size = kinds[kind]
        everybody = kind not in OF_A_WORKER and rng.random() < 0.3
        fault = Fault(
            round(at_s, 3),
            kind,
            EVERYBODY if everybody else rng.randrange(4),
            round(lasts(rng), 3),
            round(size(rng), 4),
        )
        starts -= kind in STARTING
        brokers -= kind in BROKER
        if (kind in STARTING and starts < 0) or (kind in BROKER and brokers < 0):
            continue
        faults.append(fault)
    return tuple(faults)
