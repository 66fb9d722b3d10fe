"""Two weeks of real flights as feature and label events: departures from New York, 1 to 14 January 2013.

A feature event says what is known at the scheduled departure; its label, more than 15 minutes late or not, is known
at the true arrival, half an hour to a day and a half later; for a cancelled flight it never comes. Pure: reads the
data file beside it and no clock. Source and licence: data/README.md.
"""

import csv
import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Literal, NamedTuple

from worker.spec import Feature

LATE_AFTER_MIN = 15
WINDOW_S = 48 * 3600  # the longest way from scheduled departure to arrival is 33 hours

# One definition for demo, container stack and tests. What is known only later (dep_time, dep_delay, arr_time,
# arr_delay, air_time, and so the plane's own lateness) is left out: a model that saw it would be useless at departure.
FEATURES: tuple[Feature, ...] = (
    Feature("distance_miles"),
    Feature("planned_minutes"),
    Feature("departs_hours"),
    Feature("departs_sin"),
    Feature("departs_cos"),
    Feature("arrives_sin"),
    Feature("arrives_cos"),
    Feature("carrier", "categorical", bits=8),
    Feature("origin", "categorical", bits=6),
    Feature("destination", "categorical", bits=10),
    Feature("departs_hour", "categorical", bits=8),
)

# Hours between New York and the destination in January. Arrival times are local, and only these differ from New York.
_ZONES: Mapping[int, str] = {
    1: "BQN PSE SJU STT",
    -1: "AUS BHM BNA DFW DSM HOU IAH MCI MDW MEM MKE MSN MSP MSY OKC OMA ORD SAT STL TUL XNA",
    -2: "BZN DEN EGE HDN JAC MTJ PHX SLC",
    -3: "BUR LAS LAX LGB OAK PDX PSP SAN SEA SFO SJC SMF SNA",
    -5: "HNL",
}
_HOURS_FROM_NEW_YORK = {airport: hours for hours, airports in _ZONES.items() for airport in airports.split()}

Role = Literal["features", "labels"]


class Event(NamedTuple):
    """One record to send: which topic, its key (the id), its value, and its event time in milliseconds."""

    role: Role
    key: bytes
    value: bytes
    ts: int
    spoiled: str = ""  # the reason for which it will be refused; "" for a good one


@dataclass(frozen=True, slots=True)
class Flight:
    """`id` is local day, carrier and flight number. Times in milliseconds since 1970; no arrival: cancelled."""

    id: str
    departs_ms: int
    features: Mapping[str, float | str]
    arrived_ms: int | None
    late: int | None


def minutes_of_day(hhmm: str) -> int:
    """Return the minutes since midnight of a clock time written as an integer: `517` is 5:17, `2400` midnight."""
    clock = int(hhmm)
    return (clock // 100 * 60 + clock % 100) % 1440


def planned_minutes(row: Mapping[str, str]) -> int:
    """Return the scheduled minutes from gate to gate: both times are local, each at its own airport."""
    local = minutes_of_day(row["sched_arr_time"]) - minutes_of_day(row["sched_dep_time"])
    return (local - 60 * _HOURS_FROM_NEW_YORK.get(row["dest"], 0)) % 1440


def scheduled_departure(row: Mapping[str, str]) -> datetime:
    """Return the scheduled departure in UTC. `time_hour` is UTC and whole hours; the clock time has the minutes."""
    hour = datetime.strptime(row["time_hour"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return hour + timedelta(minutes=minutes_of_day(row["sched_dep_time"]) % 60)


def flight(row: Mapping[str, str]) -> Flight:
    """Make a flight of a row of the file. Its arrival is the scheduled one plus `arr_delay`."""
    departs, planned = scheduled_departure(row), planned_minutes(row)
    number = f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}-{row['carrier']}-{row['flight']}"
    known = row["arr_delay"] != "NA"
    delay = int(row["arr_delay"]) if known else 0
    return Flight(
        id=number,
        departs_ms=_ms(departs),
        features=_features(row, planned),
        arrived_ms=_ms(departs + timedelta(minutes=planned + delay)) if known else None,
        late=int(delay > LATE_AFTER_MIN) if known else None,
    )


def flights() -> Iterator[Flight]:
    """Read all flights, in the order of the file."""
    with files("worker.local").joinpath("data", "flights.csv.gz").open("rb") as raw, gzip.open(raw, "rt") as text:
        yield from map(flight, csv.DictReader(text))


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _features(row: Mapping[str, str], planned: int) -> dict[str, float | str]:
    departs, arrives = minutes_of_day(row["sched_dep_time"]), minutes_of_day(row["sched_arr_time"])
    return {
        "distance_miles": float(row["distance"]),
        "planned_minutes": float(planned),
        "departs_hours": round(departs / 60, 3),
        **_clock("departs", departs),
        **_clock("arrives", arrives),
        "carrier": row["carrier"],
        "origin": row["origin"],
        "destination": row["dest"],
        "departs_hour": str(departs // 60),
    }


def _clock(name: str, minutes: int) -> dict[str, float | str]:
    """Place a time of day on a circle, so that 23:59 lies beside 0:00."""
    angle = 2 * math.pi * minutes / 1440
    return {f"{name}_sin": round(math.sin(angle), 6), f"{name}_cos": round(math.cos(angle), 6)}


def events(*, spoil_every: int = 500) -> list[Event]:
    """Return all events by event time. After each `spoil_every`th comes a spoiled copy that has to be refused; 0: none.

    At equal times features come before labels, then ids decide: the order is the same on every machine.
    """
    good = sorted(_good(), key=lambda event: (event.ts, event.role, event.key))
    if not spoil_every:
        return good
    sent: list[Event] = []
    for number, event in enumerate(good, start=1):
        sent.append(event)
        if number % spoil_every == 0:
            sent.append(_spoiled(event, number // spoil_every))
    return sent


def _good() -> Iterator[Event]:
    for one in flights():
        key = one.id.encode()
        yield Event("features", key, _json(id=one.id, ts=one.departs_ms, features=dict(one.features)), one.departs_ms)
        if one.arrived_ms is not None:
            yield Event("labels", key, _json(id=one.id, ts=one.arrived_ms, label=one.late), one.arrived_ms)


def _spoiled(event: Event, turn: int) -> Event:
    """Return a copy with one of the faults that real producers make, in turn."""
    document = json.loads(event.value)
    if turn % 3 == 0:
        document["ts"] = event.ts // 1000
        return event._replace(value=_json(**document), spoiled="bad_timestamp")
    if event.role == "labels":
        document["label"] = 2
        return event._replace(value=_json(**document), spoiled="bad_label")
    wrong = math.nan if turn % 3 == 1 else str(document["features"]["distance_miles"])
    document["features"]["distance_miles"] = wrong
    return event._replace(value=_json(**document), spoiled="not_json" if turn % 3 == 1 else "wrong_type")


def _json(**document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def closing_watermark(sent: Sequence[Event]) -> int:
    """Return a moment so late that everything which still waits for a partner then has expired."""
    return max(event.ts for event in sent) + WINDOW_S * 1000 + 1
