"""In which order the records of several topic partitions are taken. Pure.

A record's key is the largest event time read so far in its topic partition, itself included: a partition is always
taken in offset order, and a backlog is learned in the same order every time. This is order only: nothing correct
rests on it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]


def running_keys(times: Sequence[int], before: int) -> Keys:
    """Return the order keys [n] of records with these event times (-1: none), after the largest one `before`."""
    keys = np.maximum.accumulate(np.array([before, *times], np.int64))
    return keys[1:]


def merge(keys: Sequence[Keys], last: Sequence[int], passed: Sequence[bool]) -> npt.NDArray[np.int64]:
    """Return which lane to take from next, record by record, as far as the order is certain.

    `keys` are the non-decreasing keys of what each lane has buffered; `last` the key of the last record *read* on each
    lane (taken or not); a passed lane holds nobody up. Smallest key first, ties by lane number.
    """
    bound = min((k for k, p in zip(last, passed, strict=True) if not p), default=None)
    ready = [k if bound is None else k[: np.searchsorted(k, bound, side="right")] for k in keys]
    lanes = np.repeat(np.arange(len(ready)), [len(k) for k in ready])
    if sum(1 for k in ready if len(k)) <= 1:
        return lanes
    return lanes[np.argsort(np.concatenate(ready), kind="stable")]
