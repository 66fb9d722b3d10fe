"""Does to a running fleet what the plan says, and undoes it in time. Nothing is random here.

Workers are handled in the caller's thread; servers are stopped and started in one thread each, because that takes
seconds in which other faults go on.
"""

import heapq
import itertools
import queue
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime

import redis

from tests.chaos.fleet import Fleet
from tests.chaos.plan import EVERYBODY, Fault
from tests.chaos.proxy import Proxies, Proxy
from tests.chaos.servers import Servers
from tests.chaos.watch import Watch

TURN_WITHIN_S = 3.0  # then the kill does not wait for a turn any longer
AGAIN_S = 0.1


class Chaos:
    """Applies faults one after the other; `tick` has to be called often."""

    def __init__(
        self, servers: Servers, fleet: Fleet, proxies: Proxies, ways: tuple[list[Proxy], list[Proxy]], watch: Watch,
        model: str,
    ) -> None:  # fmt: skip
        self.servers = servers
        self.fleet = fleet
        self.watch = watch
        watch.excused = self.trouble
        self.kafka, self.redis = ways
        self.counts: dict[str, int] = {}
        self._proxies = proxies
        self._model = model
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._workshops = {name: ThreadPoolExecutor(1) for name in ("kafka", "redis")}
        self._repairs: list[Future[None]] = []
        self._armed: Fault | None = None
        self._killed_at_turn: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()
        self._network_until = 0.0
        for number, proxy in enumerate(self.redis):
            proxy._on_turn = lambda number=number: self.turn_given(number)

    # -- time -----------------------------------------------------------------------------------------------------

    def schedule(self, faults: Iterable[Fault], begun: float) -> None:
        for fault in faults:
            self._at(begun + fault.at_s, lambda fault=fault: self._apply(fault))  # type: ignore[misc]

    def tick(self) -> None:
        """Do what is due, and bury and replace who died."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        while not self._killed_at_turn.empty():
            number, down_s = self._killed_at_turn.get()
            self._count("kill_at_turn (holder)", f"slot {number}")
            self._later(down_s, lambda number=number: self._restart(number))  # type: ignore[misc]
        for number in self.fleet.look(trouble=self.trouble()):
            self._later(1.0, lambda number=number: self._restart(number))  # type: ignore[misc]

    def trouble(self) -> bool:
        """Say whether something is broken right now that a worker may have to wait for."""
        return any(not repair.done() for repair in self._repairs) or time.monotonic() < self._network_until

    def end(self) -> None:
        """Heal everything: no fault is left, and no repair."""
        self._armed = None
        for proxy in (*self.kafka, *self.redis):
            proxy.way.heal()
        for repair in self._repairs:
            repair.result(120)
        for slot in self.fleet.slots:
            self.fleet.resume(slot.number, slot.started)
        self._due.clear()
        for workshop in self._workshops.values():
            workshop.shutdown()

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._number), what))

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self._at(time.monotonic() + seconds, what)

    def _count(self, kind: str, where: str = "") -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        print(f"{datetime.now(UTC):%H:%M:%S.%f} {kind} {where}", file=sys.stderr, flush=True)

    # -- faults ---------------------------------------------------------------------------------------------------

    def _apply(self, fault: Fault) -> None:
        server, _, what = fault.kind.partition("_")
        if fault.kind == "turn_deleted":
            done = self._delete_turn()
        elif what in ("killed", "restarted", "lost_its_last_second"):
            done = self._restart_server(server, what, fault)
        elif server in ("kafka", "redis"):
            done = self._disturb(server, what, fault)
        else:
            done = self._worker(fault)
        if done:
            self._count(fault.kind, f"slot {fault.slot}, {fault.for_s:g} s, {fault.size:g}")

    def _worker(self, fault: Fault) -> bool:
        living = self.fleet.living()
        if fault.kind == "add":
            return self._add()
        if not living:
            return False
        number = living[fault.slot % len(living)]
        if fault.kind == "kill":
            self.fleet.kill_now(number)
            self._later(fault.for_s, lambda: self._restart(number))
            return True
        if fault.kind == "kill_at_turn":
            self._armed = fault
            self._later(TURN_WITHIN_S, lambda: self._no_turn_came(fault))
            return True
        if fault.kind in ("end", "remove"):
            return self._told_to_end(fault, number, few=len(living) < 3)
        started = self.fleet.slots[number].started
        self._later(fault.for_s, lambda: self.fleet.resume(number, started))
        return self.fleet.pause(number)

    def _told_to_end(self, fault: Fault, number: int, *, few: bool) -> bool:
        if fault.kind == "remove" and few:
            return False
        ended = self.fleet.end(number, troubled=self.trouble())
        if ended and fault.kind == "end":
            self._later(fault.for_s, lambda: self._restart(number))
        return ended

    def _add(self) -> bool:
        free = [slot.number for slot in self.fleet.slots[:-1] if slot.child is None]  # the last one is for the drain
        if free:
            self.fleet.start(free[0])
        return bool(free)

    def _restart(self, number: int) -> None:
        if self.fleet.slots[number].child is not None:
            if not self.fleet.slots[number].living:
                self._later(AGAIN_S, lambda: self._restart(number))
            return
        self._count("start", f"slot {number}")
        self.fleet.start(number)

    def turn_given(self, number: int) -> None:
        """A worker was handed the turn. Called by its proxy, in the proxies' thread, before it hears of it."""
        armed = self._armed
        if armed is not None:
            self._armed = None
            self.fleet.kill_now(number)
            self._killed_at_turn.put((number, armed.for_s))

    def _no_turn_came(self, fault: Fault) -> None:
        if self._armed is fault:
            self._armed = None
            self._worker(fault._replace(kind="kill"))

    def _delete_turn(self) -> bool:
        root = f"gradstream:{{{self._model}}}"
        try:
            with redis.Redis.from_url(self.servers.redis_url, socket_timeout=1) as client:
                client.delete(f"{root}:turn", f"{root}:turn:issued")
        except redis.RedisError:
            return False
        return True

    # -- servers and ways to them ---------------------------------------------------------------------------------

    def _restart_server(self, server: str, what: str, fault: Fault) -> bool:
        kill = what != "restarted"
        cut_s = fault.size if what == "lost_its_last_second" else 0.0

        def work() -> None:
            if server == "kafka":
                self.servers.restart_kafka(fault.for_s, kill=kill)
            else:
                lost = lambda: self.watch.lost_bytes(cut_s) if cut_s else 0  # noqa: E731
                if self.servers.restart_redis(fault.for_s, kill=kill, lost_bytes=lost):
                    self._count("redis bytes were lost")
            print(f"{datetime.now(UTC):%H:%M:%S.%f} {server} is back", file=sys.stderr, flush=True)

        self._repairs.append(self._workshops[server].submit(work))
        return True

    def _disturb(self, server: str, what: str, fault: Fault) -> bool:
        proxies = self.kafka if server == "kafka" else self.redis
        if fault.slot != EVERYBODY:
            living = self.fleet.living()
            if not living:
                return False
            proxies = [proxies[living[fault.slot % len(living)]]]
        for proxy in proxies:
            way = proxy.way
            if what == "refused":
                way.refused = True
            elif what == "stalled":
                way.stalled = True
            elif what == "slow":
                way.slow_s = fault.size
            elif what == "narrow":
                way.bytes_a_second = fault.size
            elif what == "replies_lost":
                way.replies_lost = True
            if what in ("cut", "refused"):
                self._proxies.call(proxy.cut)
            if fault.for_s:
                self._later(fault.for_s, way.heal)
        self._network_until = max(self._network_until, time.monotonic() + fault.for_s)
        return True
