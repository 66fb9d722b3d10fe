"""What arrives, in whatever order and state, seen through the whole program: one effect for each record."""

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.serializer import Serializer

from tests.e2e import streams
from tests.e2e.world import Event, NewWorld, World, example, feature, label, wait_for, worlds
from tests.services.kafka import CODECS, produce, produce_transaction
from worker.stream.positions import Ledger

pytestmark = [pytest.mark.crash, pytest.mark.timeout(200)]

T0 = streams.T0
WINDOW_S = 600
INLINE: dict[str, Any] = {"stream.mode": "inline"}


@pytest.fixture
def new_world(kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewWorld]:
    features: list[dict[str, object]] = [{"name": "x1"}, {"name": "x2", "missing": "zero"}]
    with worlds(kafka, redis_url, tmp_path_factory, features) as make:
        yield make


def _features(ids: Iterable[int]) -> list[Event]:
    return [feature(f"e-{i}", T0 + i, x1=float(i % 7), x2=i / 10) for i in ids]


def _labels(ids: Iterable[int], delay_ms: int = 1000) -> list[Event]:
    return [label(f"e-{i}", T0 + i + delay_ms, i % 2) for i in ids]


def _watermarks(ts: int) -> list[Event]:
    return [Event(topic, None, json.dumps({"watermark": ts}).encode(), 0) for topic in ("features", "labels")]


# -- who comes first ------------------------------------------------------------------------------------------------


def test_both_orders_of_arrival_meet_at_a_live_edge(new_world: NewWorld) -> None:
    world = new_world(join__window_s=WINDOW_S)
    world.start("--init")
    world.send(_labels(range(200)))
    world.wait_until_taken(200)
    assert world.ledger() == Ledger(consumed=200, pending=200), "labels wait"
    world.send(_features(range(300)))
    world.wait_until_taken(500)
    assert world.ledger() == Ledger(consumed=500, trained=400, pending=100), "now features wait"
    world.send(_labels(range(200, 300)))
    world.wait_until_taken(600)
    assert world.ledger() == Ledger(consumed=600, trained=600)
    assert world.checkpoint().learner.examples == 300


def test_a_label_after_the_window_is_late_and_its_feature_expired(new_world: NewWorld) -> None:
    world = new_world(join__window_s=WINDOW_S)
    world.start("--init")
    world.send(_features(range(20)))
    world.send(_labels(range(10), WINDOW_S * 1000))  # the last moment
    world.send(_labels(range(10, 20), WINDOW_S * 1000 + 1000))
    world.send(_watermarks(T0 + 3 * WINDOW_S * 1000))
    world.wait_until_taken(42)
    assert world.ledger() == Ledger(consumed=42, trained=20, expired=10, late=10, control=2)


def test_one_id_repeated_and_contradicted_across_restarts_contributes_once(new_world: NewWorld) -> None:
    """A restart between any two of the steps; only an exact comparison finds what was learned twice."""
    world = new_world()
    steps = [
        feature("e-1", T0, x1=1.0, x2=2.0),
        label("e-1", T0 + 10, 1),
        label("e-1", T0 + 10, 1),
        label("e-1", T0 + 20, 0),
        feature("e-1", T0, x1=5.0, x2=-3.0),
    ]
    digests = []
    for step in steps:
        world.send([step])
        world.drain()
        digests.append(world.digest())
    assert world.ledger() == Ledger(consumed=5, trained=2, duplicate=2, dead_lettered=1)
    assert [letter[-1] for letter in world.dead_letters()] == ["label_conflict"]
    assert len(world.read("dead-letters")) == 1
    assert digests[1:] == digests[1:2] * 4
    assert digests[0] != digests[1]


def test_waiting_features_survive_a_kill_and_meet_their_labels(new_world: NewWorld) -> None:
    """The store holds no payloads; what waits is read again."""
    world = new_world()
    child = world.start("--init")
    world.send(_features(range(500)))
    world.wait_until_taken(500)
    child.kill()
    child.wait()
    assert world.ledger().pending == 500
    again = world.start()
    world.send(_labels(range(500)))
    world.wait_until_taken(1000)
    assert world.ledger() == Ledger(consumed=1000, trained=1000)
    assert again.stop() == 0
    undisturbed = new_world(events_of=world)
    undisturbed.drain()
    assert world.ledger() == undisturbed.ledger()
    assert world.checkpoint().learner.examples == 500


def test_a_drain_that_nothing_can_free_ends_and_names_the_silent_topic(new_world: NewWorld) -> None:
    world = new_world(join__max_pending=50)
    world.send([*_labels(range(10)), *_features(range(80))])
    child = world.start("--init", "--drain")
    assert child.wait() == 8, child.tail()
    line = child.tail().splitlines()[-1]
    assert f"topic {world.topics['labels']} has nothing left" in line
    assert "join.max_pending" in line
    assert world.ledger() == Ledger(consumed=70, trained=20, pending=50), "what could be taken is committed"
    world.send(_labels(range(10, 80)))
    world.drain()
    assert world.ledger() == Ledger(consumed=160, trained=160)


# -- what is no event -----------------------------------------------------------------------------------------------


def test_null_keys_and_null_values_each_have_their_meaning(new_world: NewWorld) -> None:
    world = new_world()
    first = [
        Event("features", "e-1", None),
        Event("features", None, feature("e-2", T0, x1=1.0).value, 0),
        Event("features", None, b"", 0),
    ]
    world.send(first)
    _send_neither(world)
    world.send([
        label("e-2", T0 + 5, 1),
        feature("e-3", T0, x1=1.0),
        Event("features", "e-3", None),
        label("e-3", T0 + 5, 1),
    ])  # fmt: skip
    world.drain()
    assert world.ledger() == Ledger(consumed=8, trained=2, dead_lettered=2, withdrawn=3, pending=1)
    assert [(offset, reason) for _, _, offset, reason in world.dead_letters()] == [(2, "empty"), (3, "bad_id")]


class _Nothing(Serializer):  # type: ignore[misc]
    def serialize(self, topic: str, headers: object, data: object) -> None:
        """Make null of anything."""


def _send_neither(world: World) -> None:
    """Send a record without key and value; this client refuses to, other ones do not."""
    with closing(KafkaProducer(bootstrap_servers=world.kafka, value_serializer=_Nothing())) as producer:
        producer.send(world.topics["features"], value="nothing", partition=0).get(10)


def test_poison_pills_are_passed_once_also_where_the_worker_is_killed_behind_them(new_world: NewWorld) -> None:
    """The skip is committed although there was nothing to learn."""
    bad = [b"\xff\xfe{", b'{"id":', b"[1,2]", b'"text"', b"null", b"{}"]
    world = new_world()
    child = world.start("--init")
    world.send(Event("features", "k", value) for value in bad)
    world.wait_until_taken(6)
    child.kill()
    child.wait()
    assert world.ledger() == Ledger(consumed=6, dead_lettered=6)
    assert [record.value for record in world.read("dead-letters")] == bad
    world.send([feature("e-1", T0, x1=1.0), label("e-1", T0, 1)])
    world.drain()
    assert world.ledger() == Ledger(consumed=8, trained=2, dead_lettered=6)
    assert len(world.read("dead-letters")) == 6, "none of those before the commit is sent again"
    reasons = [reason for *_, reason in world.dead_letters()]
    assert reasons == ["not_json", "not_json", "not_object", "not_object", "not_object", "missing_field"]


# -- how records travel ---------------------------------------------------------------------------------------------


def test_what_a_transaction_aborted_is_never_trained_and_no_lag_is_left(new_world: NewWorld, apache_kafka: str) -> None:
    """Markers and aborted records occupy offsets, also as the last ones of a partition."""
    world = new_world()

    def transaction(events: list[Event], *, abort: bool = False) -> None:
        pairs = [(event.key.encode() if event.key else None, event.value) for event in events]
        produce_transaction(apache_kafka, world.topics["features"], pairs, abort=abort)

    transaction(_features([1, 2]))
    transaction(_features([3]), abort=True)
    world.send(_labels([1, 2, 3]))
    world.drain()
    assert world.ledger() == Ledger(consumed=5, trained=4, pending=1)
    child = world.start()
    assert _lag(world) == 0
    transaction(_features([4, 5]), abort=True)  # nothing to learn, only offsets to pass
    wait_for(lambda: _lag(world) == 0 and _all_passed(world), "lag 0 behind the markers")
    assert child.stop() == 0
    world.drain()
    assert world.ledger() == Ledger(consumed=5, trained=4, pending=1)


def _lag(world: World) -> int:
    lag = world.json("status")["lag"]
    assert len(lag) == 2, lag
    return sum(lag.values()) if all(isinstance(n, int) for n in lag.values()) else -1


def _all_passed(world: World) -> bool:
    return max(world.positions().values()) >= 7


def test_every_codec_is_read_and_a_giant_is_refused_by_its_size(new_world: NewWorld, kafka: str) -> None:
    """Five batches, one per codec, and an event of 8 MB before the last one."""
    world = new_world(**INLINE)
    events = [example(f"e-{i}", T0 + i, i % 2, x1=float(i)) for i in range(6)]
    many = ",".join(f'"f{i}": {i}.0000000000000000000000000' for i in range(200_000))
    giant = f'{{"id": "e-9", "ts": {T0}, "label": 1, "features": {{{many}}}}}'.encode()
    assert len(giant) > 7_000_000
    topic = world.topics["examples"]
    for event, codec in zip(events[:5], CODECS, strict=True):
        produce(kafka, topic, [(None, event.value)], codec=codec)
    produce(kafka, topic, [(b"e-9", giant)])
    produce(kafka, topic, [(None, events[5].value)])
    world.drain()
    assert world.ledger() == Ledger(consumed=7, trained=6, dead_lettered=1)
    assert world.dead_letters() == [(topic, 0, 5, "too_large")]
