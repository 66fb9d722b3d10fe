"""The commit log in Redis as who archives it needs it: raw, a page at a time; noted and trimmed once it is safe."""

from worker.state.redis_calls import Calls, script

Entry = tuple[str, dict[bytes, bytes]]

_ARCHIVED, _TRIM = (f"{script('version_at.lua')}\n{script(name)}" for name in ("archived.lua", "trim.lua"))
_TRIM_AT_ONCE = 20_000  # entries: a few milliseconds in which the server answers nobody


def page(calls: Calls, after: str, count: int) -> list[Entry]:
    """Return up to `count` entries after a place ("" = from the first on), every field as it was written."""
    start = f"({after}" if after else "-"
    found = calls.ask("read the commit log", lambda client: client.xrange(calls.keys.commits, start, "+", count))
    return [(place.decode(), dict(fields)) for place, fields in found]


def length(calls: Calls) -> int:
    """Return how many entries the log has."""
    return int(calls.ask("read the length of the commit log", lambda client: client.xlen(calls.keys.commits)))


def version_at(calls: Calls, place: str) -> str:
    """Return the version (`number:nonce`) that the entry at a place made, "" where there is none."""
    found = calls.ask("read the commit log", lambda client: client.xrange(calls.keys.commits, place, place))
    return str(found[0][1].get(b"version", b"").decode(errors="replace")) if found else ""


def archived(calls: Calls) -> str:
    """Return the place that was noted, "" for none."""
    return (calls.ask("read the archived place", lambda client: client.get(calls.keys.archived)) or b"").decode()


def note_archived(calls: Calls, place: str, version: str) -> bool:
    """Note that the log is archived up to a place; False where the entry there is not the one of this version."""
    keys = [calls.keys.commits, calls.keys.archived]
    return calls.run("note the archived place", _ARCHIVED, keys, [place, version])[0] == b"noted"


def trim(calls: Calls, version: str) -> int | None:
    """Remove the entries before the archived place; return how many. None: that place is not one of `version`."""
    keys, total = [calls.keys.commits, calls.keys.archived], 0
    while True:
        kind, *removed = calls.run("trim the commit log", _TRIM, keys, [version, _TRIM_AT_ONCE])
        if kind != b"trimmed":
            return None
        if not int(removed[0]):
            return total
        total += int(removed[0])
