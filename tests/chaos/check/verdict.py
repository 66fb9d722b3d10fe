"""Judges a finished run: topics against commit log, ledger, bitmaps, dead letters and weights. Part of the checker.

Pure: what was read from Kafka and Redis comes in, findings go out. No finding is hidden by an earlier one, except that
nothing is compared along a log whose chain or offsets are broken.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from tests.chaos.check.due import Due, due
from tests.chaos.check.events import Record, Rules, Seen, decode
from tests.chaos.check.pairs import Learned, Pair
from tests.chaos.check.stored import MARK, Books, Entry, Model, Stored
from tests.unit.reference import PlainModel, Settings

CLOSE = 1e-9
SHOWN = 12  # findings of one kind that are spelled out


@dataclass
class Findings:
    """What the checker counts; `problems` says where. Everything but the first three has to be 0."""

    records: int = 0
    examples_due: int = 0  # settled by the topics alone, and those that the order decided
    learned: int = 0
    lost: int = 0
    doubly_learned: int = 0
    unbalanced: int = 0
    broken_chain: int = 0
    miscounted_commits: int = 0
    wrong_columns: int = 0
    wrong_letters: int = 0
    wrong_weights: int = 0
    settled: int = 0  # share of records of which the topics alone say what they must become
    commits: int = 0
    problems: list[str] = field(default_factory=list)

    def say(self, problem: str) -> None:
        self.problems.append(problem)

    @property
    def sound(self) -> bool:
        return not self.problems

    def counters(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if name != "problems"}


@dataclass(frozen=True)
class Case:
    """A run as it was read. `topics` by (role, partition); `names` of the event topics by role, in order of sides."""

    rules: Rules
    learning: Settings
    names: Mapping[str, str]
    topics: Mapping[tuple[str, int], Sequence[Record]]
    stored: Stored
    letters: frozenset[tuple[str, int, int, str]]


class Judge:
    """Walks the commit log once, with a join and a learner of its own."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.found = Findings()
        self.roles = list(case.names)
        self.seen: dict[tuple[str, int], dict[int, Seen]] = {
            (role, n): {record.offset: decode(record, role, case.rules) for record in records}
            for (role, n), records in case.topics.items()
        }
        self.partitions = sorted({n for _, n in self.seen})
        begins = {n: tuple(min(self.seen[role, n], default=0) for role in self.roles) for n in self.partitions}
        self.pairs = {n: Pair(n, case.rules, begins[n]) for n in self.partitions}
        numeric = [f for f in case.rules.features if f.get("kind") != "categorical"]
        self.learner = PlainModel.of(case.learning, len(numeric), len(case.rules.features) - len(numeric))
        self.whole = True  # the log could be followed to its end

    def judge(self) -> Findings:
        found, case = self.found, self.case
        found.records = sum(map(len, self.seen.values()))
        found.commits = len(case.stored.log)
        self._follow(case.stored.log)
        dues = {n: due([self.seen[role, n] for role in self.roles], case.rules) for n in self.partitions}
        for n in self.partitions:
            self._settled(n, dues[n])
        found.learned = sum(entry.examples for entry in case.stored.log)
        if self.whole:
            for books in case.stored.books:
                self._books(books)
            if missing := set(self.partitions) - {books.partition for books in case.stored.books}:
                self._wrong("wrong_columns", len(missing), f"partitions {sorted(missing)} have no books")
            self._letters()
            self._weights(case.stored.model, case.stored.log[-1] if case.stored.log else None)
        return found

    def _wrong(self, counter: str, count: int, problem: str) -> None:
        setattr(self.found, counter, getattr(self.found, counter) + count)
        self.found.say(f"{counter}: {problem}")

    # -- the log --------------------------------------------------------------------------------------------------

    def _follow(self, log: Sequence[Entry]) -> None:
        version = ""
        for entry in log:
            root = entry.kind in ("init", "reset")
            if entry.base != ("" if root else version):
                self.whole = False
                self._wrong("broken_chain", 1, f"{entry.version} stands on {entry.base!r}, {version!r} was before it")
            version = entry.version
            if entry.kind == "train":
                self._commit(entry)
        if version != self.case.stored.model.version:
            self.whole = False
            self._wrong(
                "broken_chain", 1, f"the log ends with {version}, the state is {self.case.stored.model.version}"
            )

    def _commit(self, entry: Entry) -> None:
        places = [(self._role(topic), partition) for topic, partition, _ in entry.sources]
        for (role, n), (_, _, first) in zip(places, entry.sources, strict=True):
            side = self.pairs[n].sides[self.roles.index(role)]
            if first != side.next:
                self.whole = False
                counter, count = (
                    ("doubly_learned", side.next - first) if first < side.next else ("lost", first - side.next)
                )
                self._wrong(
                    counter, count, f"{entry.version} ({entry.worker}): {role} {n} from {first}, not {side.next}"
                )
                side.next = first
        examples: list[Learned] = []
        for code in entry.order:
            role, n = places[code & (MARK - 1)]
            pair, index = self.pairs[n], self.roles.index(role)
            if code >= MARK:
                examples += pair.follow()
                continue
            offset = pair.sides[index].next
            seen = self.seen[role, n].get(offset)
            if seen is None:
                self.whole = False
                self._wrong("broken_chain", 1, f"{entry.version}: {role} {n} has no record {offset}")
            elif offset not in pair.sides[index].columns:
                examples += pair.take(index, offset, seen)
            pair.sides[index].next = offset + 1
        if self.whole and len(examples) != entry.examples:
            self._wrong("miscounted_commits", 1, f"{entry.version}: {entry.examples} examples, {len(examples)} due")
        self._learn(examples, entry.batch_size)

    def _role(self, topic: str) -> str:
        return next(role for role, name in self.case.names.items() if name == topic)

    def _learn(self, examples: Sequence[Learned], size: int) -> None:
        for low in range(0, len(examples), size):
            batch = examples[low : low + size]
            self.learner.learn([(e.row.numbers, e.row.buckets, e.label, e.weight) for e in batch])

    # -- what the topics alone say --------------------------------------------------------------------------------

    def _settled(self, n: int, expected: Due) -> None:
        found, pair = self.found, self.pairs[n]
        learned = Counter((e.feature, e.label_offset) for e in pair.learned)
        ids = [self.seen[role, n] for role in self.roles]
        by_order = [e for e in learned.elements() if ids[0][e[0]].id in expected.open_ids]
        found.settled += len(expected.columns)
        found.examples_due += len(expected.examples) + len(by_order)
        if missing := expected.examples - set(learned):
            self._wrong("lost", len(missing), f"partition {n}: {sorted(missing)[:SHOWN]} were never learned")
        if twice := {e for e, times in learned.items() if times > 1}:
            self._wrong("doubly_learned", len(twice), f"partition {n}: {sorted(twice)[:SHOWN]}")
        if extra := set(learned) - expected.examples - set(by_order):
            self._wrong("doubly_learned", len(extra), f"partition {n}: {sorted(extra)[:SHOWN]} were not due")
        columns = {(i, offset): c for i, side in enumerate(pair.sides) for offset, c in side.columns.items()}
        if wrong := {place for place, column in expected.columns.items() if columns.get(place, column) != column}:
            shown = [(place, expected.columns[place], columns[place]) for place in sorted(wrong)[:SHOWN]]
            self._wrong("wrong_columns", len(wrong), f"partition {n}: (side, offset), due, is: {shown}")
        for index, role in enumerate(self.roles):
            if untaken := self.seen[role, n].keys() - pair.sides[index].columns.keys():
                self._wrong("lost", len(untaken), f"{role} {n}: records {sorted(untaken)[:SHOWN]} were never taken")

    # -- what is stored -------------------------------------------------------------------------------------------

    def _books(self, books: Books) -> None:
        pair, n = self.pairs[books.partition], books.partition
        if not books.balanced:
            self._wrong("unbalanced", 1, f"partition {n}: {dict(books.ledger)}")
        expected = pair.ledger()
        if wrong := {c: (expected[c], count) for c, count in books.ledger.items() if count != expected[c]}:
            self._wrong("wrong_columns", len(wrong), f"partition {n}: column: (due, is) {wrong}")
        for index, side in enumerate(books.sides):
            mine = pair.sides[index]
            limit = max(0, mine.next - self.case.rules.remember)
            if side.next_offset != mine.next:
                self._wrong("wrong_columns", 1, f"{side.topic} {n}: next offset {side.next_offset}, due {mine.next}")
            if wrong_bits := side.pending ^ pair.offsets(index, "pending"):
                self._wrong("wrong_columns", len(wrong_bits), f"{side.topic} {n}: pending {sorted(wrong_bits)[:SHOWN]}")
            trained = {offset for offset in pair.offsets(index, "trained") if offset >= limit}
            if wrong_bits := side.trained ^ trained:
                self._wrong("wrong_columns", len(wrong_bits), f"{side.topic} {n}: trained {sorted(wrong_bits)[:SHOWN]}")

    def _letters(self) -> None:
        due_letters = {
            (self.case.names[role], n, offset, reason)
            for n, pair in self.pairs.items()
            for role, side in zip(self.roles, pair.sides, strict=True)
            for offset, reason in side.refused.items()
        }
        if wrong := due_letters ^ self.case.letters:
            missing = len(due_letters - self.case.letters)
            self._wrong("wrong_letters", len(wrong), f"{missing} missing of {len(wrong)}: {sorted(wrong)[:SHOWN]}")

    def _weights(self, model: Model, last: Entry | None) -> None:
        if last is not None and last.digest != model.digest:
            self._wrong("wrong_weights", 1, f"the log says digest {last.digest}, the state is {model.digest}")
        arrays, mine = model.arrays, self.learner
        numeric = len(mine.numbers)
        sizes = [(1 << int(f["bits"])) + 1 for f in self.case.rules.features if f.get("kind") == "categorical"]
        tables = [[table.get(b, 0.0) for b in range(size)] for table, size in zip(mine.tables, sizes, strict=True)]
        expected = {
            "weight": [*mine.numbers, *(w for table in tables for w in table)],
            "intercept": [mine.intercept],
            "normalizer.mean": [s.mean for s in mine.statistics],
            "normalizer.m2": [s.m2 for s in mine.statistics],
            "normalizer.count": [float(s.n) for s in mine.statistics],
            "counters.examples": [float(mine.rows)],
        }
        assert numeric == len(mine.statistics)
        for name, due_values in expected.items():
            values = [float(v) for v in arrays[name]]
            wrong = [
                i
                for i, (a, b) in enumerate(zip(values, due_values, strict=True))
                if not math.isclose(a, b, rel_tol=CLOSE, abs_tol=CLOSE)
            ]
            if wrong:
                i = max(wrong, key=lambda i: abs(values[i] - due_values[i]))
                self._wrong(
                    "wrong_weights", 1, f"{name}[{i}] is {values[i]!r}, due {due_values[i]!r} ({len(wrong)} differ)"
                )


def judge(case: Case) -> Findings:
    """Compare a finished run with what its topics demand."""
    return Judge(case).judge()
