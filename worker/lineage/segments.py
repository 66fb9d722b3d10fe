"""Pieces of the commit log as immutable files, each naming the digest of the one before. Knows files, and no Redis.

A segment, in order: a line of magic, a line with the SHA-256 (hex) of all that follows, a line of JSON (`Header`), and
the entries: zlib of msgpack of [place, {field: bytes}], every field as it was logged. Segments are numbered from 1, so
two writers of the same number can not both succeed: the chain never forks. Nothing in a segment depends on who wrote it
or when, so two writers with the same entries write the same file.
"""

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from worker.errors import Conflict, VerificationFailed
from worker.release.artifacts import Artifacts, sha256

FORMAT = 1
FOLDER = "lineage/segments"
_MAGIC = b"GRADSTREAM1 LOG"
_NAME = re.compile(r"(\d{10})\.segment")

Fields = dict[bytes, bytes]
Entry = tuple[str, Fields]
"""Place in the log it was taken from, and the fields of the stream entry."""


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a segment says of itself. `total`: entries in it and in all before it. Versions are `number:nonce`.

    `lowest`, `highest`: version numbers. `first`, `last`: places in the log of Redis.
    """

    format: int
    model: str
    number: int
    previous: str  # SHA-256 (hex) of the whole file before, "" for the first
    entries: int
    total: int
    first: str
    last: str
    first_version: str
    last_version: str
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class Segment:
    """`digest`: SHA-256 (hex) of the whole file."""

    header: Header
    digest: str
    payload: bytes

    def entries(self) -> list[Entry]:
        return msgspec.msgpack.decode(zlib.decompress(self.payload), type=list[Entry])


def version_of(fields: Fields) -> str:
    """Return the version that an entry made, `number:nonce`."""
    return fields.get(b"version", b"").decode(errors="replace")


def name_of(number: int) -> str:
    return f"{FOLDER}/{number:010}.segment"


def sealed(magic: bytes, body: bytes) -> bytes:
    """Return a file that shows by itself whether a byte of it has changed."""
    return b"%b\n%b\n%b" % (magic, sha256(body).encode(), body)


def opened(magic: bytes, content: bytes, where: str) -> bytes:
    """Return what `sealed` was given. Raises `VerificationFailed` naming `where`."""
    kind, _, rest = content.partition(b"\n")
    checksum, _, body = rest.partition(b"\n")
    if kind != magic or sha256(body).encode() != checksum:
        raise VerificationFailed(f"{where} is damaged: put the file back from a copy of the store")
    return body


class Segments:
    """The chain of segments of one model."""

    def __init__(self, artifacts: Artifacts, model: str) -> None:
        self._artifacts = artifacts
        self._model = model

    def head(self) -> Segment | None:
        """Return the last segment, None where there is none."""
        last = self._last()
        return self.read(last) if last else None

    def _last(self) -> int:
        numbers = (int(found[1]) for name in self._artifacts.names(FOLDER) if (found := _NAME.fullmatch(name)))
        return max(numbers, default=0)

    def read(self, number: int) -> Segment:
        """Return one segment. Raises `VerificationFailed` where its bytes are not what was written."""
        where = f"{self._artifacts.place}/{name_of(number)}"
        content = self._artifacts.read(name_of(number))
        text, _, payload = opened(_MAGIC, content, where).partition(b"\n")
        try:
            header = msgspec.json.decode(text, type=Header)
        except msgspec.MsgspecError as error:
            raise VerificationFailed(f"{where} is not a segment that this program reads: {error}") from error
        if (header.format, header.model, header.number) != (FORMAT, self._model, number):
            raise VerificationFailed(
                f"{where} is segment {header.number} of model {header.model!r} in format {header.format}: this is "
                f"model {self._model!r}, and this program reads format {FORMAT}"
            )
        return Segment(header, sha256(content), payload)

    def since(self, before: Segment | None) -> Iterator[Segment]:
        """Yield the segments after one (None: from the first on), as far as there are any now.

        Raises `VerificationFailed` where one is missing, or does not name the one before.
        """
        last = 0 if before else self._last()
        while True:
            number = before.header.number + 1 if before else 1
            if not self._artifacts.exists(name_of(number)):
                if number < last:
                    raise VerificationFailed(
                        f"{self._artifacts.place}: segment {number} is missing: put it back from a copy of the store"
                    )
                return
            segment = self.read(number)
            if segment.header.previous != (before.digest if before else ""):
                raise VerificationFailed(
                    f"{self._artifacts.place}/{name_of(number)} does not follow the segment before it: one of the two "
                    f"was replaced; put both back from a copy of the store"
                )
            yield segment
            before = segment

    def append(self, entries: Sequence[Entry], head: Segment | None) -> tuple[Segment, bool] | None:
        """Write the next segment; return it and whether it is new, None where another writer put something else there.

        Counts as written: it was read back.
        """
        header = _header(entries, head, self._model)
        payload = zlib.compress(msgspec.msgpack.encode(entries))
        content = sealed(_MAGIC, msgspec.json.encode(header) + b"\n" + payload)
        try:
            fresh = self._artifacts.write_once(name_of(header.number), content)
        except Conflict:
            return None
        return Segment(header, sha256(content), payload), fresh


def _header(entries: Sequence[Entry], head: Segment | None, model: str) -> Header:
    versions = [version_of(fields) for _, fields in entries]
    numbers = [int(version.partition(":")[0]) for version in versions if version.partition(":")[0].isdigit()]
    return Header(
        format=FORMAT,
        model=model,
        number=head.header.number + 1 if head else 1,
        previous=head.digest if head else "",
        entries=len(entries),
        total=len(entries) + (head.header.total if head else 0),
        first=entries[0][0],
        last=entries[-1][0],
        first_version=versions[0],
        last_version=versions[-1],
        lowest=min(numbers, default=0),
        highest=max(numbers, default=0),
    )
