"""A model state and a partition state as bytes. Pure: no store, no clock, no torch, and never a pickle.

Bytes that come back are not trusted: every one of them is covered by a checksum, and each blob says whose it is.
The checksum is BLAKE3: as strong as SHA-256, which alone took half of a commit (0.55, not 0.15 ms, at 800 KB).

State blob, in order:
  prefix (160 bytes of ASCII, fields padded with spaces)
    0   16  magic      `GRADSTREAM1`
    16  64  version    `number:nonce`; magic and version together are the identity that a commit compares
    80  16  length of the header in bytes
    96  64  BLAKE3 (hex) of the 96 bytes before it and the header
  header    JSON: format, model, version, spec, kernel, partitions, digest
  payload   safetensors; `digest` in the header is its BLAKE3, so the payload is read only once for both purposes

Partition blob, in order:
  prefix (144 bytes): magic `GRADSTREAM1 PART` (16) · fence (64) · BLAKE3 (hex, 64) of those 80 bytes and the body
  body      msgpack of (model, PartitionState)
"""

import math
from collections.abc import Mapping
from typing import cast

import msgspec
import numpy as np
import numpy.typing as npt
import safetensors
from blake3 import blake3
from safetensors.numpy import load as load_tensors

from worker.errors import StateCorrupted
from worker.learn.state import LearnerState
from worker.state.keys import Keys
from worker.state.store import Checkpoint, Commit, Fence, PartitionState, Recipe, StoredPartition, Version

FORMAT = 1
IDENTITY_BYTES = 80  # magic and version, or magic and fence
STATE_MAGIC = b"GRADSTREAM1     "
PARTITION_MAGIC = b"GRADSTREAM1 PART"
_STATE_PREFIX = 160
_PARTITION_PREFIX = 144
_MOST_BYTES = 500 * 1024 * 1024  # Redis takes strings of up to 512 MB
_RESTORE = "put the commit before back with `gradstream state restore --previous`"

# numpy's own name of a little-endian type, because the readable one is worked out anew each time (2 µs)
_DTYPES = {
    "<f8": "F64",
    "<f4": "F32",
    "<i8": "I64",
    "<i4": "I32",
    "<i2": "I16",
    "|i1": "I8",
    "<u8": "U64",
    "<u4": "U32",
    "<u2": "U16",
    "|u1": "U8",
    "|b1": "BOOL",
}


class NotStorable(ValueError):
    """A state that must never become durable: not finite, not plain arrays, or too large. A defect of the caller."""


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    model: str
    version: str
    spec: dict[str, object]
    kernel: str
    partitions: tuple[int, ...]
    digest: str


_read_header = msgspec.json.Decoder(_Header).decode
_read_body = msgspec.msgpack.Decoder(tuple[str, PartitionState]).decode
_write_body = msgspec.msgpack.Encoder().encode


def state_identity(version: Version) -> bytes:
    """Return the first 80 bytes of the state blob of this version."""
    return STATE_MAGIC + _padded(str(version), 64)


def partition_identity(fence: Fence) -> bytes:
    """Return the first 80 bytes of a partition blob under this fence; nothing for "" (not stored)."""
    return PARTITION_MAGIC + _padded(fence, 64) if fence else b""


def read_fence(identity: bytes) -> Fence:
    """Return the fence that `partition_identity` was given."""
    return Fence(identity[16:IDENTITY_BYTES].rstrip(b" ").decode())


def read_version(identity: bytes, key: str) -> Version:
    """Return the version that the first 80 bytes of a state blob name. Raises `StateCorrupted` naming `key`."""
    number, colon, nonce = identity[16:IDENTITY_BYTES].rstrip(b" ").partition(b":")
    if identity[:16] != STATE_MAGIC or not colon or not number.isdigit() or not nonce.isalnum():
        raise _corrupted(key, "it does not begin like a state of Gradstream")
    return Version(int(number), nonce.decode())


def fence_after(commit: Commit) -> Fence:
    """Return the fence that a commit leaves on the partitions it touches: its own nonce.

    The same commit always leaves the same fence. So a client that lost the reply recognises its commit, also after
    other workers have committed on top of it.
    """
    return Fence(commit.checkpoint.version.nonce)


def recipe_document(commit: Commit) -> bytes:
    """Return the document of the commit's recipe, to be kept under the digest that its log entry names.

    Raises `ValueError` where the entry names another one: nobody could find it again.
    """
    if commit.recipe is None or commit.recipe.digest() != commit.entry.recipe:
        raise ValueError(f"the log entry names recipe {commit.entry.recipe!r}, which is not the commit's")
    return commit.recipe.document()


def read_recipe(document: bytes, digest: str, key: str) -> Recipe:
    """Return the recipe kept under `digest` in the hash `key`. Raises `StateCorrupted` if it is not the one."""
    try:
        recipe = Recipe.read(document)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged_recipe(digest, key) from error
    if recipe.digest() != digest:
        raise _damaged_recipe(digest, key)
    return recipe


def digest(learner: LearnerState) -> str:
    """Return the BLAKE3 (hex) of the arrays as safetensors, names sorted: what is learned, whatever its version."""
    hasher = blake3()
    for piece in _tensor_pieces(learner.arrays):
        hasher.update(piece)
    return hasher.hexdigest()


def encode(checkpoint: Checkpoint, model: str) -> tuple[bytes, str]:
    """Return (state blob, digest of its arrays). Raises `NotStorable`."""
    pieces = _tensor_pieces(checkpoint.learner.arrays)
    hasher = blake3()
    for piece in pieces:
        hasher.update(piece)
    header = msgspec.json.encode(
        _Header(
            format=FORMAT,
            model=model,
            version=str(checkpoint.version),
            spec=dict(checkpoint.spec),
            kernel=checkpoint.kernel,
            partitions=tuple(sorted(checkpoint.partitions)),
            digest=hasher.hexdigest(),
        )
    )
    start = state_identity(checkpoint.version) + _padded(str(len(header)), 16)
    checksum = blake3(start + header).hexdigest().encode()
    blob = b"".join((start, checksum, header, *pieces))
    if len(blob) > _MOST_BYTES:
        raise NotStorable(f"the state of {model} is {len(blob)} bytes, the limit is {_MOST_BYTES}")
    return blob, hasher.hexdigest()


def decode(blob: bytes, model: str, key: str | None = None) -> Checkpoint:
    """Return what `encode` was given. `key` is named in errors. Raises `StateCorrupted` if a single byte differs."""
    key = key or Keys(model).state
    version = read_version(blob[:IDENTITY_BYTES], key)
    header, payload = _split_state(blob, key)
    if header.format != FORMAT:
        raise _corrupted(key, f"its format is {header.format}, this program reads {FORMAT}")
    if header.model != model:
        raise _corrupted(key, f"it is the state of model {header.model!r}, not of {model!r}")
    if header.version != str(version) or blake3(payload).hexdigest() != header.digest:
        raise _corrupted(key, "its checksum does not match")
    try:
        arrays = cast("dict[str, npt.NDArray[np.generic]]", load_tensors(payload))
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise _corrupted(key, "its arrays can not be read") from error
    return Checkpoint(version, header.spec, header.kernel, frozenset(header.partitions), LearnerState(arrays))


def encode_partition(state: PartitionState, fence: Fence, model: str) -> bytes:
    """Return the partition blob of `state` under `fence` (not empty)."""
    start = partition_identity(fence)
    if not start:
        raise NotStorable(f"partition {state.partition} of {model} has no fence")
    body = _write_body((model, state))
    return start + blake3(start + body).hexdigest().encode() + body


def decode_partition(blob: bytes, model: str, partition: int, key: str | None = None) -> StoredPartition:
    """Return what `encode_partition` was given. Raises `StateCorrupted` if a single byte differs."""
    key = key or Keys(model).partition(partition)
    start, checksum, body = blob[:IDENTITY_BYTES], blob[IDENTITY_BYTES:_PARTITION_PREFIX], blob[_PARTITION_PREFIX:]
    if start[:16] != PARTITION_MAGIC:
        raise _corrupted(key, "it does not begin like a partition of Gradstream")
    if blake3(start + body).hexdigest().encode() != checksum:
        raise _corrupted(key, "its checksum does not match")
    try:
        owner, state = _read_body(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _corrupted(key, "its body can not be read") from error
    if owner != model or state.partition != partition:
        raise _corrupted(key, f"it is partition {state.partition} of model {owner!r}")
    return StoredPartition(read_fence(start), state)


def _corrupted(key: str, what: str) -> StateCorrupted:
    return StateCorrupted(f"{key} is damaged: {what}; {_RESTORE}")


def _damaged_recipe(digest: str, key: str) -> StateCorrupted:
    return StateCorrupted(
        f"{key} field {digest} is damaged: it is not the recipe of that digest; the model is not affected"
    )


def _padded(text: str, width: int) -> bytes:
    raw = text.encode("ascii")
    if len(raw) > width or b" " in raw:
        raise NotStorable(f"{text!r} does not fit into {width} bytes without blanks")
    return raw.ljust(width)


def _split_state(blob: bytes, key: str) -> tuple[_Header, bytes]:
    length = blob[80:96].rstrip(b" ")
    if len(blob) < _STATE_PREFIX or not length.isdigit():
        raise _corrupted(key, "it is cut short or was overwritten")
    end = _STATE_PREFIX + int(length)
    header = blob[_STATE_PREFIX:end]
    if blake3(blob[:96] + header).hexdigest().encode() != blob[96:_STATE_PREFIX]:
        raise _corrupted(key, "its checksum does not match")
    try:
        return _read_header(header), blob[end:]
    except msgspec.MsgspecError as error:
        raise _corrupted(key, "its header can not be read") from error


def _plain(name: str, value: object) -> npt.NDArray[np.generic]:
    """Return a little-endian, contiguous array (a scalar stays a scalar), or refuse what is not finite or plain."""
    array = np.asarray(value, order="C")
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.dtype.str not in _DTYPES:
        raise NotStorable(f"array {name} has type {array.dtype}, which a state can not hold")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise NotStorable(f"array {name} is not finite: a state that is not finite is never committed")
    return array


def _tensor_pieces(arrays: Mapping[str, object]) -> list[bytes | memoryview]:
    """Return the safetensors file of the arrays in pieces, names sorted, without copying the numbers.

    Written here because the library's `save` copies the numbers twice (0.6 ms at 800 KB, more than half of what a
    commit may cost) and leaves the order of the arrays to its version; its `load` reads what is written here.
    """
    table: dict[str, object] = {}
    pieces: list[bytes | memoryview] = []
    end = 0
    for name in sorted(arrays):
        array = _plain(name, arrays[name])
        start, end = end, end + array.nbytes
        table[name] = {
            "dtype": _DTYPES[array.dtype.str],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
        pieces.append(array.reshape(-1).view(np.uint8).data if array.nbytes else b"")
    text = msgspec.json.encode(table)
    text = text.ljust(8 * math.ceil(len(text) / 8))
    return [len(text).to_bytes(8, "little"), text, *pieces]
