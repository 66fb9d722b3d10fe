"""The archive of the commit log: nothing is lost, nothing doubled, and only what is archived is ever removed."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.store_samples import RECIPE, checkpoint, commit_on, entry, learner, partition, under_recipe
from tests.fakes.store import MemoryServer, MemoryStore
from worker.errors import ConfigError, StateCorrupted, VerificationFailed
from worker.lineage import archive as archive_module
from worker.lineage.archive import LineageLog, archive_once, overview
from worker.lineage.kept import kept, kept_versions
from worker.lineage.segments import FOLDER, Segments, name_of, version_of
from worker.release.artifacts import FileArtifacts
from worker.state import checkpoint as codec
from worker.state.store import Committed, Fence, Version

if TYPE_CHECKING:
    from worker.state.commit_log import LoggedCommit


class Model:
    """One model in memory with an archive on disk. `made`: every commit that was ever made, in order."""

    def __init__(self, folder: Path) -> None:
        self.server = MemoryServer()
        self.store = MemoryStore(self.server, "m")
        self.artifacts = FileArtifacts(folder, "m")
        self.store.create(checkpoint(), entry("init"))
        self.store.claim(0, Fence(""), partition(0))
        self.made: list[LoggedCommit] = []
        self._note()

    def train(self, count: int = 1) -> None:
        for _ in range(count):
            base = self.store.load()
            number = base.version.number + 1
            fences = {n: fence for n, fence in self.store.fences([0]).items() if fence}
            if not fences:
                fence = self.store.claim(0, Fence(""), partition(0))
                assert fence
                fences = {0: fence}
            commit = under_recipe(commit_on(base, fences, next_offset=number, state=learner(number)))
            assert isinstance(self.store.commit(commit), Committed)
            self._note()

    def reset(self) -> None:
        self.store.reset(checkpoint(), entry("reset"))
        self._note()

    def _note(self) -> None:
        self.made.append(list(self.store.commit_log())[-1])

    def told(self) -> list[Version]:
        return [commit.version for commit in LineageLog(self.store, self.artifacts).entries()]

    def archived(self) -> list[str]:
        chain = Segments(self.artifacts, "m")
        return [version_of(fields) for segment in chain.since(None) for _, fields in segment.entries()]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "PAGE", 3)


def test_what_is_archived_comes_back_as_it_was_logged(model: Model) -> None:
    model.train(7)
    done = archive_once(model.store, model.artifacts)
    assert (done.commits, done.segments) == (8, 3)
    assert (done.first, done.end) == (str(model.made[0].version), str(model.made[-1].version))
    model.server.go_back(MemoryServer())
    assert list(LineageLog(model.store, model.artifacts).entries()) == model.made


def test_a_pass_archives_what_is_new_and_nothing_else(model: Model) -> None:
    model.train(4)
    archive_once(model.store, model.artifacts)
    assert archive_once(model.store, model.artifacts).commits == 0
    model.train(2)
    done = archive_once(model.store, model.artifacts)
    assert (done.commits, done.first, done.last) == (2, str(model.made[-2].version), str(model.made[-1].version))
    assert model.archived() == [str(commit.version) for commit in model.made]


def test_recipes_go_along(model: Model) -> None:
    model.train(2)
    archive_once(model.store, model.artifacts)
    model.server.recipes.clear()
    assert LineageLog(model.store, model.artifacts).recipe(RECIPE.digest()) == RECIPE
    assert LineageLog(model.store, model.artifacts).recipe("0" * 64) is None
    assert LineageLog(model.store, None).recipe(RECIPE.digest()) is None


def test_a_recipe_that_was_lost_comes_with_the_next_commit_that_names_it(model: Model) -> None:
    model.train()
    model.server.recipes.clear()
    archive_once(model.store, model.artifacts)
    model.train()
    archive_once(model.store, model.artifacts)
    model.server.recipes.clear()
    assert LineageLog(model.store, model.artifacts).recipe(RECIPE.digest()) == RECIPE


def test_trimming_leaves_the_last_entry_and_the_reader_notices_nothing(model: Model) -> None:
    model.train(5)
    done = archive_once(model.store, model.artifacts, trim=True)
    assert done.trimmed == 5
    assert [commit.version for commit in model.store.commit_log()] == [model.made[-1].version]
    model.train(2)
    assert model.told() == [commit.version for commit in model.made]
    seen = overview(model.store, model.artifacts)
    assert (seen.commits, seen.in_redis, seen.waiting, seen.trimmed) == (6, 3, 2, 5)


def test_a_pass_that_ends_before_the_place_is_noted_trims_nothing(model: Model) -> None:
    model.train(5)
    archive_once(model.store, model.artifacts)
    model.server.archived.clear()
    assert model.store.trim(str(model.made[-1].version)) is None
    assert archive_once(model.store, model.artifacts, trim=True).trimmed == 5


@pytest.mark.parametrize("trim", [False, True])
def test_a_log_that_went_back_and_grew_again_is_archived_beside_what_was_lost(model: Model, trim: bool) -> None:
    model.train(2)
    past = model.server.snapshot()
    model.train(4)
    archive_once(model.store, model.artifacts)
    model.server.go_back(past)
    assert archive_once(model.store, model.artifacts).commits == 0
    model.train(5)
    done = archive_once(model.store, model.artifacts, trim=trim)
    assert done.commits == 5
    assert model.archived() == [str(commit.version) for commit in model.made], "each once, the lost ones as well"
    assert model.told() == [commit.version for commit in model.made]
    assert len(list(model.store.commit_log())) == (1 if trim else 8)


def test_a_reset_log_is_archived_after_the_old_one(model: Model) -> None:
    model.train(3)
    archive_once(model.store, model.artifacts, trim=True)
    model.reset()
    model.train(2)
    archive_once(model.store, model.artifacts, trim=True)
    assert model.told() == [commit.version for commit in model.made]


def test_an_archive_that_begins_in_the_middle_says_so(model: Model, tmp_path: Path) -> None:
    model.train(5)
    archive_once(model.store, model.artifacts, trim=True)
    model.train(2)
    other = FileArtifacts(tmp_path / "other", "m")
    done = archive_once(model.store, other, trim=True)
    assert done.commits == 3
    assert "begins in the middle" in done.notes[0]


def test_while_it_is_read_entries_are_archived_and_trimmed_and_none_is_missed(model: Model) -> None:
    model.train(10)
    archive_once(model.store, model.artifacts)
    model.train(10)
    told = []
    for number, commit in enumerate(LineageLog(model.store, model.artifacts).entries()):
        told.append(commit.version)
        if number in (4, 13):
            model.train(4)
            archive_once(model.store, model.artifacts, trim=True)
    assert told == [commit.version for commit in model.made]


# -- two at once ----------------------------------------------------------------------------------------------------


class Racing(MemoryStore):
    """A store at which another archiver is at work whenever a page is read."""

    def __init__(self, model: Model, trim: bool) -> None:
        super().__init__(model.server, "m")
        self.race, self.trims, self.turns = model, trim, [3, 2, 1]

    def log_page(self, after: str, count: int) -> list[tuple[str, dict[bytes, bytes]]]:
        page = super().log_page(after, count)
        if self.turns:
            self.race.train(self.turns.pop())
            archive_once(self.race.store, self.race.artifacts, trim=self.trims)
        return page


@pytest.mark.parametrize("trim", [False, True])
def test_two_archivers_at_once_double_and_lose_nothing(model: Model, trim: bool) -> None:
    model.train(7)
    archive_once(Racing(model, trim), model.artifacts, trim=trim)
    archive_once(model.store, model.artifacts, trim=trim)
    assert model.archived() == [str(commit.version) for commit in model.made]
    assert model.told() == [commit.version for commit in model.made]


# -- any course of events -------------------------------------------------------------------------------------------


ACTS = st.lists(
    st.sampled_from(["train", "archive", "trim", "remember", "back", "reset", "unnoted", "lag"]), max_size=25
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(acts=ACTS)
def test_whatever_happens_nothing_archived_is_doubled_and_nothing_unarchived_is_trimmed(
    acts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = Model(tmp_path_factory.mktemp("m"))
    past = model.server.snapshot()
    present: set[Version] = {model.made[0].version}  # in Redis, if nothing was trimmed
    safe: set[Version] = set()
    for act in acts:
        if act == "train":
            model.train(4)
            present |= {commit.version for commit in model.made[-4:]}
        elif act in ("archive", "trim"):
            archive_once(model.store, model.artifacts, trim=act == "trim")
            safe |= present
        elif act == "remember":
            past = model.server.snapshot()
        elif act == "back":
            model.server.go_back(past)
            present = {commit.version for commit in model.store.commit_log()}
        elif act == "reset":
            model.reset()
            present = {model.made[-1].version}
        elif act == "unnoted":
            model.server.archived.clear()
        else:
            # A server whose clock is behind gives places that were given before it went back.
            log = list(model.store.commit_log())
            model.server.appended = int(log[-1].id.partition("-")[0])
    told = model.told()
    assert len(set(told)) == len(told)
    assert present | safe <= set(told)
    assert len(set(model.archived())) == len(model.archived())


# -- damage ---------------------------------------------------------------------------------------------------------


def _segment(model: Model, number: int) -> Path:
    return Path(model.artifacts.place) / name_of(number)


@pytest.mark.parametrize("where", [0, 20, 90, 150, -1])
def test_one_changed_byte_anywhere_in_a_segment_is_found(model: Model, where: int) -> None:
    model.train(5)
    archive_once(model.store, model.artifacts, trim=True)
    content = bytearray(_segment(model, 1).read_bytes())
    content[where] ^= 1
    _segment(model, 1).write_bytes(content)
    with pytest.raises(VerificationFailed, match=r"0000000001\.segment"):
        model.told()


def test_a_segment_in_the_place_of_another_breaks_the_chain(model: Model, tmp_path: Path) -> None:
    model.train(8)
    archive_once(model.store, model.artifacts)
    other = Model(tmp_path / "other")
    other.train(8)
    archive_once(other.store, other.artifacts)
    _segment(model, 2).write_bytes(_segment(other, 2).read_bytes())
    with pytest.raises(VerificationFailed, match="does not follow"):
        model.told()


def test_a_segment_that_is_gone_ends_what_is_read_and_the_gap_shows(model: Model) -> None:
    model.train(8)
    archive_once(model.store, model.artifacts, trim=True)
    _segment(model, 2).unlink()
    model.train(1)
    with pytest.raises(VerificationFailed, match="segment 2 is missing"):
        model.told()


def test_the_archive_of_another_model_is_refused(model: Model, tmp_path: Path) -> None:
    model.train(3)
    archive_once(model.store, model.artifacts)
    (tmp_path / "n").symlink_to(tmp_path / "m")
    with pytest.raises(VerificationFailed, match="model 'm'"):
        list(Segments(FileArtifacts(tmp_path, "n"), "n").since(None))


# -- kept states ----------------------------------------------------------------------------------------------------


def test_a_pass_keeps_the_state_of_its_moment_with_all_positions(model: Model) -> None:
    model.train(4)
    done = archive_once(model.store, model.artifacts)
    now = model.store.load()
    assert done.kept == now.version
    moment = kept(model.artifacts, "m", now.version)
    assert moment.checkpoint("m").version == now.version
    assert codec.digest(moment.checkpoint("m").learner) == codec.digest(now.learner)
    assert moment.positions("m") == {0: partition(0, 4)}
    (index,) = kept_versions(model.artifacts, "m")
    assert (index.number, index.examples, index.digest) == (4, 4, codec.digest(now.learner))
    assert model.store.version_at(index.place) == str(now.version)


def test_nothing_is_kept_where_nothing_was_new_and_a_version_is_kept_once(model: Model) -> None:
    model.train(2)
    archive_once(model.store, model.artifacts)
    assert archive_once(model.store, model.artifacts).kept is None
    assert model.store.claim(0, model.store.fences([0])[0], partition(0, 2))  # another fence, the same version
    model.server.archived.clear()
    for path in (Path(model.artifacts.place) / FOLDER).iterdir():
        path.unlink()
    archive_once(model.store, model.artifacts)
    assert len(kept_versions(model.artifacts, "m")) == 1


def test_a_damaged_state_is_not_kept(model: Model) -> None:
    model.train(2)
    blob = model.server.blobs[model.store.keys.state]
    model.server.blobs[model.store.keys.state] = blob[:-1] + bytes([blob[-1] ^ 1])
    with pytest.raises(StateCorrupted):
        archive_once(model.store, model.artifacts)
    assert kept_versions(model.artifacts, "m") == []


def test_damage_of_what_is_kept_is_found(model: Model) -> None:
    model.train(2)
    archive_once(model.store, model.artifacts)
    (index,) = kept_versions(model.artifacts, "m")
    root = Path(model.artifacts.place)
    blob = root / "blobs/sha256" / index.partitions[0]
    whole = blob.read_bytes()
    blob.write_bytes(whole[:-1])
    with pytest.raises(VerificationFailed, match="blobs/sha256"):
        kept(model.artifacts, "m", index.version)
    blob.write_bytes(whole)
    (file,) = (root / "lineage/kept").iterdir()
    file.write_bytes(file.read_bytes().replace(b'"examples":2', b'"examples":3'))
    with pytest.raises(VerificationFailed, match="lineage/kept"):
        kept_versions(model.artifacts, "m")


def test_what_is_not_kept_is_unknown(model: Model) -> None:
    with pytest.raises(ConfigError, match="not kept"):
        kept(model.artifacts, "m", Version(3, "abc"))


def _facts(model: Model) -> Mapping[str, object]:
    return {"blobs": len(list((Path(model.artifacts.place) / "blobs/sha256").iterdir()))}


def test_an_unchanged_partition_is_stored_once(model: Model) -> None:
    assert model.store.claim(1, Fence(""), partition(1))
    for _ in range(3):
        model.train()
        archive_once(model.store, model.artifacts)
    assert _facts(model) == {"blobs": 3 + 3 + 1}
