import json
import threading
from dataclasses import dataclass, field

from worker.local.flights import Event
from worker.local.replay import Plan, Replay

EVENTS = [
    Event("features", b"a", b"1", 1_000),
    Event("labels", b"a", b"2", 61_000),
    Event("features", b"b", b"3", 61_000),
]
TOPICS = {"features": "f", "labels": "l"}


@dataclass
class Pipe:
    """Keeps what it is given."""

    sent: list[tuple[str, bytes | None, bytes, int | None]] = field(default_factory=list)
    flushed_at: list[int] = field(default_factory=list)

    def partitions(self, topic: str) -> list[int]:
        return {"f": [0, 1], "l": [0, 1]}[topic]

    def send(self, topic: str, key: bytes | None, value: bytes, partition: int | None = None) -> None:
        self.sent.append((topic, key, value, partition))

    def flush(self, timeout_s: float = 30.0) -> None:
        self.flushed_at.append(len(self.sent))


class Waits(threading.Event):
    """Waiting takes no time: it moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        self.now += timeout or 0.0
        return self.is_set()


def plan(speed: float = 0, watermark: int = -1, mark_every: int = 0) -> Plan:
    return Plan(EVENTS, TOPICS, speed, watermark, mark_every)  # type: ignore[arg-type]


def test_events_go_to_the_topic_of_their_role_with_their_key_and_in_order() -> None:
    pipe = Pipe()
    assert Replay(plan(), pipe, threading.Event()).run()
    assert pipe.sent == [("f", b"a", b"1", None), ("l", b"a", b"2", None), ("f", b"b", b"3", None)]


def test_a_watermark_goes_to_every_partition_of_both_topics_after_all_events_have_arrived() -> None:
    pipe = Pipe()
    replay = Replay(plan(watermark=999), pipe, threading.Event())
    assert replay.run()
    assert [(topic, key, partition) for topic, key, _, partition in pipe.sent[3:]] == [
        ("f", None, 0), ("f", None, 1), ("l", None, 0), ("l", None, 1)
    ]  # fmt: skip
    assert all(json.loads(value) == {"watermark": 999} for _, _, value, _ in pipe.sent[3:])
    assert pipe.flushed_at[:2] == [3, 7]
    assert replay.sent == replay.total == 7


def test_watermarks_on_the_way_carry_the_event_time_reached_and_are_batches_of_their_own() -> None:
    pipe = Pipe()
    replay = Replay(plan(watermark=999_999, mark_every=2), pipe, threading.Event())
    assert replay.run()
    marks = [(i, json.loads(value)["watermark"]) for i, (_, key, value, _) in enumerate(pipe.sent) if key is None]
    assert marks == [(i, 61_000) for i in (2, 3, 4, 5)] + [(i, 999_999) for i in (7, 8, 9, 10)]
    assert {2, 6, 7, 11} <= set(pipe.flushed_at)
    assert (replay.marks, replay.sent, replay.total) == (8, 11, 11)


def test_time_between_events_is_divided_by_the_speed() -> None:
    waits = Waits()
    assert Replay(plan(speed=30), Pipe(), waits, lambda: waits.now).run()
    assert waits.waited == [0.0, 2.0, 0.0]


def test_as_fast_as_it_goes_never_waits() -> None:
    waits = Waits()
    assert Replay(plan(speed=0), Pipe(), waits, lambda: waits.now).run()
    assert waits.waited == []


def test_a_stopped_replay_sends_no_more_and_says_so() -> None:
    stop, pipe = threading.Event(), Pipe()
    stop.set()
    replay = Replay(plan(watermark=999), pipe, stop)
    assert not replay.run()
    assert pipe.sent == []
