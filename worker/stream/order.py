"""In which order the records of several topic partitions are taken. Pure.

A record's key is the largest event time read so far in its topic partition, itself included: a partition is always
taken in offset order, and a backlog is learned in the same order every time. This is order only: nothing correct
rests on it.

Smallest key first, ties by lane number. The next record is certain once no lane can still bring one that sorts before
it: every other lane was read up to a greater key, or up to the same key if it comes later among ties. (With ties let
through, the order would depend on how many records one poll happened to bring.) A passed lane holds nobody up.
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
    lane (taken or not).
    """
    ready = []
    for lane, buffered in enumerate(keys):
        bounds = [k - (other < lane) for other, k in enumerate(last) if other != lane and not passed[other]]
        ready.append(buffered[: np.searchsorted(buffered, min(bounds), side="right")] if bounds else buffered)
    lanes = np.repeat(np.arange(len(ready)), [len(k) for k in ready])
    if sum(1 for k in ready if len(k)) <= 1:
        return lanes
    return lanes[np.argsort(np.concatenate(ready), kind="stable")]


def first(heads: Sequence[int | None], last: Sequence[int], passed: Sequence[bool]) -> int | None:
    """Return the one lane to take from next, or None while that is not certain: the first entry of `merge`.

    `heads` are the keys of the first record that each lane has buffered, None where there is none.
    """
    smallest = min(((key, lane) for lane, key in enumerate(heads) if key is not None), default=None)
    if smallest is None:
        return None
    for other, key in enumerate(last):
        if other != smallest[1] and not passed[other] and (key, other) < smallest:
            return None
    return smallest[1]
