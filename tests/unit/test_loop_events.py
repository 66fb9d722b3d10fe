"""What single events do to the whole, from bytes to the committed state: the loop on fakes beside a run without them."""

import json

import pytest

from tests.e2e.streams import T0
from tests.unit.rig import QUICK, Rig
from worker.errors import NonFiniteStep, Stalled
from worker.spec import Feature, Hyper, Spec
from worker.stream.join import JoinRules

TWO = Spec((Feature("x1"), Feature("x2")))


def _rig(**more: object) -> Rig:
    return Rig(spec=TWO, hyper=Hyper(batch_size=32), pace=QUICK, **more)  # type: ignore[arg-type]


def feature(id_: str, at: int, **features: object) -> bytes:
    return json.dumps({"id": id_, "ts": T0 + at, "features": features}).encode()


def label(id_: str, at: int, value: object) -> bytes:
    return json.dumps({"id": id_, "ts": T0 + at, "label": value}).encode()


def _pair(rig: Rig, id_: str, at: int, value: int, features: dict[str, object], partition: int = 0) -> None:
    rig.append("features", feature(id_, at, **features), partition=partition)
    rig.append("labels", label(id_, at + 5, value), partition=partition)


def _values(i: int) -> tuple[float, float]:
    return ((i * 37) % 17 - 8.0, (i * 11) % 7 - 3.0)


def _good(rig: Rig, first: int, count: int) -> None:
    for i in range(first, first + count):
        x1, x2 = _values(i)
        _pair(rig, f"e-{i}", 10 * i, int(x1 > 0), {"x1": x1, "x2": x2})


def test_bad_records_in_a_batch_leave_exactly_the_model_of_the_good_ones() -> None:
    """Literals that are not JSON cost their own record and nothing else: not the batch, not the model."""
    rig, clean = _rig(), _rig()
    for one in (rig, clean):
        _good(one, 0, 15)
        if one is rig:
            for x1 in (b"NaN", b"-Infinity", b'"NaN"'):
                one.append("features", b'{"id":"b-1","ts":%d,"features":{"x1":%s,"x2":1}}' % (T0 + 150, x1))
            one.append("features", feature("b-2", 151, x1=1))
            one.append("labels", b'{"id":"b-2","ts":%d,"label":NaN}' % (T0 + 155))
        _good(one, 16, 17)
        one.worker().drain()
    assert [reason for *_, reason in rig.refused()] == ["not_json", "not_json", "wrong_type", "not_json"]
    assert rig.digest() == clean.digest()
    assert rig.store.load().learner.examples == 32
    assert rig.ledger().dead_lettered == 4
    assert rig.ledger().pending == 1, "the feature whose label was refused waits for another one"


def test_features_that_come_and_go_leave_the_others_alone() -> None:
    """A name that the model does not have is passed over and told; one that is missing has its rule."""
    rig, plain = _rig(), _rig()
    for one in (rig, plain):
        for i in range(302):
            x1, x2 = _values(i)
            known: dict[str, object] = {"x1": x1, "x2": x2} if i < 200 else {"x1": x1} if i < 300 else {}
            unknown: dict[str, object] = {"x3": 1.0} if 100 <= i < 200 else {}
            if i == 301:
                unknown = {f"u{n}": 1 for n in range(10_000)}
            _pair(one, f"e-{i}", 10 * i, int(x1 > 0), known | (unknown if one is rig else {}))
    worker = rig.worker()
    worker.drain()
    plain.worker().drain()
    assert rig.digest() == plain.digest()
    assert rig.store.load().learner.examples == 302
    told = [note for note in worker.observer.notes if note.startswith("features: ")]
    assert told[0] == "features: x3"
    assert len(told) <= 1002, "names made of data do not fill the memory"


@pytest.mark.parametrize("labels_first", [False, True])
def test_ids_that_only_look_alike_never_meet(labels_first: bool) -> None:
    """Rounded by a producer, quoted by one side only, written in another case: whichever comes first, and restarted."""
    features = [feature("9007199254740993", 0, x1=1), feature("E-1", 1, x1=1), feature(" 17", 2, x1=1)]
    unquoted = b'{"id":17,"ts":%d,"features":{"x1":1}}' % (T0 + 3)
    labels = [label("9007199254740992", 0, 1), label("e-1", 1, 1), label("17", 3, 1)]
    rig = _rig()
    batches = [("features", [*features, unquoted]), ("labels", labels)]
    for topic, values in reversed(batches) if labels_first else batches:
        rig.append(topic, *values)
        rig.worker().drain()
    assert rig.store.load().learner.examples == 0
    assert rig.ledger().pending == 6
    assert rig.refused() == [("features", 0, 3, "bad_id")]


def test_a_label_partition_that_stays_empty_stops_no_other_one() -> None:
    """Two windows of the others are learned; its own features wait up to the bound, and the topic is named."""
    window, bound = 1000, 20
    rig = _rig(partitions=4, rules=JoinRules(window_ms=window, max_pending=bound))
    for i in range(2 * window // 10):
        for partition in range(3):
            _pair(rig, f"e-{partition}-{i}", 10 * i, i % 2, {"x1": float(i % 5)}, partition)
        rig.append("features", feature(f"e-3-{i}", 10 * i, x1=1.0), partition=3)
    with pytest.raises(Stalled, match=r"partition 3: 20 events of topic features wait.*topic labels"):
        rig.worker().drain()
    assert rig.store.load().learner.examples == 600
    assert rig.ledger().pending == bound


def _overflowing(rig: Rig, first: int, count: int) -> None:
    for i in range(first, first + count):
        _pair(rig, f"b-{i}", 10 * i, 1, {"x1": 1e200, "x2": 0.0})


def test_a_model_that_learns_nothing_finite_for_long_ends_the_worker_with_advice() -> None:
    """A hundred steps in a row; one that is finite begins the count anew. What was passed stays passed."""
    wide = Spec((Feature("x1", max_abs=1e300), Feature("x2")))
    rig = Rig(spec=wide, hyper=Hyper(batch_size=1), pace=QUICK)
    _overflowing(rig, 0, 99)
    _good(rig, 99, 1)
    _overflowing(rig, 100, 99)
    rig.worker().drain()
    assert (rig.store.load().learner.examples, rig.ledger().trained) == (1, 398)
    _overflowing(rig, 199, 200)
    with pytest.raises(NonFiniteStep, match=r"train\.learning_rate.*train\.clip_norm.*state restore --previous"):
        rig.worker().drain()
    learned = rig.store.load().learner
    assert (learned.examples, int(learned.arrays["counters.skipped"][0])) == (1, (rig.ledger().trained - 2) // 2)
