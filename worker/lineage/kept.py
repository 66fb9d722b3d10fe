"""Kept states: a model and all its partitions as they were at one version, in the artifact store. Knows no Redis.

Blobs go in as the store of states had them, under their own digest; a small index file names them. Each version is kept
once: the first one stays.
"""

import re
from collections.abc import Mapping

import msgspec

from worker.errors import ConfigError, Conflict, VerificationFailed
from worker.lineage.segments import opened, sealed
from worker.release.artifacts import Artifacts
from worker.state import checkpoint as codec
from worker.state.moment import Moment
from worker.state.store import Version

FORMAT = 1
FOLDER = "lineage/kept"
_MAGIC = b"GRADSTREAM1 KEPT"
_NAME = re.compile(r"(\d{20})-([0-9A-Za-z]+)\.kept")


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kept state. `state`, `partitions`: SHA-256 (hex) of blobs. `digest`: BLAKE3 of what was learned.

    `place`: of its entry in the log of Redis. `committed_at`: RFC 3339, a stamp only.
    """

    format: int
    model: str
    number: int
    nonce: str
    digest: str
    examples: int
    place: str
    committed_at: str
    state: str
    partitions: Mapping[int, str]

    @property
    def version(self) -> Version:
        return Version(self.number, self.nonce)


def keep(artifacts: Artifacts, model: str, moment: Moment) -> Kept:
    """Keep a moment; return its index entry. Raises `StateCorrupted`: what is damaged is not worth keeping."""
    checkpoint = moment.checkpoint(model)
    moment.positions(model)
    name = _name(checkpoint.version)
    if artifacts.exists(name):
        return _read(artifacts, model, name)
    kept = Kept(
        format=FORMAT,
        model=model,
        number=checkpoint.version.number,
        nonce=checkpoint.version.nonce,
        digest=codec.digest(checkpoint.learner),
        examples=checkpoint.learner.examples,
        place=moment.place,
        committed_at=moment.committed_at,
        state=artifacts.put(moment.state),
        partitions={number: artifacts.put(blob) for number, blob in sorted(moment.partitions.items())},
    )
    try:
        artifacts.write_once(name, sealed(_MAGIC, msgspec.json.encode(kept)))
    except Conflict:  # another one kept the same version in between; a claim may have changed a fence, nothing else
        return _read(artifacts, model, name)
    return kept


def kept_versions(artifacts: Artifacts, model: str) -> list[Kept]:
    """Return all that is kept, by version number, then in no order that means anything."""
    return [_read(artifacts, model, f"{FOLDER}/{name}") for name in artifacts.names(FOLDER) if _NAME.fullmatch(name)]


def kept(artifacts: Artifacts, model: str, version: Version) -> Moment:
    """Return the moment of a version, every byte checked. Raises `ConfigError` where it is not kept."""
    if not artifacts.exists(_name(version)):
        raise ConfigError(f"state version {version} is not kept in {artifacts.place}")
    index = _read(artifacts, model, _name(version))
    partitions = {number: artifacts.get(digest) for number, digest in index.partitions.items()}
    moment = Moment(artifacts.get(index.state), partitions, index.place, index.committed_at)
    if codec.digest(moment.checkpoint(model).learner) != index.digest:
        raise VerificationFailed(f"{artifacts.place}/{_name(version)} names a state that is not the one it was kept as")
    return moment


def _name(version: Version) -> str:
    return f"{FOLDER}/{version.number:020}-{version.nonce}.kept"


def _read(artifacts: Artifacts, model: str, name: str) -> Kept:
    where = f"{artifacts.place}/{name}"
    try:
        found = msgspec.json.decode(opened(_MAGIC, artifacts.read(name), where), type=Kept)
    except msgspec.MsgspecError as error:
        raise VerificationFailed(f"{where} is not a kept state that this program reads: {error}") from error
    if (found.format, found.model, _name(found.version)) != (FORMAT, model, name):
        raise VerificationFailed(
            f"{where} is version {found.version} of model {found.model!r}: it was put there by hand"
        )
    return found
