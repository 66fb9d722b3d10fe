"""What was refused, and why. Values only."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from worker.stream.records import TopicPartition

# The closed list, in the order in which reasons are tried: the first that applies is given.
Reason = Literal[
    "not_json",
    "not_object",
    "duplicate_key",
    "missing_field",
    "wrong_type",
    "not_finite",
    "out_of_range",
    "bad_timestamp",
    "bad_label",
    "bad_weight",
    "bad_id",
    "unknown_feature",
    "missing_feature",
    "too_large",
    "empty",
    "unsupported_content_type",
    "label_conflict",
]
REASONS: tuple[Reason, ...] = get_args(Reason)


class Refusal(NamedTuple):
    """Why one record was refused. `detail` names fields and limits, never values of a payload."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A refused record with its original bytes."""

    source: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None
    refusal: Refusal
