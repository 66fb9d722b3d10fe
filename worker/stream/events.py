"""Records to events: bytes into columns, and a reason for each record that is refused. Pure; never raises on bytes.

Two ways, one outcome: the typed decoder takes what is certainly right, `event_rules` decides everything else.
Nothing here joins, orders or counts time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from worker.spec import Role, Spec
from worker.stream.dead_letters import Refusal
from worker.stream.event_rules import Decoded, EventKind, EventRules, printable
from worker.stream.records import Records
from worker.stream.typed_events import TypedDecoder
from worker.stream.typed_rows import expressible

__all__ = ["Decoder", "EventKind", "Events", "Role"]

_MAX_NAMES = 1000
_OTHER = "other"


@dataclass(slots=True)
class Events:
    """One decoded chunk; every list has one entry a record, in the order of the records.

    `ids`: "" where there is none; of a tombstone its key. `times`: event time or watermark in ms since 1970, -1
    where there is none (refused, tombstone). `rows`: packed rows (`RowFormat`), b"" where there is none; an empty
    list for labels. `labels`: an empty list for features. `refusals` by index, exactly where the kind is REFUSED.
    """

    records: Records
    kinds: list[int]
    ids: list[str]
    times: list[int]
    rows: list[bytes]
    labels: list[float]
    weights: list[float]
    refusals: dict[int, Refusal] = field(default_factory=dict)


class Decoder:
    """Decodes the records of one topic.

    `unknown_features` holds the feature names that were seen and are not in the model, with counts; of at most
    1000 names, the rest together as "other", so that names made of data do not fill the memory.
    """

    def __init__(
        self,
        spec: Spec,
        role: Role,
        *,
        max_event_bytes: int = 1_048_576,
        max_future_s: float = 3600,
        unknown_features: Literal["ignore", "refuse"] = "ignore",
    ) -> None:
        self._has_row = role != "labels"
        self._has_label = role != "features"
        self._unknown: dict[str, int] = {}
        self._new_unknown: list[str] = []
        self._rules = EventRules(
            spec,
            role,
            self._note_unknown,
            max_event_bytes=max_event_bytes,
            max_future_s=max_future_s,
            unknown_features=unknown_features,
        )
        # A name that needs an escape in JSON fits no struct: such a model is decoded slowly, and rightly.
        self._typed = (
            TypedDecoder(spec, role, max_event_bytes=max_event_bytes, max_future_s=max_future_s)
            if expressible(spec)
            else None
        )

    @property
    def unknown_features(self) -> Mapping[str, int]:
        return self._unknown

    def take_new_unknown_features(self) -> list[str]:
        """Return the names first seen since the last call, for one log line a name."""
        new, self._new_unknown = self._new_unknown, []
        return new

    def decode(self, records: Records) -> Events:
        """Decode a chunk; the outcome of a record depends on that record alone."""
        events, doubtful = self._plain_events(records)
        for i in doubtful:
            content_type = records.content_types.get(i, b"")
            outcome = self._rules.read(records.keys[i], records.values[i], records.timestamps[i], content_type)
            self._put(events, i, outcome)
        return events

    def _plain_events(self, records: Records) -> tuple[Events, list[int]]:
        """Return the columns with all plain events in place, and the indices of all other records."""
        n = len(records)
        if self._typed is None or n == 0:
            rows, labels = [b""] * (n * self._has_row), [0.0] * (n * self._has_label)
            return Events(records, [EventKind.EVENT] * n, [""] * n, [-1] * n, rows, labels, [1.0] * n), list(range(n))
        values = records.values
        if records.content_types:  # a header decides whether the value is read at all: left to the rules
            values = [None if i in records.content_types else v for i, v in enumerate(values)]
        typed = self._typed.decode(values, records.timestamps)
        kinds: list[int] = [EventKind.EVENT] * n
        events = Events(records, kinds, typed.ids, typed.times, typed.rows, typed.labels, typed.weights)
        return events, np.flatnonzero(~typed.certain).tolist()

    def _put(self, events: Events, i: int, outcome: Decoded | Refusal) -> None:
        if isinstance(outcome, Refusal):
            events.refusals[i] = outcome
            outcome = Decoded(EventKind.REFUSED, "", -1)
        events.kinds[i] = outcome.kind
        events.ids[i] = outcome.id
        events.times[i] = outcome.time
        events.weights[i] = outcome.weight
        if self._has_row:
            events.rows[i] = outcome.row
        if self._has_label:
            events.labels[i] = outcome.label

    def _note_unknown(self, name: str) -> None:
        name = printable(name)
        if name not in self._unknown:
            if len(self._unknown) >= _MAX_NAMES:
                name = _OTHER
            if name not in self._unknown:
                self._new_unknown.append(name)
        self._unknown[name] = self._unknown.get(name, 0) + 1
