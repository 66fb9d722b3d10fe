"""Events that are told apart from all others: what is learned once can be counted."""

from tests.e2e.streams import T0
from tests.e2e.world import World, feature, label, wait_for
from worker.stream.positions import Ledger


class Pairs:
    """Events of a world that are told apart from all others: each pair is one example, learned once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent = 0

    def send(self, count: int, *partitions: int) -> None:
        """Send pairs, by turns into these partitions (default: all)."""
        turns = partitions or tuple(range(self.world.partitions))
        events = []
        for i in range(self.sent, self.sent + count):
            ts, partition = T0 + i * 1000, turns[i % len(turns)]
            events += [feature(f"p-{i}", ts, x1=float(i % 7)), label(f"p-{i}", ts + 500, i % 2)]
            events[-2:] = [event._replace(partition=partition) for event in events[-2:]]
        self.sent += count
        self.world.send(events)

    def learned(self) -> None:
        """Wait until all of them are learned, and see that each was learned once."""
        expected = Ledger(consumed=2 * self.sent, trained=2 * self.sent)
        wait_for(lambda: self.world.ledger().consumed >= expected.consumed, f"{self.sent} pairs are learned", 90)
        assert self.world.ledger() == expected
        assert self.world.checkpoint().learner.examples == self.sent
