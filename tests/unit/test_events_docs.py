"""The tables of inputs and outcomes in docs/events.md, row by row through the decoder."""

import json
import math
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from worker.spec import Feature, Role, Spec, Task
from worker.stream.dead_letters import REASONS
from worker.stream.events import Decoder, EventKind, Events
from worker.stream.records import Records, TopicPartition
from worker.stream.rows import RowFormat

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text("utf-8")
FEATURES = (
    Feature("x1", max_abs=1e6),
    Feature("x2", missing="zero"),
    Feature("x3", missing="reject"),
    Feature("carrier", "categorical", bits=4),
)
ROLES: dict[str, tuple[Role, Task]] = {
    "features": ("features", "binary"),
    "labels": ("labels", "binary"),
    "labels regression": ("labels", "regression"),
    "key": ("features", "binary"),
}


class Row(NamedTuple):
    """One row: which topic (or the key of a null value), the template of the table, input and outcome as written."""

    topic: str
    template: str
    given: str
    outcome: str


def rows() -> list[Row]:
    found = []
    topic = template = ""
    for line in PAGE.partition("## Inputs and outcomes")[2].splitlines():
        if checked := re.fullmatch(r"<!-- checked: (features|labels regression|labels|key) (.*) -->", line):
            topic, template = checked.groups()
        elif row := re.fullmatch(r"\| (`.*?`|null) \| `(.*?)` \| ?.*\|", line):
            found.append(Row(topic, template, row[1].strip("`"), row[2]))
        else:
            assert not line.startswith("| `"), f"not read as a row: {line}"
    return found


def as_bytes(text: str) -> bytes:
    pieces = re.split(r"‹([0-9A-F ]*)›", text)
    return b"".join(bytes.fromhex(p) if i % 2 else p.encode() for i, p in enumerate(pieces))


def decode(row: Row) -> Events:
    role, task = ROLES[row.topic]
    given = as_bytes(row.template.replace("%s", row.given))
    key, value = (None if row.given == "null" else given, None) if row.topic == "key" else (b"k", given)
    records = Records(TopicPartition("t", 0), [0], [1_764_000_000_000], [key], [value], 1)
    return Decoder(Spec(FEATURES, task=task), role).decode(records)


def said(events: Events, outcome: str) -> str:
    """Write down what became of a record, in the words and for the fields of the outcome in the table."""
    if events.refusals:
        return events.refusals[0].reason
    kind = events.kinds[0]
    if kind == EventKind.TOMBSTONE:
        return f"withdraws {json.dumps(events.ids[0])}"
    values: dict[str, object] = {"watermark": events.times[0]} if kind == EventKind.WATERMARK else {}
    if kind == EventKind.EVENT:
        values = {"id": json.dumps(events.ids[0]), "ts": events.times[0], "weight": events.weights[0]}
        if events.labels:
            values["label"] = f"{events.labels[0]:.17g}"
        if events.rows:
            dense, buckets = RowFormat(Spec(FEATURES)).matrix(events.rows)
            numbers = {f"x{i + 1}": "mean" if math.isnan(x) else f"{x:.17g}" for i, x in enumerate(dense[0].tolist())}
            values |= {**numbers, "carrier": int(buckets[0, 0])}
    fields = re.findall(r"(?:^|, )(\w+) = ", outcome)
    return ", ".join(f"{field} = {values.get(field)}" for field in fields)


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.topic} {row.given}"[:60]) for row in rows()])
def test_the_product_does_what_the_page_says(row: Row) -> None:
    assert said(decode(row), row.outcome) == row.outcome


def test_the_page_has_its_tables() -> None:
    """A change of their form that hides rows from the test above must not pass."""
    assert len(rows()) > 100
    assert {row.topic for row in rows()} == set(ROLES)


def test_the_page_lists_every_reason_in_the_order_that_applies() -> None:
    listed = re.findall(
        r"^\| `(\w+)` \|", PAGE.partition("which reason is given")[2].partition("## Inputs")[0], re.MULTILINE
    )
    assert listed == list(REASONS)
