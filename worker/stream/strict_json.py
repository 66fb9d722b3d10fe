"""Bytes to one JSON value, by the letter of RFC 8259: what other parsers let through is refused here.

Exact and slow; it is asked only about what the typed decoder is not certain of. Knows nothing about events.
"""

import json
import re
from collections import Counter
from typing import NamedTuple

# Nesting is limited by a number of ours: the interpreter's own limit depends on its version and on the stack of the
# caller, so the same bytes would be refused on one machine and read on another.
MAX_DEPTH = 100

# A stand-in for integers that no 64-bit float can hold; converting more than 4300 digits raises in Python.
_HUGE = 10**400
_MARKS = {
    b"\xef\xbb\xbf": "a byte order mark",
    b"\xff\xfe": "UTF-16, expected UTF-8",
    b"\xfe\xff": "UTF-16, expected UTF-8",
}

# Every escape of a text in order; group 1 is the `u` of a surrogate that is not half of a pair.
_ESCAPE = re.compile(
    r"\\(?:[^u]"
    r"|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}"
    r"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(u))",
    re.DOTALL,
)
# A string also ends where the text does, so that a text without its last quote is not scanned again and again.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


class NotJson(NamedTuple):
    """The bytes are not one JSON text in UTF-8; `detail` says where, and never what."""

    detail: str


class Document(NamedTuple):
    """A JSON value, and a key that occurs twice in one of its objects, at any depth (None: there is none)."""

    value: object
    repeated_key: str | None


class StrictJson:
    """Parses one text at a time (keeps what it saw while it parses; not for several threads)."""

    def __init__(self) -> None:
        self._repeated: str | None = None
        self._decode = json.JSONDecoder(
            object_pairs_hook=self._object, parse_int=_integer, parse_constant=_refuse_constant
        ).decode

    def parse(self, raw: bytes) -> Document | NotJson:
        """Return the value of `raw`. Raises on no bytes whatever.

        Integers of any length come as `int`, floats that overflow as infinity: their meaning is the caller's.
        """
        for mark, meaning in _MARKS.items():
            if raw.startswith(mark):
                return NotJson(f"begins with {meaning}")
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            return NotJson(f"not UTF-8 at byte {error.start}")
        if _depth_exceeded(text):
            return NotJson(f"nested deeper than {MAX_DEPTH} levels")
        return self._value(text)

    def _value(self, text: str) -> Document | NotJson:
        self._repeated = None
        try:
            value = self._decode(text)
        except json.JSONDecodeError as error:
            return NotJson(f"malformed at character {error.pos}")
        except _ConstantRefused:
            return NotJson("a NaN or Infinity literal")
        if "\\u" in text and any(escape[1] for escape in _ESCAPE.finditer(text)):
            return NotJson("a lone surrogate in a string")
        return Document(value, self._repeated)

    def _object(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs) and self._repeated is None:
            times = Counter(key for key, _ in pairs)
            self._repeated = next(key for key, n in times.items() if n > 1)
        return found


class _ConstantRefused(ValueError):
    """`NaN`, `Infinity` and `-Infinity` are Python's, not JSON's."""


def _refuse_constant(_: str) -> object:
    raise _ConstantRefused


def _integer(digits: str) -> int:
    if len(digits) < 400:
        return int(digits)
    return -_HUGE if digits.startswith("-") else _HUGE


def _depth_exceeded(text: str) -> bool:
    """Whether brackets outside strings nest deeper than the limit; counting them settles nearly every text."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub("", text)):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False
