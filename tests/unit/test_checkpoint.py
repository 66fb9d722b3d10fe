"""States and partitions as bytes: what goes in comes out, and nothing else does."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load as load_tensors

from tests.contract.store_samples import SPEC, checkpoint, commit_on, entry, learner, partition, version
from worker.errors import ConfigError, StateCorrupted
from worker.learn.state import LearnerState
from worker.state.checkpoint import (
    IDENTITY_BYTES,
    NotStorable,
    decode,
    decode_partition,
    digest,
    encode,
    encode_partition,
    fence_after,
    partition_identity,
    read_version,
    state_identity,
)
from worker.state.commit_log import from_fields, to_fields
from worker.state.keys import Keys
from worker.state.store import Checkpoint, Fence, Ledger, PartitionState, SideState, Version

FENCE = Fence("f" * 32)


def arrays_of(**arrays: Any) -> LearnerState:
    return LearnerState(arrays)


@given(
    arrays=st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=12),
        hnp.arrays(
            st.sampled_from([np.float64, np.float32, np.int64, np.uint32, np.bool_]),
            hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
            elements={"allow_nan": False, "allow_infinity": False},
        ),
        max_size=5,
    ),
    number=st.integers(0, 2**63),
    partitions=st.frozensets(st.integers(0, 10_000), max_size=5),
)
def test_what_is_encoded_comes_back(arrays: dict[str, Any], number: int, partitions: frozenset[int]) -> None:
    given_in = Checkpoint(Version(number, "abc123"), SPEC, "numpy", partitions, LearnerState(arrays))
    blob, named = encode(given_in, "flights")
    back = decode(blob, "flights")
    assert (back.version, back.spec, back.kernel, back.partitions) == (given_in.version, SPEC, "numpy", partitions)
    assert named == digest(back.learner) == digest(given_in.learner)
    assert back.learner.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back.learner.arrays[name].dtype == array.dtype
        assert back.learner.arrays[name].tobytes() == array.tobytes()
        assert back.learner.arrays[name].shape == array.shape


@given(
    offsets=st.integers(0, 2**62),
    bitmap=st.binary(max_size=40),
    topic=st.text(st.characters(codec="utf-8"), max_size=9),
)
def test_a_partition_comes_back(offsets: int, bitmap: bytes, topic: str) -> None:
    side = SideState(topic, "", offsets, -1, -1, offsets, bitmap, bitmap)
    state = PartitionState(7, Ledger(consumed=offsets, pending=offsets), (side,))
    stored = decode_partition(encode_partition(state, FENCE, "flights"), "flights", 7)
    assert (stored.fence, stored.state) == (FENCE, state)


def test_one_flipped_byte_anywhere_in_a_state_is_detected() -> None:
    blob, _ = encode(checkpoint(3, partitions=frozenset({0, 1})), "flights")
    for position in range(len(blob)):
        for mask in (0x01, 0x20, 0xFF):
            damaged = bytearray(blob)
            damaged[position] ^= mask
            with pytest.raises(StateCorrupted):
                decode(bytes(damaged), "flights")


def test_one_flipped_byte_anywhere_in_a_partition_is_detected() -> None:
    blob = encode_partition(partition(4, 11), FENCE, "flights")
    for position in range(len(blob)):
        for mask in (0x01, 0x20, 0xFF):
            damaged = bytearray(blob)
            damaged[position] ^= mask
            with pytest.raises(StateCorrupted):
                decode_partition(bytes(damaged), "flights", 4)


def test_every_truncation_and_every_extension_is_detected() -> None:
    state, _ = encode(checkpoint(), "flights")
    part = encode_partition(partition(), FENCE, "flights")
    for end in range(len(state)):
        with pytest.raises(StateCorrupted):
            decode(state[:end], "flights")
    for end in range(len(part)):
        with pytest.raises(StateCorrupted):
            decode_partition(part[:end], "flights", 0)
    with pytest.raises(StateCorrupted):
        decode(state + b"\0", "flights")
    with pytest.raises(StateCorrupted):
        decode_partition(part + b"\0", "flights", 0)


@given(st.binary(max_size=400))
def test_foreign_bytes_are_refused(foreign: bytes) -> None:
    with pytest.raises(StateCorrupted):
        decode(foreign, "flights")
    with pytest.raises(StateCorrupted):
        decode_partition(foreign, "flights", 0)


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    """Bytes from the store are untrusted; a pickle with a side effect has none."""
    sprung = tmp_path / "sprung"
    trap = pickle.dumps(Trap(sprung))
    for bytes_there in (trap, b"GRADSTREAM1     " + trap, trap.ljust(400)):
        with pytest.raises(StateCorrupted):
            decode(bytes_there, "flights")
        with pytest.raises(StateCorrupted):
            decode_partition(bytes_there, "flights", 0)
    assert not sprung.exists()
    pickle.loads(trap)
    assert sprung.exists(), "the trap works, so the refusal above was what kept it shut"


def test_the_state_of_another_model_is_refused_by_name() -> None:
    blob, _ = encode(checkpoint(), "flights")
    with pytest.raises(StateCorrupted, match=r"gradstream:\{trains\}:state .*'flights'.*restore --previous"):
        decode(blob, "trains")
    with pytest.raises(StateCorrupted, match="'flights'"):
        decode_partition(encode_partition(partition(), FENCE, "flights"), "trains", 0)


def test_the_bytes_of_another_partition_are_refused() -> None:
    with pytest.raises(StateCorrupted, match=r"partition:2 .*it is partition 1"):
        decode_partition(encode_partition(partition(1), FENCE, "flights"), "flights", 2)


def test_errors_name_the_key_and_the_remedy_and_never_the_content() -> None:
    blob, _ = encode(checkpoint(), "flights")
    with pytest.raises(StateCorrupted) as caught:
        decode(blob[:-1], "flights")
    text = str(caught.value)
    assert "gradstream:{flights}:state" in text
    assert "gradstream state restore --previous" in text
    assert "carrier" not in text


def test_the_digest_is_that_of_the_arrays_alone() -> None:
    one, other = checkpoint(1), checkpoint(2, partitions=frozenset({5}), state=learner(1))
    assert digest(one.learner) == digest(other.learner) == encode(other, "other")[1]
    backwards = LearnerState(dict(reversed(list(one.learner.arrays.items()))))
    assert digest(backwards) == digest(one.learner)
    assert digest(learner(1, weight=0.5000001)) != digest(one.learner)


def test_the_payload_is_a_safetensors_file_whose_blake3_is_the_digest() -> None:
    blob, named = encode(checkpoint(), "flights")
    payload = blob[160 + int(blob[80:96]) :]
    assert blake3(payload).hexdigest() == named
    assert load_tensors(payload)["weight"].tolist() == [0.5] * 6


def test_layout_does_not_matter_only_values() -> None:
    plain = np.arange(6.0).reshape(2, 3)
    for same in (np.asfortranarray(plain), plain.astype(">f8"), np.repeat(plain, 2, axis=1)[:, ::2]):
        assert digest(arrays_of(w=same)) == digest(arrays_of(w=plain))


def test_numpy_scalars_are_stored_as_scalars() -> None:
    """A NumPy float among the values must not break the next load."""
    state = arrays_of(rate=np.float64(0.25), steps=np.int64(7), plain=3.5)
    back = decode(encode(checkpoint(state=state), "flights")[0], "flights").learner.arrays
    assert (back["rate"].shape, float(back["rate"]), int(back["steps"]), float(back["plain"])) == ((), 0.25, 7, 3.5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(NotStorable, match="w is not finite"):
        encode(checkpoint(state=arrays_of(ok=np.zeros(3), w=np.array([0.0, value]))), "flights")


@pytest.mark.parametrize("value", [np.array(["a"]), np.array([object()]), np.array([1j]), "text", None])
def test_what_is_no_plain_array_is_refused(value: object) -> None:
    with pytest.raises(NotStorable, match="can not hold"):
        encode(checkpoint(state=arrays_of(w=value)), "flights")


@pytest.mark.parametrize("nonce", ["with blank", "x" * 70])
def test_identities_that_do_not_fit_are_refused(nonce: str) -> None:
    with pytest.raises(NotStorable):
        state_identity(Version(1, nonce))
    with pytest.raises(NotStorable):
        partition_identity(Fence(nonce))


def test_a_partition_without_a_fence_is_refused() -> None:
    with pytest.raises(NotStorable, match="no fence"):
        encode_partition(partition(), Fence(""), "flights")


def test_blobs_begin_with_their_identity() -> None:
    first = checkpoint(12)
    blob, _ = encode(first, "flights")
    assert blob[:IDENTITY_BYTES] == state_identity(first.version)
    assert read_version(blob[:IDENTITY_BYTES], "key") == first.version
    assert encode_partition(partition(), FENCE, "flights")[:IDENTITY_BYTES] == partition_identity(FENCE)
    assert partition_identity(Fence("")) == b""


def test_the_same_commit_always_leaves_the_same_fence() -> None:
    base = checkpoint()
    commit = commit_on(base, {0: FENCE})
    assert fence_after(commit) == fence_after(commit) != fence_after(commit_on(base, {0: FENCE}))


def test_a_log_entry_comes_back() -> None:
    base, new = version(4), version(5)
    fields = {
        k.encode(): v if isinstance(v, bytes) else v.encode() for k, v in to_fields(base, new, "d1", entry()).items()
    }
    assert from_fields("7-1", fields, "key") == ("7-1", base, new, "d1", entry())
    for name in fields:
        with pytest.raises(StateCorrupted, match="entry 7-1"):
            from_fields("7-1", {k: v for k, v in fields.items() if k != name}, "key")
    with pytest.raises(StateCorrupted, match="entry 7-1"):
        from_fields("7-1", fields | {b"records": b"many"}, "key")


def test_reading_states_does_not_import_torch_or_redis() -> None:
    """`status` has to be quick: torch alone takes a second."""
    code = "import sys, worker.state.checkpoint, worker.state.commit_log; print('torch' in sys.modules, 'redis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("name", ["", "a b", "a{b}", "a:b", "Ä", "x" * 65, "UPPER", "a\n"])
def test_names_that_could_leave_their_own_keys_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.name"):
        Keys(name)


def test_all_keys_of_a_model_share_one_hash_tag() -> None:
    keys = Keys("flights")
    names = [getattr(keys, name) for name in dir(Keys) if isinstance(getattr(Keys, name), property)]
    assert len(set(names)) >= 7
    assert all("{flights}" in name for name in [*names, keys.partition(3)])
