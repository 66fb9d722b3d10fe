"""Logs: one JSON object a line (or text for people) on stderr. The only file that knows structlog's set-up.

Lines carry positions and ids, never payloads: bytes become their length, the fields of events are dropped, long text
is cut, secrets are masked by the name of their key and in URLs. Kafka's and Redis' own loggers end in the same lines.
"""

import logging
import math
import re
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Literal, TextIO

import structlog

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["json", "console"]

MASK = "***"
_SECRET = re.compile(
    r"passw|passphrase|secret|credential|private_key|api_?key|authorization|access_token", re.IGNORECASE
)
_PAYLOADS = frozenset({"payload", "value", "values", "features", "body", "record"})
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_LONGEST = 1000


def configure_logs(
    level: Level = "info",
    log_format: Format = "json",
    *,
    model: str = "",
    worker: str = "",
    stream: TextIO | None = None,
) -> None:
    """Send every log of this process to `stream` (stderr). `model` and `worker` are on each line where given.

    Level names are those of `observe.log_level`. Other libraries speak from warning on (all, at debug).
    """
    shared = _processors({k: v for k, v in (("model", model), ("worker", worker)) if v})
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderer(log_format)],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    logging.getLogger("gradstream").setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # a logger made before this call follows it
    )


def get_logger(**bound: object) -> structlog.stdlib.BoundLogger:
    """Return the program's logger; `bound` goes on each of its lines."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("gradstream", **bound)
    return logger


class Sparing:
    """Passes a repeated warning on once per `every_s` and says how many it kept back.

    For conditions that return with every record or poll: a full disk of one sentence helps nobody.
    """

    def __init__(
        self,
        log: structlog.stdlib.BoundLogger,
        every_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._every_s = every_s
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}  # -> (last passed on, kept back since)

    def warning(self, event: str, kind: str = "", **fields: object) -> None:
        """`event` is a fixed sentence from the code (ids and positions go into `fields`), so their number is small.

        One event of two kinds is two warnings: one kind must not keep the other one back.
        """
        now, what = self._clock(), (event, kind)
        last, kept_back = self._seen.get(what, (-self._every_s + now, 0))
        if now - last < self._every_s:
            self._seen[what] = (last, kept_back + 1)
            return
        self._seen[what] = (now, 0)
        self._log.warning(event, **fields, **({"kept_back": kept_back} if kept_back else {}))


def _processors(identity: Mapping[str, str]) -> list[structlog.typing.Processor]:
    def identify(_: object, __: str, line: MutableMapping[str, object]) -> MutableMapping[str, object]:
        for key, value in identity.items():
            line.setdefault(key, value)
        return line

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        identify,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        discreet,
    ]


def _renderer(log_format: Format) -> list[structlog.typing.Processor]:
    if log_format == "json":
        return [structlog.processors.JSONRenderer()]
    return [structlog.dev.ConsoleRenderer(colors=False)]


def discreet(_: object, __: str, line: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Drop payloads, mask secrets, cut what is long: the last guard, for a line written in haste."""
    traceback = {key: line[key] for key in ("exception", "stack") if key in line}
    return _fields(line) | traceback


def _fields(line: Mapping[str, object]) -> dict[str, object]:
    # A whole number under such a key is a count or a position: topics may well be called `features`.
    named = {str(key): value for key, value in line.items() if key not in _PAYLOADS or isinstance(value, int)}
    return {key: MASK if _SECRET.search(key) else _safe(value) for key, value in named.items()}


def _safe(value: object) -> object:
    match value:
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes>"
        case str():
            return _short(_USERINFO.sub(MASK, value))
        case float() if not math.isfinite(value):
            return str(value)  # a line has to be JSON for every reader
        case Mapping():
            return _fields(value)
        case Sequence():
            return [_safe(item) for item in value]
    return value


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
