"""Looking at the settings tree: which keys there are, what each may be, which is nearest to a misspelt one.

Never looks at values that someone set.
"""

import json
import types
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, Secret, SecretStr
from pydantic.fields import FieldInfo

from worker.settings.sections import FeatureSettings
from worker.settings.tree import Settings


class Key(NamedTuple):
    """One setting: `section.name`."""

    section: str
    name: str
    info: FieldInfo

    @property
    def dotted(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        return f"GRADSTREAM_{self.section.upper()}__{self.name.upper()}"

    @property
    def secret(self) -> bool:
        kind = _plain(self.info)
        return kind is SecretStr or _is_subclass(kind, Secret)

    @property
    def text(self) -> bool:
        """Say whether variables and flags give the value as it is (anything else is given as JSON)."""
        kind = _plain(self.info)
        return kind is str or get_origin(kind) is Literal or self.secret


def section_types() -> dict[str, type[BaseModel]]:
    """Return the sections by name, in order."""
    return {name: _model(info) for name, info in Settings.model_fields.items()}


def every() -> Iterator[Key]:
    """Yield every setting in the order of the tree."""
    for section, kind in section_types().items():
        for name, info in kind.model_fields.items():
            yield Key(section, name, info)


def find(dotted: str) -> Key | None:
    """Find one setting by `section.name`."""
    return next((k for k in every() if k.dotted == dotted), None)


def nearest(word: str, known: Iterator[str] | list[str]) -> str | None:
    """Return the known word that a misspelt one most likely meant."""
    known = list(known)
    found = get_close_matches(word, known, n=1, cutoff=0.5)
    if found or "." not in word:
        return found[0] if found else None
    last = get_close_matches(word.rpartition(".")[2], [k.rpartition(".")[2] for k in known], n=1, cutoff=0.7)
    return next((k for k in known if last and k.rpartition(".")[2] == last[0]), None)


def allowed(info: FieldInfo) -> str:
    """Say in a few words what a value may be: the same words in errors, in the settings file and in the docs."""
    extra = info.json_schema_extra
    kind = _plain(info)
    if isinstance(extra, dict) and "allowed" in extra:
        return str(extra["allowed"])
    if get_origin(kind) is Literal:
        return " | ".join(str(v) or '""' for v in get_args(kind))
    if get_origin(kind) is tuple:
        return "a list of names" if get_args(kind)[0] is str else "one table or more, each with a name"
    return {int: f"a whole number {_range(info)}", float: f"a number {_range(info)}", bool: "true | false"}.get(
        kind, "text"
    )


def given(value: object) -> str:
    """Write the value that someone set behind its key, if it is short and plain; nothing else."""
    if not isinstance(value, str | int | float) or len(str(value)) > 60:
        return ""
    return f" = {json.dumps(value, ensure_ascii=False)}"


def feature_keys() -> dict[str, FieldInfo]:
    """Return the keys of `[[model.features]]`."""
    return dict(FeatureSettings.model_fields)


def _range(info: FieldInfo) -> str:
    low = high = ""
    for bound in info.metadata:
        match bound:
            case Ge():
                low = f"from {number(bound.ge)}"
            case Gt():
                low = f"above {number(bound.gt)}"
            case Le():
                high = f"up to {number(bound.le)}"
            case Lt():
                high = f"below {number(bound.lt)}"
    if low.startswith("above") and high:
        return f"{low} and {high}"
    return f"{low} {high}".replace("up to", "to").strip()


def number(value: object) -> str:
    """Write a number as people do: 86400, 0.01, 1e12."""
    if isinstance(value, float) and abs(value) >= 1e6:
        return f"{value:g}".replace("e+0", "e").replace("e+", "e")
    return str(value)


def _plain(info: FieldInfo) -> Any:
    """Return the type of a field without `None`."""
    kind = info.annotation
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(a for a in get_args(kind) if a is not type(None))
    return kind


def _model(info: FieldInfo) -> type[BaseModel]:
    kind = info.annotation
    assert isinstance(kind, type)
    assert issubclass(kind, BaseModel)
    return kind


def _is_subclass(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)
