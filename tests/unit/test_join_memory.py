"""What waiting costs: memory per waiting event, and nothing for events that have left."""

import gc
import json
import subprocess
import sys
import textwrap
import tracemalloc

import pytest

from tests.unit.joins import WINDOW, Log, Reader, columns, feature, label, pair_logs, watermark
from worker.stream.join import JoinRules
from worker.stream.memory import Memory
from worker.stream.positions import SideState
from worker.stream.records import TopicPartition
from worker.stream.side import SPARE, Side

OVERHEAD_BYTES = 512  # a waiting event beside its packed row: what docs/join.md promises
FEATURES, LABELS = TopicPartition("features", 0), TopicPartition("labels", 0)


def grown(n: int) -> tuple[Reader, float]:
    """Return a reader in which `n` features wait, and the bytes that they take each, as Python's allocator counts."""
    logs = pair_logs([], [])
    reader = Reader(logs, JoinRules(window_ms=10**9))
    gc.collect()
    tracemalloc.start()
    for start in range(0, n, 1000):
        part: Log = [feature(f"{i:08d}-abcd", i, x=i) for i in range(start, start + 1000)]
        reader.logs = pair_logs([*[None] * start, *part], [])
        reader.read(FEATURES, 1000)
        reader.pass_all()
        reader.intake.take()
        if start % 10_000 == 0:
            reader.commit()
            reader.works.clear()
    reader.logs = logs
    del part
    reader.commit()
    reader.works.clear()
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return reader, used / n


def test_a_waiting_feature_takes_its_row_and_a_stated_number_of_bytes() -> None:
    reader, each = grown(20_000)
    assert reader.intake.pending()["features"] == 20_000
    assert each < OVERHEAD_BYTES + 8


def test_events_that_have_left_leave_nothing_behind() -> None:
    """Neither the heap of expiry times nor the memory of ids grows with what has passed through."""
    n, rules = 20_000, JoinRules(window_ms=10**9, remember=500)
    features = [feature(str(i), i) for i in range(n)]
    labels = [label(str(i), i) for i in range(n)]
    reader = Reader(pair_logs(features, labels), rules).finish()
    join = reader.intake.pairs[0].join
    assert len(reader.committed) == n
    assert len(join.sides[0].heap) <= SPARE
    assert len(join.memory.ids) <= 2 * rules.remember + 2 * SPARE
    assert sum(len(side.new_waiting) + len(side.gone) + len(side.new_trained) for side in join.sides) == 0


def test_a_commit_clears_the_heap_where_events_only_leave() -> None:
    n = 3 * SPARE
    reader = Reader(pair_logs([feature(str(i), 0) for i in range(n)], [label(str(i), 1) for i in range(n)]))
    reader.read(FEATURES)
    reader.pass_all()
    reader.intake.take()
    assert len(reader.intake.pairs[0].join.sides[0].heap) == n
    reader.finish()
    assert len(reader.intake.pairs[0].join.sides[0].heap) <= SPARE


def test_the_memory_of_ids_keeps_what_either_topic_remembers() -> None:
    state = SideState("t", "", 0, -1, -1, 0, b"", b"")
    sides: tuple[Side[tuple[int, int]], Side[tuple[int, int]]] = (Side(state), Side(state))
    memory = Memory(sides, limit=10)
    sides[0].next_offset, sides[1].next_offset = 5000, 100
    memory.add("by its label", 0, 95, 1.0)
    memory.add("by its feature", 4995, 0, 1.0)
    for i in range(2 * SPARE):
        memory.add(f"by neither {i}", 0, 0, 1.0)
    assert len(memory.ids) < SPARE + 20
    assert memory.holds("by its label")
    assert memory.holds("by its feature")
    assert not memory.holds(f"by neither {2 * SPARE - 1}")
    assert memory.label("by its label") == 1.0
    assert memory.label("by its feature") is None


def test_features_wait_up_to_the_bound_exactly_when_it_is_large() -> None:
    """Far from the bound records are taken many at a time; that must not step over it."""
    bound, n = 1500, 4000
    reader = Reader(
        pair_logs([feature(str(i), i, x=i) for i in range(n)], [label(str(i), i) for i in range(n)]),
        JoinRules(window_ms=10**9, max_pending=bound),
    )
    reader.read(FEATURES)
    reader.pass_all()
    assert reader.intake.take() == bound
    reader.finish()
    assert [e[0] for e in reader.committed] == list(range(n))


@pytest.mark.parametrize("on_expiry", ["drop", "negative"])
def test_features_without_labels_wait_and_then_leave_with_the_ledger_balanced(on_expiry: str) -> None:
    n = 20_000
    rules = JoinRules(window_ms=WINDOW, on_expiry="negative" if on_expiry == "negative" else "drop")
    reader = Reader(pair_logs([feature(str(i), i) for i in range(n)], [watermark(n - 1)]), rules)
    reader.read(FEATURES)
    reader.pass_all()
    reader.intake.take()
    reader.commit()
    assert columns(reader.ledger()) == {"consumed": n, "pending": n}
    reader.finish()
    left = n - WINDOW - 1
    outcome = "trained" if on_expiry == "negative" else "expired"
    assert columns(reader.ledger()) == {"consumed": n + 1, outcome: left, "control": 1, "pending": n - left}
    assert len(reader.committed) == (left if on_expiry == "negative" else 0)


@pytest.mark.slow
def test_a_million_features_without_labels_stay_under_the_stated_bound() -> None:
    """Rows of 45 numbers (about 1 KB as JSON), in a process of its own: resident memory, allocator and all."""
    program = textwrap.dedent(
        """
        import json, resource
        from tests.unit.joins import T0, fresh
        from worker.spec import Feature, Spec
        from worker.stream.events import Events
        from worker.stream.intake import Intake
        from worker.stream.join import JoinRules
        from worker.stream.records import Records, TopicPartition
        from worker.stream.rows import RowFormat

        rows = RowFormat(Spec(tuple(Feature(f"x{i}") for i in range(45))))
        intake = Intake(True, JoinRules(window_ms=10**9, max_pending=2_000_000), rows, 64)
        intake.own(fresh(0))
        rss = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        before, n, chunk = rss(), 1_000_000, 1000
        for start in range(0, n, chunk):
            offsets = list(range(start, start + chunk))
            records = Records(TopicPartition("features", 0), offsets, [-1] * chunk, [None] * chunk, [b""] * chunk, start + chunk)
            ids, times = [f"{i:08d}-abcd" for i in offsets], [T0 + i for i in offsets]
            payload = [rows.pack(*[float(i)] * 45) for i in offsets]
            intake.add(Events(records, [0] * chunk, ids, times, payload, [], [1.0] * chunk, {}))
            for lane in intake.lanes():
                lane.passed = True
            intake.take()
            if start % 100_000 == 0:
                intake.settle(intake.work())
        ledger = intake.work().partitions[0].ledger
        print(json.dumps([(rss() - before) / n - rows.size, ledger.balanced(), ledger.consumed, ledger.pending]))
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    each, balanced, consumed, waiting = json.loads(done.stdout)
    assert (balanced, consumed, waiting) == (True, 1_000_000, 1_000_000)
    assert each < OVERHEAD_BYTES
