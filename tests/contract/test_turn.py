"""What a queue for the turn promises: one suite for the one in memory and the one on Redis."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from tests.contract.turn_benches import PATIENT_S, Bench, MemoryBench, RedisBench, Worker, valid_tokens
from tests.fakes.store import MemoryServer
from worker.state.store import Committed, Moved, TurnQueue

QUICK_S = 0.3


def keeps_the_protocol(worker: Worker) -> TurnQueue:
    """For the type checker: both queues are what the turn asks for."""
    return worker.queue


@pytest.fixture(params=["memory", "redis"])
def open_bench(request: pytest.FixtureRequest, model: str) -> Iterator[Callable[..., Bench]]:
    server = MemoryServer()
    opened: list[RedisBench] = []

    def make(turn_wait_s: float, suffix: str = "") -> Bench:
        if request.param == "memory":
            return MemoryBench(server, model + suffix, turn_wait_s)
        opened.append(RedisBench(request.getfixturevalue("redis_url"), model + suffix, turn_wait_s))
        return opened[-1]

    yield make
    for bench in opened:
        bench.close()


@pytest.fixture
def patient(open_bench: Callable[..., Bench]) -> Bench:
    """A bench on which nobody is ever silent for too long."""
    return open_bench(PATIENT_S)


@pytest.fixture
def quick(open_bench: Callable[..., Bench]) -> Bench:
    return open_bench(QUICK_S)


def at_turn(worker: Worker) -> bool:
    return worker.queue.granted(0.02)


def asked(bench: Bench, worker: Worker) -> Worker:
    worker.queue.ask()
    bench.in_line(worker)
    return worker


def holder(bench: Bench) -> Worker:
    """Return a worker at turn."""
    worker = asked(bench, bench.worker())
    bench.eventually(lambda: at_turn(worker))
    assert worker.queue.token == bench.issued() != ""
    return worker


def test_who_asks_alone_is_at_turn(patient: Bench) -> None:
    first = holder(patient)
    assert patient.free() == []
    assert valid_tokens(patient, [first]) == 1


def test_nobody_is_at_turn_without_asking(patient: Bench) -> None:
    worker = patient.worker()
    assert not at_turn(worker)
    worker.queue.leave()
    worker.queue.passed_on()
    assert worker.queue.token == ""


def test_first_come_first_served(patient: Bench) -> None:
    workers = [holder(patient), *(asked(patient, patient.worker()) for _ in range(4))]
    for done, following in pairwise(workers):
        assert [at_turn(worker) for worker in workers].count(True) == 1
        done.queue.leave()
        patient.eventually(lambda next_one=following: at_turn(next_one))  # type: ignore[misc]
        assert not at_turn(done)


def test_a_commit_passes_the_turn_on_under_the_name_of_its_version(patient: Bench) -> None:
    one = holder(patient)
    two = asked(patient, patient.worker())
    assert isinstance(one.commit(), Committed)
    assert not at_turn(one)
    patient.eventually(lambda: at_turn(two))
    assert one.last is not None
    assert two.queue.token == str(one.last.checkpoint.version) == patient.issued()


def test_with_nobody_in_line_the_token_lies_there_for_the_next(patient: Bench) -> None:
    one = holder(patient)
    for _ in range(3):
        assert isinstance(one.commit(), Committed)
        assert patient.free() == [patient.issued()]
        one.queue.ask()
        patient.eventually(lambda: at_turn(one))
        assert patient.free() == []


def test_two_are_never_at_turn_at_once(patient: Bench) -> None:
    workers = [patient.worker() for _ in range(4)]
    turns = 0
    while turns < 24:
        for worker in workers:
            worker.queue.ask()
        at = [worker for worker in workers if at_turn(worker)]
        assert len(at) <= 1
        for worker in at:
            assert isinstance(worker.commit(), Committed)
            turns += 1


def test_asking_again_keeps_the_place(patient: Bench) -> None:
    one = holder(patient)
    two, three = (asked(patient, patient.worker()) for _ in range(2))
    two.queue.ask()
    one.queue.ask()
    one.queue.leave()
    patient.eventually(lambda: at_turn(two))
    assert not at_turn(three)


def test_who_leaves_the_line_is_passed_over(patient: Bench) -> None:
    one = holder(patient)
    two, three = (asked(patient, patient.worker()) for _ in range(2))
    two.queue.leave()
    one.queue.leave()
    patient.eventually(lambda: at_turn(three))
    assert not at_turn(two)


def test_who_leaves_just_when_the_turn_comes_passes_it_on(patient: Bench) -> None:
    """The token is on its way to one who does not want it any more."""
    one = holder(patient)
    two, three = (asked(patient, patient.worker()) for _ in range(2))
    one.queue.leave()
    two.queue.leave()
    patient.eventually(lambda: at_turn(three))
    assert three.queue.token == patient.issued()


def test_who_left_can_get_in_line_again(patient: Bench) -> None:
    one = holder(patient)
    two = asked(patient, patient.worker())
    two.queue.leave()
    asked(patient, two)
    one.queue.leave()
    patient.eventually(lambda: at_turn(two))


def test_a_repeated_commit_passes_the_turn_on_once(patient: Bench) -> None:
    """Its reply was lost: the token must not be there twice."""
    one = holder(patient)
    two, three = (asked(patient, patient.worker()) for _ in range(2))
    commit = one.prepared()
    assert isinstance(one.store.commit(commit), Committed)
    patient.eventually(lambda: at_turn(two))
    assert isinstance(one.commit(commit), Committed)
    assert not at_turn(three)
    assert patient.free() == []
    two.queue.leave()
    patient.eventually(lambda: at_turn(three))


def test_a_refused_commit_passes_nothing_on(patient: Bench) -> None:
    one = holder(patient)
    two = asked(patient, patient.worker())
    stale = one.prepared()
    other = patient.worker()
    assert isinstance(other.commit(), Committed), "a worker that goes without"
    assert one.commit(stale) == Moved()
    assert not at_turn(two)
    assert isinstance(one.commit(), Committed)
    patient.eventually(lambda: at_turn(two))


def test_a_killed_holder_delays_the_next_and_never_blocks_it(quick: Bench) -> None:
    dead = holder(quick)
    two, three = (asked(quick, quick.worker()) for _ in range(2))
    quick.kill(dead)
    assert not at_turn(two)
    quick.eventually(lambda: at_turn(two) or at_turn(three))
    assert valid_tokens(quick, [two, three]) == 1


def test_a_killed_one_in_line_is_passed_over(patient: Bench) -> None:
    one = holder(patient)
    dead, three = (asked(patient, patient.worker()) for _ in range(2))
    patient.kill(dead)
    one.queue.leave()
    patient.eventually(lambda: at_turn(three))


def test_a_stopped_one_in_line_swallows_one_token(quick: Bench) -> None:
    """Its connection stands, so the server gives it the turn; nobody notices before it was silent for long enough."""
    one = holder(quick)
    stopped = asked(quick, quick.worker())
    three = asked(quick, quick.worker())
    one.queue.leave()
    quick.eventually(lambda: at_turn(three))
    assert three.queue.token == quick.issued()
    # Woken up it may believe that it is its turn; what it passes on does not count.
    at_turn(stopped)
    stopped.queue.leave()
    assert quick.free() == []
    assert three.queue.token == quick.issued()


@pytest.mark.parametrize("conflict", [False, True])
def test_a_holder_that_was_taken_over_from_passes_nothing_on(quick: Bench, conflict: bool) -> None:
    """It was only slow. Its commit counts or is refused as any other; there is one token afterwards."""
    slow = holder(quick)
    two = asked(quick, quick.worker())
    commit = slow.prepared()
    quick.eventually(lambda: at_turn(two))
    assert slow.queue.token != two.queue.token == quick.issued()
    if conflict:
        assert isinstance(two.commit(), Committed)
        assert slow.commit(commit) == Moved()
        assert two.last is not None
        following = str(two.last.checkpoint.version)
        slow.queue.leave()
        assert quick.issued() == following
    else:
        assert isinstance(slow.commit(commit), Committed)
        assert quick.free() == []
        two.queue.leave()
    assert quick.free() == [quick.issued()]


@pytest.mark.parametrize("lost", ["turn", "issued", "both"])
def test_a_token_deleted_by_hand_heals(quick: Bench, lost: str) -> None:
    one = holder(quick)
    one.queue.leave()
    quick.lose(turn=lost != "issued", issued=lost != "turn")
    two, three = (asked(quick, quick.worker()) for _ in range(2))
    for _ in range(3):
        quick.eventually(lambda: at_turn(two))
        assert isinstance(two.commit(), Committed)
        quick.eventually(lambda: at_turn(three))
        assert isinstance(three.commit(), Committed)
        two.queue.ask()
        three.queue.ask()


def test_a_token_that_is_nowhere_is_made_at_once(patient: Bench) -> None:
    """A new model, or a store that lost it: nobody is to be waited for."""
    one = holder(patient)
    two = asked(patient, patient.worker())
    patient.lose(issued=True)
    patient.eventually(lambda: at_turn(two))
    # The first holder had the token before; it counts no more, so the two become one again.
    assert isinstance(one.commit(), Committed)
    assert patient.free() == []
    two.queue.leave()
    assert patient.free() == [patient.issued()]


def test_a_server_that_does_not_answer_delays_and_never_blocks(quick: Bench) -> None:
    for worker in quick.deaf():
        worker.queue.ask()
        quick.eventually(lambda one=worker: at_turn(one))  # type: ignore[misc]
        assert worker.queue.token == ""
        worker.queue.passed_on()
        assert not at_turn(worker)
        worker.queue.ask()
        worker.queue.leave()


def test_models_have_turns_of_their_own(open_bench: Callable[..., Bench]) -> None:
    for suffix in ("", "-b"):
        holder(open_bench(PATIENT_S, suffix))
