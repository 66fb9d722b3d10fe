"""Random workers in line for one turn, killed, stopped and woken at any point: one token that counts, and progress."""

import uuid

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.contract.turn_benches import Bench, MemoryBench, RedisBench, Worker, valid_tokens
from tests.fakes.store import MemoryServer
from tests.fakes.turn import MemoryTurnQueue
from worker.state.store import Committed

WORKERS = 4
workers = st.integers(0, WORKERS - 1)


class ManyInLine(RuleBasedStateMachine):
    """On a server in memory. Workers that were stopped are kept: one of them may wake up long after."""

    @initialize()
    def start(self) -> None:
        self.bench = self.opened()
        self.workers = [self.bench.worker() for _ in range(WORKERS)]
        self.stopped: list[Worker] = []

    def opened(self) -> Bench:
        return MemoryBench(MemoryServer(), "m", 1.0)

    @rule(who=workers)
    def ask(self, who: int) -> None:
        self.workers[who].queue.ask()

    @rule(who=workers)
    def look(self, who: int) -> None:
        self.workers[who].queue.granted()

    @rule(who=workers, answered=st.booleans())
    def take_the_turn(self, who: int, answered: bool) -> None:
        """Commit if at turn; where the reply is lost, the same commit is made again later."""
        worker = self.workers[who]
        if worker.queue.granted():
            commit = worker.prepared()
            if not answered:
                worker.store.commit(commit)
            outcome = worker.commit(commit)
            assert isinstance(outcome, Committed), "nobody came in between"

    @rule(who=workers)
    def commit_without_waiting(self, who: int) -> None:
        self.workers[who].commit()

    @rule(who=workers)
    def leave(self, who: int) -> None:
        self.workers[who].queue.leave()

    @rule(who=workers)
    def kill(self, who: int) -> None:
        self.bench.kill(self.workers[who])
        self.workers[who] = self.bench.worker()

    @rule(who=workers)
    def stop(self, who: int) -> None:
        self.stopped.append(self.workers[who])
        self.workers[who] = self.bench.worker()

    @rule(how=st.sampled_from(["leave", "look", "commit"]))
    def wake(self, how: str) -> None:
        if self.stopped and how == "leave":
            self.stopped.pop().queue.leave()
        elif self.stopped and how == "look":
            self.stopped[-1].queue.granted()
        elif self.stopped:
            self.stopped.pop().commit()

    @rule(turn=st.booleans(), issued=st.booleans())
    def lose_keys(self, turn: bool, issued: bool) -> None:
        if turn or issued:
            self.bench.lose(turn=turn, issued=issued)

    @rule(share=st.sampled_from([0.1, 0.6, 1.1]))
    def time_goes_by(self, share: float) -> None:
        if isinstance(self.bench, MemoryBench):
            self.bench.now += share * self.bench.turn_wait_s

    @rule(who=workers)
    def gets_on(self, who: int) -> None:
        """Whoever asks is at turn at last, though all others fall silent this moment."""
        queue = self.workers[who].queue
        queue.ask()
        self.bench.eventually(lambda: queue.granted(0.01), waits=len(self.workers) + len(self.stopped) + 1)

    @invariant()
    def one_token_counts_at_most(self) -> None:
        everybody = self.workers + self.stopped
        under_way = [w.queue.sent for w in everybody if isinstance(w.queue, MemoryTurnQueue) and w.queue.sent]
        assert valid_tokens(self.bench, everybody) + under_way.count(self.bench.issued()) <= 1
        assert len(self.bench.free()) <= 1


TestManyInLine = ManyInLine.TestCase
TestManyInLine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_the_same_on_a_real_server(redis_url: str) -> None:
    class ManyInLineOnRedis(ManyInLine):
        def opened(self) -> Bench:
            return RedisBench(redis_url, f"m-{uuid.uuid4().hex[:12]}", 0.1)

        def teardown(self) -> None:
            if isinstance(self.bench, RedisBench):
                self.bench.close()

    few = settings(max_examples=8, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(ManyInLineOnRedis, settings=few)
