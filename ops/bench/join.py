"""Order and join: µs a record from decoded columns to finished examples, over a backlog of two topics."""

from ops.bench.decode import CHUNK, chunk
from ops.bench.events import DELAY, SPEC, feature, label
from ops.bench.figure import Figure, cost, timed
from ops.bench.sizes import Sizes
from worker.stream.events import Decoder, Events
from worker.stream.intake import Intake
from worker.stream.join import JoinRules
from worker.stream.positions import Ledger, PartitionState, SideState
from worker.stream.rows import RowFormat

RULES = JoinRules(window_ms=86_400_000)
COMMIT_EVERY = 10_000  # examples


def measure(sizes: Sizes) -> list[Figure]:
    chunks = decoded(sizes.micro)
    taken = timed(lambda: run(chunks), sizes.repeats, 1e6 / (2 * sizes.micro))
    return [cost(f"order and join, labels {DELAY} records late", "µs/record", taken)]


def decoded(n: int) -> list[Events]:
    """Return chunks of features and labels by turns."""
    chunks = []
    features, labels = Decoder(SPEC, "features"), Decoder(SPEC, "labels")
    for start in range(0, n, CHUNK):
        part = range(start, min(n, start + CHUNK))
        chunks.append(features.decode(chunk([feature(i) for i in part], start)))
        chunks.append(labels.decode(chunk([label(i) for i in part], start)))
    return chunks


def fresh_intake(rules: JoinRules = RULES) -> Intake:
    intake = Intake(True, rules, RowFormat(SPEC), 64)
    sides = tuple(SideState(topic, "", 0, -1, -1, 0, b"", b"") for topic in ("features", "labels"))
    intake.own(PartitionState(0, Ledger(), sides))
    return intake


def run(chunks: list[Events]) -> int:
    """Take everything, settling as a worker does; return how many examples were finished."""
    intake, finished = fresh_intake(), 0
    for events in chunks:
        intake.add(events)
        intake.take(COMMIT_EVERY)
        if intake.whole(COMMIT_EVERY):
            finished += _settle(intake)
    for lane in intake.lanes():
        lane.passed = True
    intake.take()
    return finished + _settle(intake)


def _settle(intake: Intake) -> int:
    work = intake.work()
    intake.settle(work)
    return len(work.examples)
