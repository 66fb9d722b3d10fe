"""What is learned: features, task, and the rule of the step. Values only; no torch, no settings, no clock.

`Spec` is what a state can not change without losing its meaning: its digest guards every state.
`Hyper` may change between runs.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from worker.errors import StateCorrupted

Kind = Literal["numeric", "categorical"]
Missing = Literal["mean", "zero", "reject"]
Task = Literal["binary", "regression"]
Reduction = Literal["sequential", "mean", "sum"]
Schedule = Literal["constant", "inverse_sqrt", "inverse"]
Role = Literal["features", "labels", "examples"]  # what the events of a topic are


@dataclass(frozen=True, slots=True)
class Feature:
    """One named input. `missing` and `max_abs` apply to numeric features, `bits` to categorical ones."""

    name: str
    kind: Kind = "numeric"
    missing: Missing = "mean"
    max_abs: float = 1e12
    bits: int = 10


@dataclass(frozen=True, slots=True)
class Spec:
    """Features in order, task and rule of learning. Numeric features come first in every matrix."""

    features: tuple[Feature, ...]
    task: Task = "binary"
    classes: tuple[str, ...] = ()
    optimizer: Literal["sgd"] = "sgd"
    reduction: Reduction = "sequential"
    standardize: bool = True

    @property
    def numeric(self) -> tuple[Feature, ...]:
        return tuple(f for f in self.features if f.kind == "numeric")

    @property
    def categorical(self) -> tuple[Feature, ...]:
        return tuple(f for f in self.features if f.kind == "categorical")

    def document(self) -> dict[str, object]:
        """Return the spec as plain JSON values: stored with the state, so that a difference can be named."""
        plain: dict[str, object] = json.loads(json.dumps(asdict(self)))
        for feature in plain["features"]:  # type: ignore[attr-defined]
            for key in ("bits",) if feature["kind"] == "numeric" else ("missing", "max_abs"):
                del feature[key]
        return plain

    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON of `document()`."""
        text = json.dumps(self.document(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def difference(self, stored: dict[str, object]) -> str | None:
        """Name the first setting in which a stored spec document differs from this one, or None.

        The name is the settings key (`model.features[1].bits`, `train.reduction`).
        """
        section = {"optimizer": "train", "reduction": "train", "standardize": "train"}
        for key, mine in self.document().items():
            theirs = stored.get(key)
            if mine == theirs:
                continue
            where = f"{section.get(key, 'model')}.{key}"
            if key != "features" or not isinstance(mine, list) or not isinstance(theirs, list):
                return where
            if len(mine) != len(theirs):
                return f"{where} ({len(theirs)} in the state, {len(mine)} in the settings)"
            for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
                for field in {**a, **b}:
                    if a.get(field) != b.get(field):
                        return f"{where}[{i}].{field}"
        return None


def read_spec(document: Mapping[str, Any]) -> Spec:
    """Return the spec of which this is the document. Raises `StateCorrupted` where it is none of ours."""
    try:
        plain = dict(document)
        features = tuple(Feature(**feature) for feature in plain.pop("features"))
        return Spec(features, **(plain | {"classes": tuple(plain.get("classes", ()))}))
    except (KeyError, TypeError) as error:
        raise StateCorrupted(f"the spec stored with the state is not readable: {error}") from None


@dataclass(frozen=True, slots=True)
class Hyper:
    """What may change from run to run. Rates are per step in standardised units."""

    learning_rate: float = 0.01
    intercept_learning_rate: float | None = None  # None: learning_rate
    schedule: Schedule = "constant"
    l2: float = 0.0
    clip_norm: float = 0.0  # 0: off
    batch_size: int = 64
