"""What a commit took of each source, as its log entry tells it. Pure, and light: asked without learning."""

import zlib

import numpy as np
import numpy.typing as npt

from worker.stream.positions import MARK, Consumed


def taken(consumed: Consumed) -> list[int]:
    """Return how many records of each source were taken; the moments of a followed clock are no records."""
    codes = _codes(consumed)
    return np.bincount(codes[codes < MARK], minlength=len(consumed.sources)).tolist()  # type: ignore[no-any-return]


def followed_first(consumed: Consumed) -> list[bool]:
    """Say of each source whether its clock followed the other side's before a record of it was taken.

    Its first offset is then where reading had come to at that moment: transaction markers may lie between that and the
    first record.
    """
    codes = _codes(consumed)
    if not len(codes) or codes.max() < MARK:
        return [False] * len(consumed.sources)
    sources, firsts = np.unique(codes & (MARK - 1), return_index=True)
    follows = dict(zip(sources.tolist(), (codes[firsts] >= MARK).tolist(), strict=True))
    return [follows.get(code, False) for code in range(len(consumed.sources))]


def _codes(consumed: Consumed) -> npt.NDArray[np.uint16]:
    return np.frombuffer(zlib.decompress(consumed.order), "<u2")
