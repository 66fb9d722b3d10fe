"""What every state store promises: one suite for the one in memory and the one on Redis."""

from collections.abc import Callable, Iterator

import msgspec.structs
import numpy as np
import pytest

from tests.contract.store_samples import (
    RECIPE,
    SPEC,
    checkpoint,
    commit_on,
    entry,
    learner,
    partition,
    under_recipe,
    version,
)
from tests.fakes.store import MemoryServer, MemoryStore
from worker.errors import StateMissing
from worker.state.checkpoint import NotStorable, digest
from worker.state.redis_connect import connect
from worker.state.redis_store import RedisStore
from worker.state.store import Checkpoint, Commit, Committed, Fence, Fenced, Moved, Store

AnyStore = MemoryStore | RedisStore


def keeps_the_protocol(store: AnyStore) -> Store:
    """For the type checker: both stores are what the loop asks for."""
    return store


@pytest.fixture(params=["memory", "redis"])
def stores(request: pytest.FixtureRequest, model: str) -> Iterator[Callable[[str], AnyStore]]:
    """Make stores (for a model name) that share one server, as several workers do."""
    if request.param == "memory":
        server = MemoryServer()
        yield lambda suffix: MemoryStore(server, model + suffix)
    else:
        url = request.getfixturevalue("redis_url")
        links = []

        def make(suffix: str) -> RedisStore:
            links.append(connect(url))
            return RedisStore(links[-1], model + suffix)

        yield make
        for link in links:
            link.drop_connections()


@pytest.fixture
def store(stores: Callable[[str], AnyStore]) -> AnyStore:
    return stores("")


def started(store: AnyStore, *numbers: int) -> tuple[Checkpoint, dict[int, Fence]]:
    """Create the first state and claim partitions."""
    first = checkpoint()
    assert store.create(first, entry("init"))
    return first, {number: claimed(store, number) for number in numbers}


def claimed(store: AnyStore, number: int, expected: str = "") -> Fence:
    fence = store.claim(number, Fence(expected), partition(number))
    assert fence is not None
    return fence


def committed(store: AnyStore, commit: Commit) -> Committed:
    outcome = store.commit(commit)
    assert isinstance(outcome, Committed)
    return outcome


def test_nothing_stored_is_missing_and_the_text_tells_how_to_begin(store: AnyStore) -> None:
    assert store.version() is None
    assert store.load_partition(0) is None
    with pytest.raises(StateMissing, match="gradstream worker --init"):
        store.load()


def test_a_created_state_comes_back_as_it_was(store: AnyStore) -> None:
    first, _ = started(store)
    loaded = store.load()
    assert (loaded.version, loaded.spec, loaded.kernel, loaded.partitions) == (
        first.version,
        SPEC,
        "numpy",
        frozenset(),
    )
    assert digest(loaded.learner) == digest(first.learner)
    assert store.version() == first.version
    assert store.state_bytes() > 0


def test_create_leaves_an_existing_state_as_it_is(store: AnyStore) -> None:
    first, _ = started(store)
    assert not store.create(checkpoint(), entry("init"))
    assert store.load().version == first.version
    assert len(list(store.commit_log())) == 1


def test_create_given_again_after_a_lost_reply_knows_its_own_state(store: AnyStore) -> None:
    first, _ = started(store)
    assert store.create(first, entry("init"))
    assert len(list(store.commit_log())) == 1


def test_a_commit_moves_state_and_positions_together(store: AnyStore) -> None:
    first, fences = started(store, 0, 3)
    commit = commit_on(first, fences, next_offset=7)
    outcome = committed(store, commit)
    assert set(outcome.fences) == {0, 3}
    assert outcome.state_bytes == store.state_bytes()
    loaded = store.load()
    assert loaded.version == commit.checkpoint.version
    assert loaded.partitions == {0, 3}
    assert digest(loaded.learner) == digest(commit.checkpoint.learner)
    for number in (0, 3):
        stored = store.load_partition(number)
        assert stored is not None
        assert stored.fence == outcome.fences[number]
        assert stored.state == partition(number, 7)
    assert [stored.state.partition for stored in store.partitions()] == [0, 3]


def test_commits_follow_each_other_on_the_fences_they_return(store: AnyStore) -> None:
    base, fences = started(store, 0)
    for offset in range(1, 6):
        commit = commit_on(base, fences, next_offset=offset)
        fences, base = dict(committed(store, commit).fences), commit.checkpoint
    assert store.load().version.number == 5


def test_the_same_commit_given_twice_is_applied_once(store: AnyStore) -> None:
    first, fences = started(store, 0)
    commit = commit_on(first, fences)
    assert committed(store, commit) == committed(store, commit)
    assert len(list(store.commit_log())) == 2
    assert store.load().version == commit.checkpoint.version


def test_a_commit_is_recognised_after_others_have_committed_on_top(store: AnyStore) -> None:
    first, fences = started(store, 0, 1)
    mine = commit_on(first, {0: fences[0]})
    committed(store, mine)
    committed(store, commit_on(mine.checkpoint, {1: fences[1]}))
    assert isinstance(store.commit(mine), Committed)
    assert len(list(store.commit_log())) == 3


def test_a_commit_on_an_old_version_writes_nothing(store: AnyStore) -> None:
    first, fences = started(store, 0, 1)
    winner = commit_on(first, {0: fences[0]}, next_offset=5)
    committed(store, winner)
    assert store.commit(commit_on(first, {1: fences[1]}, next_offset=9)) == Moved()
    assert store.load().version == winner.checkpoint.version
    untouched = store.load_partition(1)
    assert untouched is not None
    assert untouched.state.sides[0].next_offset == 0


def test_a_version_number_that_came_round_again_does_not_let_a_stale_commit_in(store: AnyStore) -> None:
    """After a server went back, another worker writes the same number: only the nonce tells them apart."""
    first, fences = started(store, 0, 1)
    impostor = Commit(version(first.version.number), commit_on(first, {0: fences[0]}).checkpoint, {}, entry())
    stale = Commit(impostor.base, impostor.checkpoint, {0: (fences[0], partition(0, 4))}, entry())
    assert stale.base.number == first.version.number
    assert store.commit(stale) == Moved()
    assert store.load().version == first.version


def kept_as_it_is(store: AnyStore) -> Callable[[], None]:
    """Return what puts the store back to where it is now, as a server does whose disk was behind."""
    if isinstance(store, MemoryStore):
        past = store.server.snapshot()
        return lambda: store.server.go_back(past)
    client, keys = store._link.client, f"{store.keys.state.removesuffix(':state')}:*"
    dumps = {key: client.dump(key) for key in client.keys(keys)}

    def back() -> None:
        change = client.pipeline(transaction=True)
        for key in client.keys(keys):
            change.delete(key)
        for key, dump in dumps.items():
            change.restore(key, 0, dump)
        change.execute()

    return back


def test_a_store_that_went_back_takes_nothing_that_was_prepared_before(store: AnyStore) -> None:
    """Two commits are lost and another worker writes their numbers anew: only nonces keep the stale commits out."""
    base, fences = started(store, 0, 1, 2)
    back = kept_as_it_is(store)
    first = commit_on(base, {0: fences[0]})
    after = committed(store, first).fences
    second = commit_on(first.checkpoint, after)
    after = committed(store, second).fences
    back()
    assert store.version() == base.version != second.checkpoint.version
    assert store.fences([0, 1, 2]) == fences
    other = commit_on(base, {1: fences[1]})
    others = committed(store, other).fences
    again = commit_on(other.checkpoint, others)
    committed(store, again)
    assert again.checkpoint.version.number == second.checkpoint.version.number

    assert store.commit(commit_on(second.checkpoint, after)) == Fenced(frozenset({0}))
    assert store.commit(commit_on(second.checkpoint, {2: fences[2]})) == Moved()
    assert store.commit(first) == Moved(), "a lost commit given again"
    assert store.load().version == again.checkpoint.version
    assert store.fences([0, 2]) == {0: fences[0], 2: fences[2]}


def test_a_lost_commit_given_again_to_a_store_that_went_back_is_applied(store: AnyStore) -> None:
    base, fences = started(store, 0)
    back = kept_as_it_is(store)
    commit = under_recipe(commit_on(base, fences))
    committed(store, commit)
    back()
    assert store.recipe(commit.entry.recipe) is None
    committed(store, commit)
    assert store.load().version == commit.checkpoint.version
    assert store.recipe(commit.entry.recipe) == RECIPE
    assert len(list(store.commit_log())) == 2


def test_fences_of_many_partitions_are_told_at_one_glance(store: AnyStore) -> None:
    base, fences = started(store, 0, 3)
    assert store.fences([]) == {}
    assert store.fences([3, 7, 0]) == {3: fences[3], 7: "", 0: fences[0]}
    after = committed(store, commit_on(base, {0: fences[0]})).fences
    assert store.fences(range(5)) == {0: after[0], 1: "", 2: "", 3: fences[3], 4: ""}


def test_a_recipe_is_kept_once_and_found_by_its_digest(store: AnyStore) -> None:
    base, fences = started(store, 0)
    other = msgspec.structs.replace(RECIPE, kernel="numba")
    for recipe in (RECIPE, RECIPE, other):
        commit = under_recipe(commit_on(base, fences), recipe)
        fences, base = dict(committed(store, commit).fences), commit.checkpoint
    named = [logged.entry.recipe for logged in store.commit_log()]
    assert named == ["", RECIPE.digest(), RECIPE.digest(), other.digest()]
    assert [store.recipe(digest) for digest in named] == [None, RECIPE, RECIPE, other]


def test_a_reset_keeps_the_recipes(store: AnyStore) -> None:
    """The archive of the commit log outlives a reset, and names them."""
    base, fences = started(store, 0)
    committed(store, under_recipe(commit_on(base, fences)))
    store.reset(checkpoint(), entry("reset"))
    assert store.recipe(RECIPE.digest()) == RECIPE


def test_a_commit_that_names_another_recipe_than_its_own_is_refused(store: AnyStore) -> None:
    """Nobody could find the recipe again."""
    base, fences = started(store, 0)
    commit = under_recipe(commit_on(base, fences))
    wrong = msgspec.structs.replace(commit.entry, recipe="0" * 64)
    with pytest.raises(ValueError, match="names recipe"):
        store.commit(Commit(commit.base, commit.checkpoint, commit.partitions, wrong, "", RECIPE))
    assert store.load().version == base.version


def test_a_partition_with_another_owner_fences_the_whole_commit(store: AnyStore) -> None:
    first, fences = started(store, 0, 1)
    taken = claimed(store, 1, fences[1])
    assert store.commit(commit_on(first, fences, next_offset=9)) == Fenced(frozenset({1}))
    assert store.load().version == first.version
    stored = [store.load_partition(number) for number in (0, 1)]
    assert [s and s.state.sides[0].next_offset for s in stored] == [0, 0]
    assert [s and s.fence for s in stored] == [fences[0], taken]


def test_a_commit_without_partitions_is_refused(store: AnyStore) -> None:
    first, _ = started(store)
    with pytest.raises(ValueError, match="without partitions"):
        store.commit(commit_on(first, {}))


def test_a_claim_needs_the_fence_that_is_there(store: AnyStore) -> None:
    started(store)
    first = claimed(store, 0)
    assert store.claim(0, Fence(""), partition(0)) is None
    second = claimed(store, 0, first)
    assert store.claim(0, first, partition(0)) is None
    assert second != first
    stored = store.load_partition(0)
    assert stored is not None
    assert stored.fence == second


def test_nothing_is_claimed_beside_a_missing_state(store: AnyStore) -> None:
    with pytest.raises(StateMissing):
        store.claim(0, Fence(""), partition(0))
    assert list(store.partitions()) == []


def test_a_state_that_is_not_finite_never_becomes_durable(store: AnyStore) -> None:
    first, fences = started(store, 0)
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(NotStorable, match="weight is not finite"):
            store.commit(commit_on(first, fences, state=learner(1, bad)))
    assert store.load().version == first.version


def test_the_commit_log_tells_every_commit_as_it_was_made(store: AnyStore) -> None:
    first, fences = started(store, 0)
    commit = commit_on(first, fences)
    committed(store, commit)
    begun, trained = store.commit_log()
    assert (begun.base, begun.version, begun.entry) == (None, first.version, entry("init"))
    assert (trained.base, trained.version) == (first.version, commit.checkpoint.version)
    assert trained.digest == digest(commit.checkpoint.learner)
    assert trained.entry == commit.entry
    assert list(store.commit_log(first=trained.id)) == [trained]
    assert list(store.commit_log(last=begun.id)) == [begun]
    assert list(store.commit_log(count=1)) == [begun]


def test_reset_begins_again_under_a_version_never_used(store: AnyStore) -> None:
    first, fences = started(store, 0, 1)
    commit = commit_on(first, {0: fences[0]})
    after = committed(store, commit).fences
    fresh = store.reset(checkpoint(), entry("reset"))
    assert fresh.number > commit.checkpoint.version.number
    assert store.load().version == fresh
    assert store.load().partitions == frozenset()
    assert [store.load_partition(number) for number in (0, 1)] == [None, None]
    assert [logged.entry.kind for logged in store.commit_log()] == ["reset"]
    # Running workers are fenced, not told that something was lost.
    assert store.commit(commit_on(commit.checkpoint, after)) == Fenced(frozenset({0}))
    assert store.claim(1, fences[1], partition(1)) is None
    with pytest.raises(StateMissing, match="previous"):
        store.restore_previous(entry("restore"))


def test_reset_works_where_nothing_ever_was(store: AnyStore) -> None:
    fresh = store.reset(checkpoint(), entry("reset"))
    assert store.load().version == fresh


def test_restore_puts_state_and_positions_of_the_commit_before_back(store: AnyStore) -> None:
    base, fences = started(store, 0, 1)
    first = commit_on(base, fences, next_offset=3)
    fences = dict(committed(store, first).fences)
    second = commit_on(first.checkpoint, {0: fences[0]}, next_offset=8)
    after = committed(store, second).fences
    restored = store.restore_previous(entry("restore"))
    assert restored.number > second.checkpoint.version.number
    loaded = store.load()
    assert loaded.version == restored
    assert digest(loaded.learner) == digest(first.checkpoint.learner)
    stored = {s.state.partition: s for s in store.partitions()}
    assert {n: s.state.sides[0].next_offset for n, s in stored.items()} == {0: 3, 1: 3}
    last = list(store.commit_log())[-1]
    assert (last.entry.kind, last.base, last.version) == ("restore", first.checkpoint.version, restored)
    # The owner of the partition that went back is fenced; the owner of the other one only has to learn again.
    assert store.commit(commit_on(second.checkpoint, after)) == Fenced(frozenset({0}))
    assert store.commit(commit_on(second.checkpoint, {1: fences[1]})) == Moved()
    committed(store, commit_on(loaded, {0: stored[0].fence, 1: stored[1].fence}))


def test_restore_without_a_previous_state_is_refused(store: AnyStore) -> None:
    started(store, 0)
    with pytest.raises(StateMissing, match="gradstream state reset"):
        store.restore_previous(entry("restore"))


def test_workers_say_that_they_are_alive(store: AnyStore) -> None:
    store.announce("b", {"partitions": [1], "lag": 3}, ttl_s=60)
    store.announce("a", {"partitions": [0]}, ttl_s=60)
    store.announce("b", {"partitions": [1, 2], "lag": 0}, ttl_s=60)
    assert store.workers() == [{"worker": "a", "partitions": [0]}, {"worker": "b", "partitions": [1, 2], "lag": 0}]


def test_a_silent_worker_is_forgotten(store: AnyStore) -> None:
    store.announce("gone", {}, ttl_s=-1)
    assert store.workers() == []


def test_models_do_not_touch_each_other(stores: Callable[[str], AnyStore]) -> None:
    one, other = stores(""), stores("-b")
    first, fences = started(one, 0)
    theirs, _ = started(other, 0)
    committed(one, commit_on(first, fences))
    one.reset(checkpoint(), entry("reset"))
    assert other.load().version == theirs.version
    stored = other.load_partition(0)
    assert stored is not None
    assert stored.state == partition(0)
    assert len(list(other.commit_log())) == 1
