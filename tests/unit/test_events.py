"""Records to events: named cases of what producers send by mistake, and what becomes of it."""

import json
import math
import struct
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pytest

from worker.spec import Feature, Role, Spec
from worker.stream.dead_letters import REASONS
from worker.stream.event_rules import printable
from worker.stream.events import Decoder, EventKind, Events
from worker.stream.records import Records, TopicPartition
from worker.stream.rows import RowFormat, bucket, missing_bucket
from worker.stream.strict_json import Document, NotJson, StrictJson
from worker.stream.typed_rows import BucketTable, expressible

NOW = 1_764_000_000_000
TWO = Spec((Feature("x1"), Feature("x2")))


def records(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    timestamps: list[int] | None = None,
    content_types: Mapping[int, bytes] | None = None,
) -> Records:
    n = len(values)
    return Records(
        TopicPartition("features", 0),
        list(range(n)),
        timestamps or [NOW] * n,
        list(keys) if keys else [None] * n,
        list(values),
        n,
        content_types or {},
    )


def feature(id_: str = "e-1", ts: int = NOW, /, **features: object) -> bytes:
    return json.dumps({"id": id_, "ts": ts, "features": features}).encode()


def label(value: object, id_: str = "e-1", **more: object) -> bytes:
    return json.dumps({"id": id_, "ts": NOW, "label": value, **more}).encode()


def decode(values: Sequence[bytes | None], spec: Spec = TWO, role: Role = "features") -> Events:
    return Decoder(spec, role).decode(records(values))


def reasons(events: Events) -> dict[int, str]:
    return {i: refusal.reason for i, refusal in events.refusals.items()}


def dense(events: Events, spec: Spec = TWO) -> list[list[float]]:
    plain = [row for row, kind in zip(events.rows, events.kinds, strict=True) if kind == EventKind.EVENT]
    numbers: list[list[float]] = RowFormat(spec).matrix(plain)[0].tolist()
    return numbers


def test_a_null_value_withdraws_and_an_empty_one_is_refused() -> None:
    events = Decoder(TWO, "features").decode(
        records([None, feature("e-2", x1=1, x2=2), b""], keys=[b"e-1", None, None])
    )
    assert events.kinds == [EventKind.TOMBSTONE, EventKind.EVENT, EventKind.REFUSED]
    assert events.ids == ["e-1", "e-2", ""]
    assert events.times == [-1, NOW, -1]
    assert events.rows == [b"", struct.pack("<2d", 1, 2), b""]
    assert reasons(events) == {2: "empty"}


@pytest.mark.parametrize("key", [None, b"", b"\xff", b"k" * 257, b"\xed\xa0\x80"])
def test_a_tombstone_without_a_usable_key_is_refused(key: bytes | None) -> None:
    events = Decoder(TWO, "labels").decode(records([None], keys=[key]))
    assert reasons(events) == {0: "bad_id"}
    assert "key" in events.refusals[0].detail


def test_a_tombstone_may_have_a_key_of_256_bytes_and_any_content_type() -> None:
    events = Decoder(TWO, "labels").decode(records([None], keys=[b"k" * 256], content_types={0: b"text/csv"}))
    assert events.kinds == [EventKind.TOMBSTONE]
    assert events.ids == ["k" * 256]


def test_poison_is_refused_record_by_record_and_the_good_event_is_kept() -> None:
    poison = [b"\xff\xfe{", b'{"id":', b"[1,2]", b'"text"', b"null", b"{}"]
    events = decode([*poison, feature(x1=1, x2=2)])
    assert list(reasons(events).values()) == [
        *("not_json", "not_json", "not_object", "not_object", "not_object", "missing_field")
    ]
    assert events.kinds[6] == EventKind.EVENT
    assert dense(events) == [[1, 2]]


def test_an_event_of_8_mb_is_refused_by_its_size_without_being_parsed() -> None:
    names = ",".join(f'"feature-number-{i:07d}-with-a-long-name":1' for i in range(200_000))
    huge = f'{{"id":"e-1","ts":{NOW},"features":{{{names}}}}}'.encode()
    assert len(huge) > 8_000_000
    decoder = Decoder(TWO, "features")
    chunk = records([huge, feature(x1=1, x2=2)])
    tracemalloc.start()
    events = decoder.decode(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reasons(events) == {0: "too_large"}
    assert events.kinds[1] == EventKind.EVENT
    assert not decoder.unknown_features
    assert peak < 1_000_000


def test_an_event_of_exactly_the_largest_size_is_accepted() -> None:
    value = feature(x1=1)
    assert not Decoder(TWO, "features", max_event_bytes=len(value)).decode(records([value])).refusals
    assert Decoder(TWO, "features", max_event_bytes=len(value) - 1).decode(records([value])).refusals


@pytest.mark.parametrize(
    ("ts", "unit"), [(1_764_000_000, "seconds"), (NOW * 1000, "microseconds"), (NOW * 10**6, "nanoseconds")]
)
def test_another_unit_of_time_is_refused_and_named(ts: int, unit: str) -> None:
    refusal = decode([feature("e-1", ts, x1=1)]).refusals[0]
    assert refusal.reason == "bad_timestamp"
    assert f"looks like {unit}" in refusal.detail


@pytest.mark.parametrize("ts", ["2025-11-24T16:00:00Z", "2025-11-24T18:00:00+02:00", 0, -1, None, True, [NOW]])
def test_what_is_no_time_in_milliseconds_is_refused(ts: object) -> None:
    value = json.dumps({"id": "e-1", "ts": ts, "features": {}}).encode()
    assert reasons(decode([value])) == {0: "bad_timestamp"}


def test_an_event_may_lie_ahead_of_its_own_record_by_the_bound_and_no_more() -> None:
    values = [feature("e-1", NOW + 3_600_000), feature("e-1", NOW + 3_600_001), b'{"watermark":%d}' % (NOW + 3_600_001)]
    assert reasons(decode(values)) == {1: "bad_timestamp", 2: "bad_timestamp"}
    unknown = Decoder(TWO, "features").decode(records(values, timestamps=[-1] * 3))
    assert not unknown.refusals
    assert not Decoder(TWO, "features", max_future_s=3601).decode(records(values)).refusals
    for bound in (0.0006, 0.0015):  # parts of a millisecond are not rounded in the event's favour
        near = [feature("e-1", NOW + int(bound * 1000)), feature("e-1", NOW + int(bound * 1000) + 1)]
        assert reasons(Decoder(TWO, "features", max_future_s=bound).decode(records(near))) == {1: "bad_timestamp"}


def test_literals_that_are_not_json_take_down_their_own_record_only() -> None:
    bad = [
        b'{"id":"e-3","ts":1764000000000,"features":{"x1":NaN,"x2":1}}',
        b'{"id":"e-3","ts":1764000000000,"features":{"x1":-Infinity,"x2":1}}',
        b'{"id":"e-3","ts":1764000000000,"features":{"x1":"NaN","x2":1}}',
    ]
    good = [feature(f"g-{i}", x1=i, x2=-i) for i in range(29)]
    mixed = decode([*good[:10], *bad, *good[10:]])
    assert reasons(mixed) == {10: "not_json", 11: "not_json", 12: "wrong_type"}
    assert dense(mixed) == dense(decode(good))
    labels = decode([label(1), b'{"id":"e-4","ts":1764000000000,"label":NaN}', label(0)], role="labels")
    assert reasons(labels) == {1: "not_json"}
    assert labels.labels == [1, 0, 0]


@pytest.mark.parametrize(
    ("x1", "reason"),
    [
        *[("true", "wrong_type"), ('"1.5"', "wrong_type"), ('"1,5"', "wrong_type"), ('"١٢"', "wrong_type")],
        *[('"1_000"', "wrong_type"), ("[1]", "wrong_type"), ('{"a":1}', "wrong_type"), ('1,"x1":2', "duplicate_key")],
        *[("1e999", "not_finite"), ("-1e999", "not_finite"), ("1" * 5000, "wrong_type"), ("1e13", "out_of_range")],
        *[("9007199254740993", "wrong_type"), ("-9007199254740993", "wrong_type"), ("[" * 5000, "not_json")],
    ],
)
def test_a_value_of_the_wrong_type_is_refused_never_guessed(x1: str, reason: str) -> None:
    value = f'{{"id":"e-1","ts":{NOW},"features":{{"x1":{x1},"x2":1}}}}'.encode()
    assert reasons(decode([value, feature(x1=1)])) == {0: reason}


@pytest.mark.parametrize(
    "members",
    [
        r'"id":"a\u003ab","ts":TS,"features":{"x1":1,"x1":2}',
        r'"id":"a","ts":TS,"features":{"a\u003ab":1,"x1":1,"x1":2}',
        r'"id":"a","ts":TS,"features":{"a:b":1,"a:b":1}',
        r'"id":"a","ts":TS,"features":{"c":"\u003a","c":"x"}',
        r'"id":"a","ts":TS,"features":{"c":"u:a","c":"x"}',
        r'"id":"a","ts":TS,"features":{"x1":1,"x1":null}',
        r'"id":"a","id":"a","ts":TS,"features":{}',
        r'"id":"a","ts":TS,"features":{"x1":1},"features":{}',
        r'"id":"a","ts":TS,"ts":TS,"features":{}',
    ],
)
def test_no_key_is_taken_twice_however_colons_are_written(members: str) -> None:
    spec = Spec((Feature("x1"), Feature("a:b"), Feature("c", "categorical")))
    value = "{" + members.replace("TS", str(NOW)) + "}"
    assert reasons(decode([value.encode()], spec)) == {0: "duplicate_key"}


@pytest.mark.parametrize("max_abs", [1e3, 0.1, 1e12, 2.0**53])
def test_a_number_may_be_as_large_as_its_bound_and_not_one_bit_larger(max_abs: float) -> None:
    spec = Spec((Feature("x1", max_abs=max_abs),))
    values = [feature(x1=max_abs), feature(x1=-max_abs), feature(x1=float(np.nextafter(max_abs, np.inf)))]
    assert reasons(decode(values, spec)) == {2: "out_of_range"}


def test_null_is_missing_and_never_zero_by_accident() -> None:
    [[x1, x2]] = dense(decode([feature(x1=None, x2=1)]))
    assert math.isnan(x1)
    assert x2 == 1


def test_integers_are_refused_only_where_a_float_would_change_them() -> None:
    wide = Spec((Feature("x1", max_abs=1e300),))
    values = [
        b'{"id":"a","ts":%d,"features":{"x1":%s}}' % (NOW, x)
        for x in (b"9007199254740992", b"9007199254740993", b"1e300")
    ]
    events = decode(values, wide)
    assert reasons(events) == {1: "wrong_type"}
    assert dense(events, wide) == [[2.0**53], [1e300]]


@pytest.mark.parametrize("value", ["yes", 2, 0.5, -1, None, [1], {}, "1", ""])
def test_what_is_no_binary_label_is_refused(value: object) -> None:
    assert reasons(decode([label(value)], role="labels")) == {0: "bad_label"}


def test_labels_that_mean_the_same_are_the_same() -> None:
    values = [label(1), label(1.0), label(True), label(0), label(0.0), label(-0.0), label(False)]
    assert repr(decode(values, role="labels").labels) == "[1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]"


def test_dirty_bytes_are_refused() -> None:
    plain = feature(x1=1)
    dirty = [
        *(b"\xef\xbb\xbf" + plain, plain + b"\0", b"\0" + plain, plain.decode().encode("utf-16")),
        *(plain.decode().encode("utf-16-le"), plain.replace(b"e-1", b"e-\xff"), plain.replace(b"e-1", b"e-\x01")),
        *(plain.replace(b"e-1", b"\\ud800"), plain.replace(b"e-1", b"\\udc00\\ud800"), plain + b" {}"),
    ]
    assert reasons(decode(dirty)) == dict.fromkeys(range(len(dirty)), "not_json")


def test_ids_that_only_look_alike_stay_apart() -> None:
    ids = ["17", "17.0", " 17", "e-1", "E-1", "é", "e\u0301", "9007199254740993", "9007199254740992"]
    assert decode([label(1, id_) for id_ in ids], role="labels").ids == ids
    assert decode([feature(id_, x1=1) for id_ in ids]).ids == ids


@pytest.mark.parametrize("id_", ["17", "9007199254740993", "17.0", '""', "null", "true", '"' + "k" * 10_000 + '"'])
def test_what_is_no_id_is_refused_on_both_sides(id_: str) -> None:
    values = [f'{{"id":{id_},"ts":{NOW},"features":{{"x1":1}},"label":1}}'.encode()]
    assert reasons(decode(values)) == reasons(decode(values, role="labels")) == {0: "bad_id"}


def test_the_length_of_an_id_is_counted_in_bytes() -> None:
    events = decode([feature("é" * 128), feature("é" * 129), feature("k" * 256), feature("k" * 257)])
    assert reasons(events) == {1: "bad_id", 3: "bad_id"}


def test_the_order_of_keys_in_an_event_means_nothing() -> None:
    spec = Spec((Feature("b"), Feature("c", "categorical"), Feature("a")))
    there = b'{"id":"e","ts":%d,"features":{"a":1,"b":2,"c":"x"}}' % NOW
    back = b'{"features":{"c":"x","b":2,"a":1},"ts":%d,"id":"e"}' % NOW
    rows = decode([there, back], spec).rows
    assert rows[0] == rows[1] == struct.pack("<2dI", 2, 1, bucket("c", "x", 10))


def test_features_may_come_and_go() -> None:
    decoder = Decoder(TWO, "features")
    unknown = {f"u{i}": "anything" for i in range(10_000)}
    values = [feature(x1=1, x2=2), feature(x1=1, x2=2, x3=3), feature(x1=1), feature(), feature(**unknown)]
    events = decoder.decode(records(values))
    assert not events.refusals
    nan = math.nan
    np.testing.assert_array_equal(dense(events), [[1, 2], [1, 2], [1, nan], [nan, nan], [nan, nan]])
    assert decoder.unknown_features["x3"] == 1
    assert len(decoder.unknown_features) == 1001
    assert decoder.unknown_features["other"] == 10_001 - 1000


def test_each_unknown_name_is_told_once() -> None:
    decoder = Decoder(TWO, "features")
    decoder.decode(records([feature(x3=1, x4=1), feature(x3=1)]))
    assert decoder.take_new_unknown_features() == ["x3", "x4"]
    decoder.decode(records([feature(x3=1), feature(x5="x" * 100)]))
    assert decoder.take_new_unknown_features() == ["x5"]
    assert decoder.unknown_features == {"x3": 3, "x4": 1, "x5": 1}


def test_unknown_features_are_refused_where_the_setting_says_so() -> None:
    decoder = Decoder(TWO, "features", unknown_features="refuse")
    events = decoder.decode(records([feature(x1=1), feature(x1=1, **{"new\nname" + "x" * 100: 1})]))
    assert reasons(events) == {1: "unknown_feature"}
    assert "\n" not in events.refusals[1].detail
    assert len(events.refusals[1].detail) < 120


@pytest.mark.parametrize("missing", ["mean", "zero", "reject"])
@pytest.mark.parametrize("value", [b'{"x2":1}', b'{"x1":null,"x2":1}'])
def test_each_rule_for_missing_numbers(missing: Literal["mean", "zero", "reject"], value: bytes) -> None:
    spec = Spec((Feature("x1", missing=missing), Feature("x2")))
    events = decode([b'{"id":"e","ts":%d,"features":%s}' % (NOW, value), feature(x1=3, x2=4)], spec)
    if missing == "reject":
        assert reasons(events) == {0: "missing_feature"}
    else:
        np.testing.assert_array_equal(dense(events, spec), [[math.nan if missing == "mean" else 0, 1], [3, 4]])


def test_a_category_that_is_missing_has_a_bucket_of_its_own() -> None:
    spec = Spec((Feature("c", "categorical", bits=3), Feature("d", "categorical", bits=5)))
    events = decode([feature(c="UA", d="é:x"), feature(c=None), feature(d="")], spec)
    assert [struct.unpack("<2I", row) for row in events.rows] == [
        (bucket("c", "UA", 3), bucket("d", "é:x", 5)),
        (missing_bucket(3), missing_bucket(5)),
        (missing_bucket(3), bucket("d", "", 5)),
    ]
    assert reasons(decode([feature(c=7), feature(c=True)], spec)) == {0: "wrong_type", 1: "wrong_type"}


def test_a_category_of_endlessly_many_values_does_not_fill_the_memory() -> None:
    table = BucketTable(Feature("c", "categorical", bits=4))
    for i in range(70_000):
        table[str(i)]
    assert len(table) <= 65_536
    assert table[None] == 16


def test_weights_belong_to_labels_and_are_not_looked_at_on_features() -> None:
    events = decode([label(1), label(0, weight=2.5), label(1, weight=3)], role="labels")
    assert events.weights == [1, 2.5, 3]
    odd = b'{"id":"e","ts":%d,"features":{"x1":1},"weight":null}' % NOW
    assert decode([odd]).weights == [1]
    assert not decode([odd]).refusals


@pytest.mark.parametrize("weight", [0, -1, None, True, "1", [1]])
def test_a_weight_is_a_number_above_zero(weight: object) -> None:
    assert reasons(decode([label(1, weight=weight)], role="labels")) == {0: "bad_weight"}


def test_regression_labels_are_numbers() -> None:
    spec = Spec(TWO.features, task="regression")
    events = decode([label(-2.5), label(2**60), label(True), label("3"), label(None)], spec, "labels")
    assert events.labels[:2] == [-2.5, 2.0**60]
    assert reasons(events) == {2: "bad_label", 3: "bad_label", 4: "bad_label"}
    huge = f'{{"id":"e","ts":{NOW},"label":{"9" * 5000}}}'.encode()
    assert reasons(decode([huge], spec, "labels")) == {0: "not_finite"}


def test_an_example_carries_both() -> None:
    value = b'{"id":"e","ts":%d,"features":{"x1":1,"x2":2},"label":true,"weight":2}' % NOW
    events = decode([value], role="examples")
    assert (events.ids, events.times, events.labels, events.weights) == (["e"], [NOW], [1.0], [2.0])
    assert dense(events) == [[1, 2]]


@pytest.mark.parametrize("role", ["features", "labels", "examples"])
def test_a_watermark_carries_nothing_else(role: Role) -> None:
    values = [
        b'{"watermark":%d}' % NOW,
        b'{"watermark":%d.0}' % NOW,
        b'{"watermark":%d,"x":1}' % NOW,
        b'{"watermark":null}',
    ]
    events = decode(values, role=role)
    assert events.kinds[:2] == [EventKind.WATERMARK] * 2
    assert events.times[:2] == [NOW] * 2
    assert events.ids[:2] == ["", ""]
    assert reasons(events) == {2: "missing_field", 3: "bad_timestamp"}


@pytest.mark.parametrize(
    "header", [b"", b"application/json", b"Application/JSON; charset=utf-8", b" application/json "]
)
def test_json_may_be_declared(header: bytes) -> None:
    events = Decoder(TWO, "features").decode(records([feature(x1=1), feature(x1=2)], content_types={1: header}))
    assert not events.refusals
    assert [row[0] for row in dense(events)] == [1, 2]


def test_what_is_declared_as_something_else_is_not_read_as_json() -> None:
    """Size, emptiness, header: in this order, and nothing else is said of such a record."""
    decoder = Decoder(TWO, "features", max_event_bytes=100)
    values = [b"x" * 101, b"", b"not json", feature(x1=1)]
    events = decoder.decode(records(values, content_types=dict.fromkeys(range(4), b"text/csv")))
    assert list(reasons(events).values()) == [
        "too_large",
        "empty",
        "unsupported_content_type",
        "unsupported_content_type",
    ]


def test_of_several_reasons_the_first_of_the_list_is_given() -> None:
    """Each time the fault that ranks first is mended, the next one is given."""
    spec = Spec((Feature("x1", max_abs=10), Feature("x2", missing="reject"), Feature("x3")))
    decoder = Decoder(spec, "examples", unknown_features="refuse")
    faulty = {"id": 17, "ts": 1, "weight": 0, "features": {"x1": "a", "x3": "HUGE", "x9": 1}}
    mended: list[tuple[str, dict[str, object]]] = [
        ("missing_field", {"label": 5}),
        ("wrong_type", {"features": {"x1": 11, "x3": "HUGE", "x9": 1}}),
        ("not_finite", {"features": {"x1": 11, "x3": 0, "x9": 1}}),
        ("out_of_range", {"features": {"x1": 9, "x9": 1}}),
        ("bad_timestamp", {"ts": NOW}),
        ("bad_label", {"label": 1}),
        ("bad_weight", {"weight": 1}),
        ("bad_id", {"id": "e"}),
        ("unknown_feature", {"features": {"x1": 9}}),
        ("missing_feature", {"features": {"x1": 9, "x2": 1}}),
    ]
    given = []
    for _, mend in mended:
        value = json.dumps(faulty).replace('"HUGE"', "1e999").encode()
        given.append(decoder.decode(records([value])).refusals[0].reason)
        faulty |= mend
    assert given == [reason for reason, _ in mended]
    assert not decoder.decode(records([json.dumps(faulty).encode()])).refusals
    assert sorted(given, key=REASONS.index) == given


def test_details_name_field_and_limit_and_no_value() -> None:
    secret = "s3cret"
    values = [
        feature(x1=secret),
        *(
            feature(x1=[secret]),
            feature(secret * 50),
            feature(**{secret: 1})[:-1] + b',"%s":1,"%s":2}' % ((secret.encode(),) * 2),
        ),
        *(json.dumps({"id": "e", "ts": secret, "features": {}}).encode(), secret.encode(), json.dumps(secret).encode()),
    ]
    details = [refusal.detail for refusal in decode(values).refusals.values()]
    assert len(details) == len(values)
    assert details[0] == "features.x1: string, expected a number"
    assert not any(secret in detail for detail in details)


def test_long_and_unprintable_names_are_cut() -> None:
    assert printable("a" * 64) == "a" * 64
    assert printable("a" * 65) == "a" * 63 + "…"
    assert printable("a\n\u202eb") == "a��b"


@pytest.mark.parametrize("name", ['say "x"', "back\\slash", "tab\t", "a:b", "", "é", "x 1"])
def test_any_name_can_name_a_feature(name: str) -> None:
    spec = Spec((Feature(name), Feature("x2"), Feature(name + "2", "categorical", bits=4)))
    twice = json.dumps({"id": "e", "ts": NOW, "features": {name: 1, "x2": 2}})[:-2] + ', "x2": 3}}'
    events = decode([feature(**{name: 1, "x2": 2, name + "2": "v"}), twice.encode()], spec)
    assert reasons(events) == {1: "duplicate_key"}
    assert events.rows[0] == struct.pack("<2dI", 1, 2, bucket(name + "2", "v", 4))
    assert expressible(spec) == (not set(name) & set('"\\\t'))


def test_an_empty_chunk_is_decoded_to_empty_columns() -> None:
    events = decode([])
    assert (events.kinds, events.rows, events.labels, events.refusals) == ([], [], [], {})


@pytest.mark.parametrize("role", ["features", "labels", "examples"])
def test_columns_are_as_long_as_the_records_or_absent(role: Role) -> None:
    events = Decoder(TWO, role).decode(records([None, b"", b"{}", b'{"watermark":%d}' % NOW], keys=[b"k"] * 4))
    assert len(events.rows) == (0 if role == "labels" else 4)
    assert len(events.labels) == (0 if role == "features" else 4)
    assert events.weights == [1.0] * 4
    assert set(events.rows) <= {b""}


def test_json_is_read_to_the_letter() -> None:
    parse = StrictJson().parse
    assert parse(b' [1, {"a": -0}, "\\ud83d\\ude00", "\\\\ud800"]\n') == Document([1, {"a": 0}, "😀", "\\ud800"], None)
    assert parse(b'{"a": {"b": 1, "c": 2, "b": 3}}') == Document({"a": {"b": 3, "c": 2}}, "b")
    assert parse(b'{"a": 1}') == Document({"a": 1}, None)
    for raw in (
        b"",
        b" ",
        b"1 2",
        b"nul",
        b"'a'",
        b'"\t"',
        b"[1,]",
        b"{a:1}",
        b"// 1",
        b"\xc2\xa01",
        b'"\\ud83d"',
        b'"\\x"',
    ):
        assert isinstance(parse(raw), NotJson), raw


def test_nesting_has_a_limit_of_our_own() -> None:
    parse = StrictJson().parse
    assert isinstance(parse(b"[" * 100 + b"]" * 100), Document)
    assert isinstance(parse(b"[" * 101 + b"]" * 101), NotJson)
    assert isinstance(parse(b'["' + b"[" * 500 + b'"]'), Document)
    assert isinstance(parse(b"[" + b"[]," * 500 + b"1]"), Document)
    assert isinstance(parse(b'["' + b'\\"' * 200_000), NotJson)
    assert isinstance(parse(b'["\\"]' + b"[" * 500), NotJson)
