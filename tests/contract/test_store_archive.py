"""What every state store promises to who archives its log and to who goes back: one suite for both stores."""

import secrets
from collections.abc import Iterator, Mapping

import pytest

from tests.contract.store_samples import RECIPE, checkpoint, commit_on, entry, learner, partition, under_recipe
from tests.contract.test_store import AnyStore, claimed, committed, kept_as_it_is, started
from tests.fakes.store import MemoryServer, MemoryStore
from worker.errors import OffsetsLost, StateCorrupted, StateMissing
from worker.lineage.archive import LogStore
from worker.lineage.segments import version_of
from worker.state import checkpoint as codec
from worker.state.commit_log import from_fields
from worker.state.redis_connect import connect
from worker.state.redis_rewind import Rewind
from worker.state.redis_store import RedisStore
from worker.state.store import Checkpoint, Fence, Fenced, PartitionState


def keeps_the_protocol(store: AnyStore) -> LogStore:
    return store


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, model: str) -> Iterator[AnyStore]:
    if request.param == "memory":
        yield MemoryStore(MemoryServer(), model)
    else:
        link = connect(request.getfixturevalue("redis_url"))
        yield RedisStore(link, model)
        link.drop_connections()


def train(
    store: AnyStore, base: Checkpoint, fences: Mapping[int, Fence], count: int
) -> tuple[Checkpoint, dict[int, Fence]]:
    for _ in range(count):
        number = base.version.number + 1
        commit = under_recipe(commit_on(base, fences, next_offset=number, state=learner(number, 0.5 + number)))
        fences, base = {**fences, **committed(store, commit).fences}, commit.checkpoint
    return base, dict(fences)


def as_it_is(_: Checkpoint | None, partitions: Mapping[int, PartitionState]) -> Mapping[int, PartitionState]:
    return partitions


def put_back(store: AnyStore, moment_of: Checkpoint, positions: Mapping[int, PartitionState], floor: int = -1) -> int:
    return store.rewind(Rewind(moment_of, positions, as_it_is, entry("rollback"), floor)).number


# -- the log --------------------------------------------------------------------------------------------------------


def test_the_log_is_told_page_by_page_with_every_field(store: AnyStore) -> None:
    first, fences = started(store, 0)
    train(store, first, fences, 4)
    pages, after = [], ""
    while page := store.log_page(after, 2):
        pages.append(page)
        after = page[-1][0]
    assert [len(page) for page in pages] == [2, 2, 1]
    told = [from_fields(place, fields, "log") for page in pages for place, fields in page]
    assert told == list(store.commit_log())
    assert store.log_length() == 5
    assert [store.version_at(logged.id) for logged in told] == [str(logged.version) for logged in told]
    assert store.version_at("1-7") == ""
    assert version_of(pages[0][0][1]) == str(first.version)


def test_the_archived_place_is_noted_where_that_entry_is_there(store: AnyStore) -> None:
    first, fences = started(store, 0)
    train(store, first, fences, 2)
    one, two, _ = store.commit_log()
    assert store.archived() == ""
    assert not store.note_archived(two.id, str(one.version))
    assert not store.note_archived("1-7", str(one.version))
    assert store.archived() == ""
    assert store.note_archived(two.id, str(two.version))
    assert store.archived() == two.id


def test_only_what_is_archived_is_trimmed_and_its_last_entry_stays(store: AnyStore) -> None:
    first, fences = started(store, 0)
    train(store, first, fences, 250)  # several nodes of a stream
    log = list(store.commit_log())
    assert store.trim(str(log[200].version)) is None, "nothing was noted"
    store.note_archived(log[200].id, str(log[200].version))
    assert store.trim(str(log[199].version)) is None, "another entry than the one that was noted"
    assert list(store.commit_log()) == log
    assert store.trim(str(log[200].version)) == 200
    assert list(store.commit_log()) == log[200:]
    assert store.trim(str(log[200].version)) == 0
    store.note_archived(log[-1].id, str(log[-1].version))
    assert store.trim(str(log[-1].version)) == 50
    assert list(store.commit_log()) == log[-1:], "the newest one carries the highest version"


@pytest.mark.parametrize("how", ["went back", "was reset"])
def test_a_log_that_is_another_one_now_is_not_trimmed(store: AnyStore, how: str) -> None:
    base, fences = started(store, 0)
    base, fences = train(store, base, fences, 2)
    back = kept_as_it_is(store)
    train(store, base, fences, 2)
    last = list(store.commit_log())[-1]
    if how == "went back":
        back()
        assert not store.note_archived(last.id, str(last.version))
        train(store, base, fences, 2)
    else:
        assert store.note_archived(last.id, str(last.version))
        store.reset(checkpoint(), entry("reset"))
    before = list(store.commit_log())
    assert store.trim(str(last.version)) is None
    assert list(store.commit_log()) == before


# -- one moment -----------------------------------------------------------------------------------------------------


def test_a_snapshot_is_state_and_all_partitions_of_one_moment(store: AnyStore) -> None:
    first, fences = started(store, 0, 3)
    last, _ = train(store, first, {0: fences[0]}, 3)
    moment = store.snapshot()
    assert moment.checkpoint(store.model).version == last.version
    assert moment.positions(store.model) == {0: partition(0, 3), 3: partition(3, 0)}
    assert store.version_at(moment.place) == str(last.version)
    assert moment.committed_at == entry().committed_at


def test_there_is_no_snapshot_of_nothing(store: AnyStore) -> None:
    with pytest.raises(StateMissing):
        store.snapshot()


def test_the_previous_moment_has_the_partitions_that_the_last_commit_left_alone(store: AnyStore) -> None:
    first, fences = started(store, 0, 1)
    assert store.previous() is None
    second, after = train(store, first, fences, 1)
    train(store, second, {1: after[1]}, 1)
    moment = store.previous()
    assert moment is not None
    assert moment.checkpoint(store.model).version == second.version
    assert moment.positions(store.model) == {0: partition(0, 1), 1: partition(1, 1)}
    assert store.version_at(moment.place) == str(second.version)


# -- going back -----------------------------------------------------------------------------------------------------


def test_going_back_is_one_commit_under_fresh_identities(store: AnyStore) -> None:
    first, fences = started(store, 0, 1)
    old, fences = train(store, first, fences, 2)
    moment = store.snapshot()
    last, fences = train(store, old, fences, 3)
    number = put_back(store, moment.checkpoint(store.model), moment.positions(store.model))
    assert number == last.version.number + 1
    now = store.load()
    assert now.version.number == number
    assert codec.digest(now.learner) == codec.digest(old.learner)
    assert {s.state.partition: s.state for s in store.partitions()} == moment.positions(store.model)
    logged = list(store.commit_log())[-1]
    assert (logged.entry.kind, logged.base, logged.version) == ("rollback", old.version, now.version)
    assert logged.digest == codec.digest(old.learner)
    assert store.commit(commit_on(last, fences)) == Fenced(frozenset({0, 1})), "running workers are fenced"
    committed(store, commit_on(now, store.fences([0, 1])))


def test_what_was_undone_is_the_previous_state_whole(store: AnyStore) -> None:
    first, fences = started(store, 0, 1)
    moment = store.snapshot()
    last, _ = train(store, first, {0: fences[0]}, 3)
    claimed(store, 1, fences[1])
    positions = {s.state.partition: s.state for s in store.partitions()}
    put_back(store, moment.checkpoint(store.model), moment.positions(store.model))
    before = store.previous()
    assert before is not None
    assert before.checkpoint(store.model).version == last.version
    assert before.positions(store.model) == positions
    store.restore_previous(entry("restore"))
    assert codec.digest(store.load().learner) == codec.digest(last.learner)
    assert {s.state.partition: s.state for s in store.partitions()} == positions


def test_partitions_that_came_later_become_what_is_said_of_them(store: AnyStore) -> None:
    first, fences = started(store, 0)
    moment = store.snapshot()
    later = {n: claimed(store, n) for n in (1, 2)}
    last, _ = train(store, first, fences | {1: later[1]}, 2)
    asked = []

    def others(present: Checkpoint | None, states: Mapping[int, PartitionState]) -> Mapping[int, PartitionState]:
        asked.append((present and present.version, dict(states)))
        return {1: partition(1, 0), 2: states[2]}

    store.rewind(Rewind(moment.checkpoint(store.model), moment.positions(store.model), others, entry("rollback")))
    assert asked == [(last.version, {1: partition(1, 2), 2: partition(2, 0)})]
    assert {s.state.partition: s.state.sides[0].next_offset for s in store.partitions()} == {0: 0, 1: 0, 2: 0}
    assert store.load().partitions == frozenset()
    now = store.fences([0, 1, 2])
    assert now.keys() == {0, 1, 2}
    assert len({*now.values(), *fences.values(), *later.values()}) == 4, "one fresh fence for all"


def test_nothing_is_written_where_the_positions_are_refused(store: AnyStore) -> None:
    first, fences = started(store, 0)
    moment = store.snapshot()
    last, _ = train(store, first, fences, 1)

    def others(_present: Checkpoint | None, _states: Mapping[int, PartitionState]) -> Mapping[int, PartitionState]:
        raise OffsetsLost("gone")

    with pytest.raises(OffsetsLost):
        store.rewind(Rewind(moment.checkpoint(store.model), moment.positions(store.model), others, entry("rollback")))
    assert store.load().version == last.version


def test_a_lost_or_damaged_state_can_be_put_back_and_is_not_kept_as_previous(store: AnyStore) -> None:
    first, fences = started(store, 0)
    moment = store.snapshot()
    train(store, first, fences, 2)
    forget(store)
    number = put_back(store, moment.checkpoint(store.model), moment.positions(store.model), floor=7)
    assert number == 8, "above every number that is known"
    damage(store)
    with pytest.raises(StateCorrupted):
        store.load()
    assert put_back(store, moment.checkpoint(store.model), moment.positions(store.model)) == 9
    assert store.load().version.number == 9
    assert store.previous() is None


def test_a_commit_in_between_is_not_lost_but_undone(store: AnyStore) -> None:
    """The callback is where a worker can be faster: what is written then is seen, and read again."""
    first, fences = started(store, 0)
    moment = store.snapshot()
    base, fences = train(store, first, fences, 1)
    racing = [base]

    def others(_present: Checkpoint | None, _: Mapping[int, PartitionState]) -> Mapping[int, PartitionState]:
        if racing:
            train(store, racing.pop(), fences, 1)
        return {}

    version = store.rewind(
        Rewind(moment.checkpoint(store.model), moment.positions(store.model), others, entry("rollback"))
    )
    assert version.number == 3
    assert [logged.version.number for logged in store.commit_log()] == [0, 1, 2, 3]


def damage(store: AnyStore) -> None:
    key = store.keys.state
    if isinstance(store, MemoryStore):
        blob = store.server.blobs[key]
        store.server.blobs[key] = blob[:-1] + bytes([blob[-1] ^ 1])
    else:
        client = store._link.client
        blob = client.get(key)
        client.set(key, blob[:-1] + bytes([blob[-1] ^ 1]))


def forget(store: AnyStore) -> None:
    if isinstance(store, MemoryStore):
        store.server.go_back(MemoryServer())
    else:
        client = store._link.client
        client.delete(*client.keys(f"{store.keys.state.removesuffix(':state')}:*"))


def test_recipes_named_in_the_log_are_there(store: AnyStore) -> None:
    first, fences = started(store, 0)
    train(store, first, fences, 1)
    assert store.recipe(RECIPE.digest()) == RECIPE
    assert store.recipe(secrets.token_hex(32)) is None
