"""Seeded events for a run, each topic's in the order in which it is sent. Pure.

Inside one topic no event is stamped further back than the disorder that the settings allow, so that for nearly every id
the outcome does not depend on how the two topics are read; a few ids are used against the rules on purpose.
"""

import json
import random
from typing import NamedTuple

from tests.chaos.plan import Plan

T0 = 1_764_000_000_000
STEP_MS = 1000  # event time between two ids
WILD = 0.03


class Message(NamedTuple):
    """One record to send, `at_s` after the start; `partition` None: by key."""

    at_s: float
    role: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None


class _Timed(NamedTuple):
    key_ms: float  # place in its topic
    number: int
    role: str
    key: bytes | None
    value: bytes | None
    partition: int | None


class Stream:
    """Builds the messages of one plan. `of(plan)` is the way in."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(f"stream-{plan.seed}")
        self.window = int(plan.settings["join.window_s"] * 1000)
        self.disorder = int(plan.settings["join.disorder_s"] * 1000)
        self.lateness = int(plan.settings["join.lateness_s"] * 1000)
        self.timed: list[_Timed] = []

    def at(self, ts: float, role: str, key: str | None, value: object, partition: int | None = None) -> None:
        """Add an event stamped `ts`, up to the disorder later in its topic than it should be."""
        place = ts + (self.rng.uniform(0, self.disorder) if self.disorder else 0.0)
        self.exactly_at(place, role, key, value, partition)

    def exactly_at(self, place: float, role: str, key: str | None, value: object, partition: int | None = None) -> None:
        raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
        encoded = key.encode() if key is not None else None
        self.timed.append(_Timed(place, len(self.timed), role, encoded, raw, partition))

    # -- what is in an event --------------------------------------------------------------------------------------

    def values(self) -> dict[str, object]:
        rng = self.rng
        values: dict[str, object] = {"x1": rng.gauss(0, 1), "x2": rng.gauss(50, 20), "carrier": rng.choice("ABCDEFG")}
        if rng.random() < 0.05:
            del values[rng.choice(list(values))]
        return values

    def feature(self, id_: str, ts: int) -> dict[str, object]:
        return {"id": id_, "ts": ts, "features": self.values()}

    def label(self, id_: str, ts: int, value: int) -> dict[str, object]:
        weight: dict[str, object] = {"weight": round(self.rng.uniform(0.5, 2), 3)} if self.rng.random() < 0.1 else {}
        return {"id": id_, "ts": ts, "label": value, **weight}

    def refused(self, role: str, id_: str, ts: int) -> bytes:
        rng = self.rng
        good: dict[str, object] = {"features": {"x1": 1.0}} if role == "features" else {"label": 1}
        if role == "examples":
            good = {"features": {"x1": 1.0}, "label": 1}
        bad: list[object] = [
            b"", b"{", b"[1]", b"null", b'{"id": "a", "id": "b"}', b"\xff\xfe",
            {"id": id_, "ts": ts},
            {"id": 17, "ts": ts, **good},
            {"id": id_, "ts": ts // 1000, **good},
            {"id": id_, "ts": ts, **good, "features": {"x1": "1.5"}, "label": 1} if role != "labels"
            else {"id": id_, "ts": ts, "label": "yes"},
            b'{"id": "e", "ts": 1764000000000, "features": {"x1": NaN}, "label": NaN}',
        ]  # fmt: skip
        chosen = rng.choice(bad)
        return chosen if isinstance(chosen, bytes) else json.dumps(chosen).encode()

    # -- ids ------------------------------------------------------------------------------------------------------

    def joined_id(self, i: int) -> None:
        rng = self.rng
        ts, id_ = T0 + i * STEP_MS, f"e-{self.plan.seed}-{i}"
        if rng.random() < WILD:
            self.wild(id_, ts)
            return
        self.at(ts, "features", id_, self.feature(id_, ts))
        kind, due, value = rng.random(), ts + rng.randint(-self.lateness, self.window), rng.randrange(2)
        if kind < 0.05:
            return  # never labelled
        if kind < 0.08:
            due = ts + self.window + rng.randint(1, self.window)  # too late
        elif kind < 0.09:
            due = ts + rng.choice([-self.lateness, self.window])  # the very ends of what is accepted
        self.at(due, "labels", id_, self.label(id_, due, value))
        if kind > 0.98:
            self.at(due + 9000, "labels", id_, self.label(id_, due + 9000, value))
        elif kind > 0.96:
            self.at(due + 9000, "labels", id_, self.label(id_, due + 9000, 1 - value))
        elif kind > 0.94:
            self.at(ts + 9000, "features", id_, self.feature(id_, ts + 9000))
        elif kind > 0.92:
            role = rng.choice(["features", "labels"])
            self.exactly_at(ts, role, id_, self.refused(role, id_, ts))
        elif kind > 0.91:
            self.at(due, "labels", f"{id_}-alone", self.label(f"{id_}-alone", due, value))
        elif kind > 0.90:
            self.exactly_at(ts, rng.choice(["features", "labels"]), f"{id_}-nothing", None)

    def wild(self, id_: str, ts: int) -> None:
        """Use one id against the rules: what becomes of it depends on the order in which its records are taken."""
        rng = self.rng
        for _ in range(rng.randint(2, 6)):
            when = ts + rng.randint(0, 2 * self.window)
            what = rng.random()
            if what < 0.35:
                self.at(when, "features", id_, self.feature(id_, when))
            elif what < 0.75:
                self.at(when, "labels", id_, self.label(id_, when, rng.randrange(2)))
            else:
                self.exactly_at(when, rng.choice(["features", "labels"]), id_, None)

    def inline_id(self, i: int) -> None:
        rng = self.rng
        ts, id_ = T0 + i * STEP_MS, f"e-{self.plan.seed}-{i}"
        event = {**self.feature(id_, ts), **self.label(id_, ts, rng.randrange(2))}
        self.at(ts, "examples", id_, event)
        kind = rng.random()
        if kind < 0.04:
            self.at(ts + rng.randint(0, 60_000), "examples", id_, event)
        elif kind < 0.06:
            self.exactly_at(ts, "examples", id_, self.refused("examples", id_, ts))
        elif kind < 0.07:
            self.exactly_at(ts, "examples", id_, None)

    # -- the whole ------------------------------------------------------------------------------------------------

    def messages(self) -> list[Message]:
        plan, inline = self.plan, self.plan.settings["stream.mode"] == "inline"
        count = int(plan.seconds * plan.stream.ids_a_second)
        for i in range(count):
            (self.inline_id if inline else self.joined_id)(i)
        roles = ["examples"] if inline else ["features", "labels"]
        end = T0 + count * STEP_MS
        for role in roles:
            for partition in range(plan.partitions):
                for ts in sorted(self.rng.randrange(T0, end) for _ in range(3)):
                    self.exactly_at(ts, role, None, {"watermark": ts}, partition)
        sent = [self._message(timed, roles) for timed in sorted(self.timed)]
        last = max(message.at_s for message in sent)
        beyond = T0 + count * STEP_MS + 6 * self.window  # every window is over: nothing may be pending at the end
        close = json.dumps({"watermark": beyond}).encode()
        finish = [Message(last, role, None, close, n) for role in roles for n in range(plan.partitions)]
        return sorted(sent, key=lambda message: message.at_s) + finish

    def _message(self, timed: _Timed, roles: list[str]) -> Message:
        """Say when a record is sent: event time runs at `ids_a_second`, what lies beyond the run comes at its end."""
        index, stream = roles.index(timed.role), self.plan.stream
        at_s = max(0.0, timed.key_ms - T0) / STEP_MS / stream.ids_a_second
        at_s = min(at_s, self.plan.seconds) + stream.delays_s[index]
        for hold in stream.holds:
            if hold.topic == index and hold.at_s <= at_s < hold.at_s + hold.for_s:
                at_s = hold.at_s + hold.for_s
        return Message(at_s, timed.role, timed.key, timed.value, timed.partition)


def messages(plan: Plan) -> list[Message]:
    """Return everything that a run sends, in order; the order inside a topic is the same every time."""
    return Stream(plan).messages()
