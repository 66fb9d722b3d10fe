"""What is wrong with a setting, in one line: the key, the value (never a secret), what is allowed, where it was set.

Turns the validator's findings into our sentences; reads no file and no environment.
"""

import re
from collections.abc import Mapping, Sequence

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from worker.settings import fields

NO_FEATURES = (
    'model.features is not set: run "gradstream init" to write a settings file, '
    "or add [[model.features]] to it, or set GRADSTREAM_MODEL__FEATURES"
)


class Where:
    """Says where a key was set: `(set in FILE:LINE)`, `(set by variable NAME)`, `(set by flag)`."""

    def __init__(self, origins: Mapping[str, str], text: str) -> None:
        self._origins = origins
        self._text = text

    def outside(self, key: str) -> bool:
        """Say whether the key was set in no section at all."""
        return key in self._origins

    def __call__(self, key: str, inner: Sequence[int | str] = ()) -> str:
        origin = self._origins.get(key) or next((o for k, o in self._origins.items() if k.startswith(f"{key}.")), None)
        if origin is None:
            return ""
        kind, _, path = origin.partition(" ")
        if kind != "file":
            return f" (set by {origin})"
        line = _line(self._text, key, inner)
        return f" (set in {path}:{line})" if line else f" (set in {path})"


def _line(text: str, key: str, inner: Sequence[int | str]) -> int | None:
    """Find the line of `section.key`, or of key `inner[1]` in the `inner[0]`-th `[[section.key]]`; None if unsure."""
    section, _, name = key.partition(".")
    heading = f"[[{key}]]" if inner else f"[{section}]"
    nth = int(inner[0]) if inner else 0
    wanted = str(inner[1]) if len(inner) > 1 else name
    seen, inside, start = -1, False, None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("["):
            seen += line.startswith(heading)
            inside = line.startswith(heading) and seen == nth
            start = number if inside else start
        elif re.match(rf'"?{re.escape(wanted)}"?\s*=', line) and (inside or (not section and not inner)):
            return number
    return start


def first_fault(error: ValidationError, where: Where) -> str:
    """Turn the innermost fault into a sentence (a list with a bad item is also too short); count the others."""
    faults = error.errors(include_url=False, include_context=True, include_input=True)
    more = len(faults) - 1
    fault = max(faults, key=lambda f: (len(f["loc"]), f["type"] != "missing"))
    rest = f" (and {more} more)" if more else ""
    return _sentence(fault, where) + rest


def _sentence(fault: ErrorDetails, where: Where) -> str:
    kind, loc = fault["type"], fault["loc"]
    section, name, inner = str(loc[0]), "".join(str(p) for p in loc[1:2]), loc[2:]
    dotted = f"{section}.{name}" if name else section
    here = where(dotted, inner)
    path = dotted + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in inner)
    if kind == "missing" and not inner and dotted in ("model", "model.features"):
        return NO_FEATURES
    if kind == "extra_forbidden":
        return _unknown(section, name, inner, path, where) + (here or where(section))
    if kind == "value_error" and section == "model":
        return f"{path}: {fault['msg'].removeprefix('Value error, ')}{here}"
    info, secret = _info(dotted, inner)
    if info is None:
        return f"{path}: must be a {'table' if inner else f'section, [{section}]'}{here}"
    value = " is not set" if kind == "missing" else fields.given(None if secret else fault["input"])
    return f"{path}{value}: must be {fields.allowed(info)}{here}"


def _info(dotted: str, inner: Sequence[int | str]) -> tuple[FieldInfo | None, bool]:
    """Return the field that is at fault, and whether its value must not be seen."""
    if inner and dotted == "model.features":
        return (fields.feature_keys().get(str(inner[1])) if len(inner) > 1 else None), False
    found = fields.find(dotted)
    return (found.info, found.secret) if found else (None, False)


def _unknown(section: str, name: str, inner: Sequence[int | str], path: str, where: Where) -> str:
    if inner:
        return f"{path} is not a setting{hint(fields.nearest(str(inner[-1]), list(fields.feature_keys())))}"
    if not name and where.outside(section):
        return (
            f"{section} stands in no section{hint(fields.nearest(f'.{section}', [k.dotted for k in fields.every()]))}"
        )
    if not name:
        near = fields.nearest(section, list(fields.section_types()))
        return f"[{section}] is not a section of the settings{hint(near)}"
    return f"{path} is not a setting{hint(fields.nearest(path, [k.dotted for k in fields.every()]))}"


def hint(near: str | None) -> str:
    """Name the nearest known word, or where to find them all."""
    return f": did you mean {near}?" if near else ": docs/settings.md lists them"
