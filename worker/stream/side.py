"""One topic of a partition pair in the join: what waits, what was trained, how far event time has come. Pure.

It decides nothing: which events meet, expire or are refused is the business of `join`.
"""

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from pyroaring import BitMap64

from worker.stream.positions import Ledger, SideState

Entry = TypeVar("Entry", bound=tuple[int, int, *tuple[object, ...]])

NEVER = 1 << 62  # later than any event time
SPARE = 10_000  # entries of garbage that are not worth a clean-up (2 MB)
NO_LABEL = float("nan")


class Side(Generic[Entry]):
    """`waiting` maps an id to (offset, event time, payload…).

    `earliest` is no later than the event time of anything that waits. Bitmaps of offsets follow lazily, and so does the
    count of trained records: they are brought up to date when a snapshot is taken.
    """

    __slots__ = (
        "clock", "counts", "earliest", "gone", "heap", "new_trained", "new_waiting", "next_offset", "order_key",
        "pending_bits", "recalled", "topic", "topic_id", "trained_bits", "waiting",
    )  # fmt: skip

    def __init__(self, state: SideState) -> None:
        self.topic = state.topic
        self.topic_id = state.topic_id
        self.next_offset = state.next_offset  # after the last record taken
        self.clock = state.clock
        self.order_key = state.order_key
        self.pending_bits = BitMap64.deserialize(state.pending) if state.pending else BitMap64()
        self.trained_bits = BitMap64.deserialize(state.trained) if state.trained else BitMap64()
        self.waiting: dict[str, Entry] = {}
        self.heap: list[tuple[int, int, str]] = []  # event time, offset, id; also of events that have left since
        self.earliest = NEVER
        self.new_waiting: list[int] = []
        self.gone: list[int] = []
        self.new_trained: list[int] = []
        self.recalled: list[int] = []
        self.counts = dict.fromkeys(Ledger.__struct_fields__, 0)

    # -- waiting --------------------------------------------------------------------------------------------------

    def wait(self, id_: str, entry: Entry) -> None:
        offset, time = entry[0], entry[1]
        self.waiting[id_] = entry
        self.new_waiting.append(offset)
        heappush(self.heap, (time, offset, id_))
        if time < self.earliest:  # noqa: PLR1730  (a call of `min` would cost more than the rest of the line)
            self.earliest = time
        if len(self.heap) > 2 * len(self.waiting) + SPARE:
            self._sweep()

    def leave(self, id_: str) -> Entry:
        entry = self.waiting.pop(id_)
        self.gone.append(entry[0])
        return entry

    def pop_expired(self, before: int) -> list[str]:
        """Return the ids that wait with an event time below `before`, oldest first; the caller lets them leave."""
        ids = []
        while self.heap and self.heap[0][0] < before:
            _, offset, id_ = heappop(self.heap)
            entry = self.waiting.get(id_)
            if entry is not None and entry[0] == offset:
                ids.append(id_)
        self.earliest = self.heap[0][0] if self.heap else NEVER
        return ids

    def _sweep(self) -> None:
        """Forget when matched events would have expired: they would else stay for a window, memory = rate x window."""
        self.heap = [(entry[1], entry[0], id_) for id_, entry in self.waiting.items()]
        heapify(self.heap)
        self.earliest = self.heap[0][0] if self.heap else NEVER

    # -- across restarts ------------------------------------------------------------------------------------------

    def recall_waiting(self, id_: str, entry: Entry) -> None:
        """Put back what waited when the stored state was written (its offset is in the bitmap already)."""
        self.waiting[id_] = entry

    def recall_trained(self, offset: int) -> None:
        self.recalled.append(offset)

    def finish_recall(self) -> int:
        """Settle what was recalled; return how many waiting events were not found again.

        Trained records that were not found are forgotten: they are gone, and the next owner must not look for them.
        That only shortens the memory of duplicates; a lost waiting event is for the caller to refuse.
        """
        self._sweep()
        self.trained_bits, self.recalled = BitMap64(self.recalled), []
        return len(self.pending_bits) - len(self.waiting)

    def snapshot(self, next_offset: int, limit: int) -> SideState:
        """Return the side as a value, with reading to go on at `next_offset`.

        What is remembered depends on the records *taken*, not on `next_offset`: that one moves over transaction
        markers as they are read, and a restart would then remember other ids than the worker it replaces.
        """
        pending, trained = self.pending_bits, self.trained_bits
        pending.update(self.new_waiting)
        pending.difference_update(BitMap64(self.gone))
        trained.update(self.new_trained)
        self.counts["trained"] += len(self.new_trained)
        trained.remove_range(0, max(0, self.next_offset - limit))
        self.new_waiting, self.gone, self.new_trained = [], [], []
        if len(self.heap) > 2 * len(self.waiting) + SPARE:
            self._sweep()  # also where events only leave
        oldest = min([next_offset, *(bits.min() for bits in (pending, trained) if bits)])
        return SideState(
            self.topic, self.topic_id, next_offset, self.clock, self.order_key, oldest,
            pending.serialize(), trained.serialize(),
        )  # fmt: skip
