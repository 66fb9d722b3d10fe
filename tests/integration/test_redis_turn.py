"""The queue for the turn on a real Redis that fails: lost replies, broken keys, a server that talks nonsense."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.contract.store_samples import RECIPE, under_recipe
from tests.contract.turn_benches import PATIENT_S, RedisBench, Worker
from tests.services.redis import Proxy, wait_until
from worker.state.redis_turn import RedisTurnQueue
from worker.state.store import Committed

Open = Callable[[float], RedisBench]


@pytest.fixture
def open_bench(redis_url: str, model: str) -> Iterator[Open]:
    opened: list[RedisBench] = []

    def make(turn_wait_s: float) -> RedisBench:
        opened.append(RedisBench(redis_url, model, turn_wait_s))
        return opened[-1]

    yield make
    for bench in opened:
        bench.close()


def at_turn(worker: Worker) -> bool:
    return worker.queue.granted(0.02)


def asked(bench: RedisBench, worker: Worker) -> Worker:
    worker.queue.ask()
    bench.in_line(worker)
    return worker


def test_a_failed_call_of_the_store_does_not_cost_the_place_in_line(open_bench: Open) -> None:
    """The client then closes every connection of its pool."""
    bench = open_bench(PATIENT_S)
    one, two, three = (asked(bench, bench.worker()) for _ in range(3))
    wait_until(lambda: at_turn(one))
    for link in bench.links:
        link.drop_connections()
    one.queue.leave()
    wait_until(lambda: at_turn(two))
    assert not at_turn(three)


def test_a_renewal_whose_reply_was_lost_is_recognised(open_bench: Open, redis_proxy: Proxy) -> None:
    bench = open_bench(0.3)
    dead = asked(bench, bench.worker())
    wait_until(lambda: at_turn(dead))
    worker = asked(bench, bench.worker(redis_proxy.url))
    redis_proxy.only, redis_proxy.cut_replies = b"'LPOP'", True
    wait_until(lambda: at_turn(worker))
    assert worker.queue.token == bench.issued() != dead.queue.token


def test_only_the_token_that_was_seen_to_be_silent_is_taken_over(open_bench: Open) -> None:
    """Two find out at once: the second must not take it from the first, nor from a holder that has just moved it."""
    bench = open_bench(PATIENT_S)
    one = asked(bench, bench.worker())
    wait_until(lambda: at_turn(one))
    two = asked(bench, bench.worker())
    assert isinstance(two.queue, RedisTurnQueue)
    two.queue._renew(b"the one before")
    assert two.queue.token == ""
    assert bench.issued() == one.queue.token


def test_a_commit_whose_reply_was_lost_has_passed_the_turn_on_once(open_bench: Open, redis_proxy: Proxy) -> None:
    bench = open_bench(PATIENT_S)
    one = asked(bench, bench.worker(redis_proxy.url))
    wait_until(lambda: at_turn(one))
    two, three = (asked(bench, bench.worker()) for _ in range(2))
    prepared = one.prepared()
    redis_proxy.only, redis_proxy.cut_replies = b"EVAL", True
    assert isinstance(one.commit(prepared), Committed)
    wait_until(lambda: at_turn(two))
    assert two.queue.token == str(prepared.checkpoint.version)
    assert not at_turn(three)
    assert bench.free() == []


@pytest.mark.parametrize("broken", ["turn", "turn_issued"])
def test_keys_of_the_turn_that_hold_another_type_stop_nobody(open_bench: Open, broken: str) -> None:
    bench = open_bench(0.3)
    one = asked(bench, bench.worker())
    wait_until(lambda: at_turn(one))

    def break_it() -> None:
        bench.raw.delete(getattr(bench.keys, broken))
        bench.raw.hset(getattr(bench.keys, broken), "foreign", 1)

    break_it()
    assert isinstance(one.commit(), Committed)
    two = asked(bench, bench.worker())
    wait_until(lambda: at_turn(two))
    break_it()
    two.queue.leave()
    asked(bench, two)
    wait_until(lambda: at_turn(two))
    two.queue.leave()
    break_it()
    one.queue.ask()
    wait_until(lambda: at_turn(one))
    one.queue.leave()
    assert bench.free() == [bench.issued()]


def test_a_server_that_is_loading_keeps_nobody_waiting(open_bench: Open, redis_proxy: Proxy) -> None:
    bench = open_bench(0.3)
    redis_proxy.loading = True
    worker = bench.worker(redis_proxy.url)
    worker.queue.ask()
    wait_until(lambda: at_turn(worker))
    assert worker.queue.token == ""


def test_nonsense_for_an_answer_raises_nothing(open_bench: Open) -> None:
    bench = open_bench(0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.sendall(b"\xff\x00 what?\r\n" * 20)
                    client.recv(1 << 16)

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        worker = bench.worker(f"redis://127.0.0.1:{server.getsockname()[1]}/0")
        worker.queue.ask()
        wait_until(lambda: at_turn(worker))
        assert worker.queue.token == ""
        worker.queue.leave()
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_a_place_that_ended_by_itself_is_taken_again(open_bench: Open) -> None:
    """A pop that waits has an end, so that places of workers behind a cut cable do not stay."""
    bench = open_bench(PATIENT_S)
    one = asked(bench, bench.worker())
    wait_until(lambda: at_turn(one))
    two = bench.worker()
    assert isinstance(two.queue, RedisTurnQueue)
    two.queue._place_s = 0.05
    asked(bench, two)
    first = two.queue._joined_at

    def joined_again() -> bool:
        two.queue.granted(0.02)
        return two.queue._joined_at > first  # type: ignore[union-attr]

    wait_until(joined_again)
    one.queue.leave()
    wait_until(lambda: at_turn(two))
    assert two.queue.token == bench.issued()


def test_recipes_that_were_overwritten_are_kept_again(open_bench: Open) -> None:
    bench = open_bench(PATIENT_S)
    worker = bench.worker()
    assert isinstance(worker.commit(under_recipe(worker.prepared())), Committed)
    bench.raw.delete(bench.keys.recipes)
    bench.raw.set(bench.keys.recipes, "foreign")
    assert isinstance(worker.commit(under_recipe(worker.prepared())), Committed)
    assert worker.store.recipe(RECIPE.digest()) == RECIPE
