import csv
import gzip
import json
from collections import Counter
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files

import pytest

from worker.local.flights import (
    FEATURES,
    WINDOW_S,
    Event,
    closing_watermark,
    events,
    flight,
    flights,
    minutes_of_day,
    planned_minutes,
    scheduled_departure,
)

UNKNOWN_AT_DEPARTURE = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")


@cache
def rows() -> tuple[dict[str, str], ...]:
    with files("worker.local").joinpath("data", "flights.csv.gz").open("rb") as raw, gzip.open(raw, "rt") as text:
        return tuple(csv.DictReader(text))


@cache
def all_events() -> tuple[Event, ...]:
    return tuple(events())


@pytest.mark.parametrize(
    ("hhmm", "minutes"), [("517", 317), ("5", 5), ("2359", 1439), ("2400", 0), ("0", 0), ("1000", 600)]
)
def test_clock_times_are_integers_of_hours_and_minutes(hhmm: str, minutes: int) -> None:
    assert minutes_of_day(hhmm) == minutes


def test_the_hour_of_departure_is_utc_and_its_minutes_are_in_the_clock_time() -> None:
    row = {"time_hour": "2013-01-01T10:00:00Z", "sched_dep_time": "529"}
    assert scheduled_departure(row) == datetime(2013, 1, 1, 10, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    ("departs", "arrives", "dest", "minutes"),
    [
        ("515", "819", "IAH", 244),  # an hour behind New York
        ("900", "1526", "HNL", 686),  # five hours behind
        ("545", "1022", "BQN", 217),  # an hour ahead
        ("2250", "15", "BOS", 85),  # over midnight
    ],
)
def test_planned_minutes_count_from_gate_to_gate_across_time_zones(
    departs: str, arrives: str, dest: str, minutes: int
) -> None:
    assert planned_minutes({"sched_dep_time": departs, "sched_arr_time": arrives, "dest": dest}) == minutes


def test_two_ways_to_compute_the_arrival_agree_on_every_flight() -> None:
    """Scheduled arrival + delay, and departure + true time from gate to gate (also: the zone of each destination)."""
    for row in rows():
        if row["arr_delay"] == "NA":
            continue
        clock = {"sched_dep_time": row["dep_time"], "sched_arr_time": row["arr_time"], "dest": row["dest"]}
        on_the_way = planned_minutes(clock)
        assert planned_minutes(row) + int(row["arr_delay"]) == int(row["dep_delay"]) + on_the_way
        assert 0 < on_the_way - int(row["air_time"]) < 180, f"taxiing of flight {row['carrier']}{row['flight']}"


def test_no_feature_is_made_of_what_is_known_only_later() -> None:
    """The trap of this data: the delay at departure tells almost everything about the delay at arrival."""
    for row in rows()[::97]:
        other = dict(row) | dict.fromkeys(UNKNOWN_AT_DEPARTURE, "NA")
        assert flight(other).features == flight(row).features
        assert flight(other).departs_ms == flight(row).departs_ms
        assert flight(other).arrived_ms is None


def test_the_features_of_an_event_are_those_of_the_model_each_of_its_kind() -> None:
    for one in flights():
        kinds = {name: "categorical" if isinstance(value, str) else "numeric" for name, value in one.features.items()}
        assert kinds == {feature.name: feature.kind for feature in FEATURES}


def test_ids_are_unique() -> None:
    ids = [one.id for one in flights()]
    assert len(ids) == len(set(ids)) == 12_208
    assert ids[0] == "2013-01-01-UA-1545"


def test_every_label_comes_after_its_feature_and_inside_the_window() -> None:
    delays_min = [(one.arrived_ms - one.departs_ms) // 60_000 for one in flights() if one.arrived_ms is not None]
    assert min(delays_min) > 0
    assert max(delays_min) * 60 < WINDOW_S


def test_the_figures_of_the_data() -> None:
    good = Counter(event.role for event in all_events() if not event.spoiled)
    assert good == {"features": 12_208, "labels": 12_085}
    assert sum(one.late or 0 for one in flights()) == 2_208
    assert sum(one.arrived_ms is None for one in flights()) == 123
    spoiled = Counter(event.spoiled for event in all_events() if event.spoiled)
    assert spoiled == {"bad_timestamp": 16, "bad_label": 15, "not_json": 10, "wrong_type": 7}


def test_events_are_sent_by_event_time() -> None:
    stamps = [event.ts for event in all_events()]
    assert stamps == sorted(stamps)


def test_every_good_event_is_the_object_that_its_topic_wants() -> None:
    for event in events(spoil_every=0):
        document = json.loads(event.value)
        wanted = {"features": {"id", "ts", "features"}, "labels": {"id", "ts", "label"}}[event.role]
        assert document.keys() == wanted
        assert (document["id"].encode(), document["ts"]) == (event.key, event.ts)


def test_a_spoiled_copy_follows_its_original() -> None:
    for before, event in zip(all_events(), all_events()[1:], strict=False):
        if event.spoiled:
            assert (event.role, event.key, event.ts) == (before.role, before.key, before.ts)
            assert event.value != before.value


def test_the_closing_watermark_is_later_than_every_window() -> None:
    last = max(one.departs_ms for one in flights())
    assert closing_watermark(all_events()) > last + WINDOW_S * 1000
