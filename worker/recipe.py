"""Everything beside the events and their order that decides what a commit learns, as one value with a digest.

The commit log names it, the store keeps it once: with the records, whoever reads both retrains every version.
Values only: what runs here is measured in `worker/lineage/`, not in this file.
"""

from collections.abc import Mapping

import msgspec
from blake3 import blake3


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How events become examples and examples become a state. Plain JSON values only.

    `roles`: what each event topic holds. `decoding` and `join`: keyword arguments of `Decoder` and of `JoinRules`.
    `hyper`: fields of `Hyper`. `software`: version by package, `python` and `machine` among them. `code`: digest of
    the source files that compute.
    """

    spec: Mapping[str, object]  # Spec.document()
    hyper: Mapping[str, object]
    roles: Mapping[str, str]
    decoding: Mapping[str, object]
    join: Mapping[str, object]
    kernel: str
    software: Mapping[str, str]
    code: str

    def document(self) -> bytes:
        """Return the canonical JSON (keys sorted), of which the digest is taken."""
        return msgspec.json.encode(self, order="deterministic")

    def digest(self) -> str:
        """Return the BLAKE3 (hex) of the document."""
        return blake3(self.document()).hexdigest()

    @classmethod
    def read(cls, document: bytes) -> "Recipe":
        """Return what `document` was called on. Raises `msgspec.MsgspecError`."""
        return msgspec.json.decode(document, type=cls)
