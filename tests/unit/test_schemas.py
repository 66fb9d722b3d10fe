"""Every sample through its schema and through the decoder: both must say what the sample's name says."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from worker.learn.state import Report
from worker.observe.kafka_metrics import Moment, metrics_message
from worker.spec import Feature, Role, Spec, Task
from worker.stream.dead_letters import REASONS
from worker.stream.events import Decoder, EventKind, Events
from worker.stream.records import Records, TopicPartition
from worker.stream.strict_json import NotJson, StrictJson

SCHEMAS = Path(__file__).parents[2] / "schemas"
SAMPLES = SCHEMAS / "samples"
CONDITIONS: dict[str, Any] = json.loads((SAMPLES / "conditions.json").read_text("utf-8"))
KINDS: dict[str, tuple[Role, Task]] = {
    "feature-event": ("features", "binary"),
    "label-event-binary": ("labels", "binary"),
    "label-event-regression": ("labels", "regression"),
    "example-event-binary": ("examples", "binary"),
    "example-event-regression": ("examples", "regression"),
    "watermark": ("features", "binary"),
}
DOCUMENTS: dict[str, Any] = {
    document["$id"]: document
    for document in (json.loads(path.read_text("utf-8")) for path in SCHEMAS.glob("**/*.schema.json"))
}
REGISTRY: Registry[Any] = Registry().with_resources(
    (name, Resource.from_contents(document)) for name, document in DOCUMENTS.items()
)


def samples(*kinds: str) -> list[Any]:
    """Return the paths of all samples of these kinds, relative to the samples, as parameters of a test."""
    found = [path.relative_to(SAMPLES).as_posix() for kind in kinds for path in SAMPLES.glob(f"{kind}/*/*")]
    return [pytest.param(path, id=path) for path in sorted(found)]


def schema_accepts(raw: bytes, *names: str) -> bool:
    document = StrictJson().parse(raw)
    if isinstance(document, NotJson):
        return False
    return all(Draft202012Validator(DOCUMENTS[name], registry=REGISTRY).is_valid(document.value) for name in names)


def decode(path: str) -> Events:
    """Decode one sample under the conditions that are written down for it."""
    role, task = KINDS[path.split("/", maxsplit=1)[0]]
    settings = {**CONDITIONS["settings"], **CONDITIONS["overrides"].get(path, {})}
    decoder = Decoder(
        Spec(tuple(Feature(**f) for f in CONDITIONS["model"]["features"]), task=task),
        role,
        max_event_bytes=settings["max_event_bytes"],
        max_future_s=settings["max_future_s"],
        unknown_features=settings["unknown_features"],
    )
    header = {0: settings["content_type"].encode()} if settings["content_type"] else {}
    raw = (SAMPLES / path).read_bytes()
    records = Records(TopicPartition("t", 0), [0], [settings["record_timestamp"]], [b"k"], [raw], 1, header)
    return decoder.decode(records)


@pytest.mark.parametrize("path", samples(*KINDS))
def test_schema_and_decoder_say_of_a_sample_what_its_name_says(path: str) -> None:
    kind, verdict, name = path.split("/")
    schemas = [f"{kind}.schema.json"] + ["samples/features.schema.json"] * (KINDS[kind][0] != "labels")
    seen_as_valid = schema_accepts((SAMPLES / path).read_bytes(), *schemas)
    events = decode(path)
    if verdict == "valid":
        assert seen_as_valid
        assert events.kinds == [EventKind.WATERMARK if kind == "watermark" else EventKind.EVENT], events.refusals
    else:
        assert seen_as_valid == (path in CONDITIONS["beyond_schema"]["samples"])
        assert events.refusals[0].reason == name.split("--")[0], events.refusals


def test_every_reason_of_the_decoder_has_a_sample() -> None:
    reasons = {path.name.split("--")[0] for kind in KINDS for path in SAMPLES.glob(f"{kind}/invalid/*")}
    assert reasons == set(REASONS) - {"label_conflict"}  # a conflict takes two events: see the join


def test_every_sample_belongs_to_a_schema_and_every_condition_to_a_sample() -> None:
    folders = {path.name for path in SAMPLES.iterdir() if path.is_dir()}
    assert folders == {*KINDS, "metrics-message", "dead-letter-headers"}
    for path in (*CONDITIONS["overrides"], *CONDITIONS["beyond_schema"]["samples"]):
        assert (SAMPLES / path).is_file()


@pytest.mark.parametrize("path", samples("metrics-message", "dead-letter-headers"))
def test_the_schema_says_of_what_we_publish_what_the_sample_is_filed_under(path: str) -> None:
    kind, verdict, _ = path.split("/")
    assert schema_accepts((SAMPLES / path).read_bytes(), f"{kind}.schema.json") == (verdict == "valid")


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_a_schema_is_a_schema(name: str) -> None:
    Draft202012Validator.check_schema(DOCUMENTS[name])


def test_the_schema_of_dead_letters_knows_the_closed_list_of_reasons() -> None:
    properties = DOCUMENTS["dead-letter-headers.schema.json"]["properties"]
    assert properties["gradstream-reason"]["enum"] == list(REASONS)


def test_what_the_worker_publishes_on_the_metrics_topic_passes_its_schema() -> None:
    """A diverged turn, a turn in which every row was skipped, and a plain one."""
    for loss, rows in (([0.4], [64]), ([float("nan")], [64]), ([float("inf"), 0.1], [64, 3]), ([float("nan")], [0])):
        report = Report(rows, [1] * len(rows), loss, loss, loss, 0.01, 1.0, float("nan"), [])
        moment = Moment("flights", "host-1:4242", 1_764_000_000_000, 7, 120, 7680)
        message = metrics_message(moment, report)
        assert schema_accepts(json.dumps(message, allow_nan=False).encode(), "metrics-message.schema.json")
        assert message.keys() <= DOCUMENTS["metrics-message.schema.json"]["properties"].keys()
