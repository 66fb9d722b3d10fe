"""From bytes to examples: decoder and join together."""

import json

from tests.unit.joins import T0
from worker.spec import Feature, Role, Spec
from worker.stream.events import Decoder
from worker.stream.intake import Intake
from worker.stream.join import JoinRules
from worker.stream.positions import Ledger, PartitionState, SideState
from worker.stream.records import Records, TopicPartition
from worker.stream.rows import RowFormat

SPEC = Spec((Feature("x"), Feature("carrier", kind="categorical", bits=4)))
HOUR_MS = 3_600_000


class Pipe:
    """One pair, fed with JSON. Every record's own timestamp is an hour after `T0`."""

    def __init__(self, rules: JoinRules) -> None:
        self.intake = Intake(True, rules, RowFormat(SPEC), 1)
        sides = tuple(SideState(t, "", 0, -1, -1, 0, b"", b"") for t in ("features", "labels"))
        self.intake.own(PartitionState(0, Ledger(), sides))
        roles: tuple[Role, Role] = ("features", "labels")
        self.decoders: dict[str, Decoder] = {role: Decoder(SPEC, role) for role in roles}
        self.offsets = {"features": 0, "labels": 0}

    def send(self, topic: str, *events: dict[str, object] | None, key: bytes = b"k") -> None:
        start, n = self.offsets[topic], len(events)
        values = [None if e is None else json.dumps(e).encode() for e in events]
        self.offsets[topic] += n
        stamps = [T0 + HOUR_MS] * n
        records = Records(
            TopicPartition(topic, 0), list(range(start, start + n)), stamps, [key] * n, list(values), start + n
        )
        self.intake.add(self.decoders[topic].decode(records))
        for lane in self.intake.lanes():
            lane.passed = True
        self.intake.take()

    def ledger(self) -> dict[str, int]:
        ledger = self.intake.work().partitions[0].ledger
        assert ledger.balanced()
        return {name: n for name in ledger.__struct_fields__ if (n := getattr(ledger, name))}

    def reasons(self) -> list[str]:
        return [letter.refusal.reason for letter in self.intake.take_letters()]


def feature_event(id_: str, ts: object) -> dict[str, object]:
    return {"id": id_, "ts": ts, "features": {"x": 0.5, "carrier": "UA"}}


def label_event(id_: str, ts: object, value: object = 1) -> dict[str, object]:
    return {"id": id_, "ts": ts, "label": value}


def test_a_feature_stamped_in_seconds_is_refused_and_not_joined_as_a_delay_of_decades() -> None:
    pipe = Pipe(JoinRules())
    pipe.send("features", feature_event("a", T0 // 1000), feature_event("b", "2025-11-24T16:00:00Z"))
    pipe.send("labels", label_event("a", T0 + 30_000), label_event("b", "2025-11-24T16:00:00+02:00"))
    assert pipe.reasons() == ["bad_timestamp", "bad_timestamp", "bad_timestamp"]
    assert pipe.ledger() == {"consumed": 4, "dead_lettered": 3, "pending": 1}


def test_zero_and_minus_one_are_no_event_times_and_move_no_clock() -> None:
    pipe = Pipe(JoinRules(window_ms=10))
    pipe.send("features", feature_event("a", 0), feature_event("b", -1), feature_event("c", T0))
    pipe.send("labels", label_event("a", 0), label_event("c", -1), label_event("c", T0 + 5))
    assert pipe.reasons() == ["bad_timestamp"] * 4
    assert pipe.ledger() == {"consumed": 6, "dead_lettered": 4, "trained": 2}


def test_one_stamp_far_in_the_future_expires_nothing() -> None:
    pipe = Pipe(JoinRules(window_ms=10))
    pipe.send("features", feature_event("a", T0))
    pipe.send("labels", label_event("x", T0 + 3 * HOUR_MS), {"watermark": T0 + 3 * HOUR_MS}, label_event("a", T0 + 10))
    assert pipe.reasons() == ["bad_timestamp", "bad_timestamp"]
    assert pipe.ledger() == {"consumed": 4, "dead_lettered": 2, "trained": 2}


def test_repeated_and_corrected_records_train_once() -> None:
    pipe = Pipe(JoinRules(window_ms=1000))
    pipe.send("features", feature_event("e-1", T0))
    pipe.send("labels", label_event("e-1", T0 + 1, 1), label_event("e-1", T0 + 2, True), label_event("e-1", T0 + 3, 0))
    pipe.send("features", feature_event("e-1", T0 + 4))
    assert len(pipe.intake.finished.labels) == 1
    assert pipe.ledger() == {"consumed": 5, "trained": 2, "duplicate": 2, "dead_lettered": 1}
    (letter,) = pipe.intake.take_letters()
    assert letter.refusal.reason == "label_conflict"
    assert json.loads(letter.value or b"") == label_event("e-1", T0 + 3, 0)


def test_a_null_value_withdraws_the_event_that_its_key_names() -> None:
    pipe = Pipe(JoinRules(window_ms=1000))
    pipe.send("features", feature_event("k", T0), feature_event("other", T0), None)
    pipe.send("labels", {"watermark": T0}, label_event("k", T0 + 1), label_event("other", T0 + 1, 0))
    assert pipe.ledger() == {"consumed": 6, "trained": 2, "withdrawn": 2, "control": 1, "pending": 1}
    work = pipe.intake.work()
    assert work.examples.dense.tolist() == [[0.5]]
    assert work.examples.buckets.shape == (1, 1)
    assert work.examples.labels.tolist() == [0.0]


def test_a_chunk_of_refused_records_only_keeps_the_columns_together() -> None:
    pipe = Pipe(JoinRules(window_ms=1000))
    pipe.send("features", {"id": "a"}, {"id": 5})
    pipe.send("labels", {"id": "a"}, {"id": 5})
    pipe.send("features", feature_event("a", T0))
    pipe.send("labels", label_event("a", T0))
    assert pipe.ledger() == {"consumed": 6, "dead_lettered": 4, "trained": 2}
