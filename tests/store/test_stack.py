"""Several databases that answer together."""

import pytest

from kernrec.op import find_op
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.store import Database, Stack, write_profiles
from kernrec.store.intake import merge
from tests.helpers.refusals import Refuses
from tests.helpers.sharing import add

GPU, KERNEL, HASH = "h200-sxm", "matmul_simt", "0123456789abcdef"


@pytest.fixture
def make(tmp_path):
    """Makes a database file of measurements and profiles."""

    def make(name, measurements=(), profiles=()):
        with Database.open(tmp_path / name, read_only=False, create=True) as database:
            add(database, *measurements)
            database.add_profiles(profiles)
        return tmp_path / name

    return make


def measured(stack, problem):
    return list(stack.evidence(GPU, problem.op, [KERNEL], problem.key).measured)


def test_the_first_that_measured_a_config_is_believed(make, row, problem):
    slow, fast = {"block_m": 32}, {"block_m": 128}
    mine = make("mine", [row(config=slow, latency_s=5e-3)])
    team = make("team", [row(config=slow, latency_s=1e-6), row(config=fast, latency_s=1e-3)])
    stack = Stack([mine, team])
    answers = stack.evidence(GPU, problem.op, iter([KERNEL]), problem.key).measured
    assert [(row.config, row.latency_s) for row in answers] == [(fast, 1e-3), (slow, 5e-3)]
    assert stack.measured_problems(GPU) == {problem.key}


def test_shipped_profiles_are_displaced_by_none_and_others_come_from_the_first_that_has_them(
    make, profile, tmp_path, monkeypatch
):
    """Of a stranger, too: his are in a database that was merged or pulled, and would change what is predicted."""
    theirs = [profile(registers=4), profile(sm=75, registers=4, compiler="nvrtc 99.0")]
    databases = [make("empty"), make("mine", profiles=[profile(registers=3)]), make("theirs", profiles=theirs)]
    monkeypatch.setattr("kernrec.paths.shipped", lambda name: tmp_path / name)
    write_profiles(tmp_path / "db/prebuilt" / f"{KERNEL}.profile.parquet", [profile(sm=75, registers=2)])
    stack = Stack(databases)
    assert stack.profiles(KERNEL, HASH, 89)[0].registers.tolist() == [3]
    assert stack.profiles(KERNEL, HASH, 75)[0].registers.tolist() == [2]
    assert stack.profiles(KERNEL, HASH, 90) == {}


@pytest.mark.usefixtures("read_here")
def test_a_merged_profile_of_what_was_profiled_here_is_left(make, profile):
    mine = make("mine", profiles=[profile(registers=3)])
    theirs = make("theirs", profiles=[profile(registers=4, compiler="nvrtc 99.0"), profile(sm=90, registers=5)])
    with Database.open(mine, read_only=False) as database:
        merge(database, theirs)
        assert database.profiles(KERNEL, HASH, 89)[0].registers.tolist() == [3]
        assert database.profiles(KERNEL, HASH, 90)[0].registers.tolist() == [5]


def test_the_users_own_database_is_asked_if_there_is_one(make, row, problem, tmp_path, monkeypatch):
    monkeypatch.delenv("KERNREC_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    stack = Stack()
    assert measured(stack, problem) == []
    assert list(tmp_path.iterdir()) == []
    make("kernrec/kernrec.duckdb", [row()])
    stack = Stack()
    another = Stack()
    assert len(measured(stack, problem)) == 1
    assert len(measured(another, problem)) == 1
    stack = Stack([])
    assert measured(stack, problem) == []


def test_a_database_that_is_named_twice_counts_once(make, row, tmp_path):
    mine, team = make("mine", [row()]), make("team", [row(config={"block_m": 32}), row(config={"block_m": 128})])
    (tmp_path / "link").symlink_to(mine)
    assert Stack([mine, team, tmp_path / "link", mine]).measurements() == 3


def test_a_database_named_by_the_environment_need_not_exist_yet(tmp_path, monkeypatch, refuses: Refuses):
    monkeypatch.setenv("KERNREC_DB", str(tmp_path / "none"))
    stack = Stack()
    assert (stack.measurements(), stack.missing) == (0, tmp_path / "none")
    (note,) = ModelStore.beside(None, stack).warnings()
    assert note.startswith(f"KERNREC_DB names {tmp_path / 'none'}, which does not exist yet")
    refuses(lambda: Stack([tmp_path / "none"]))
    monkeypatch.setenv("KERNREC_DB", "")  # names none, as if it were not set
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert Stack().measurements() == 0


def test_a_file_is_free_between_two_questions(make, tmp_path, problem, row):
    good = make("good", [row()])
    stack = Stack([good])
    Database.open(good, read_only=False).close()
    assert len(measured(stack, problem)) == 1
    Database.open(good, read_only=False).close()


def test_one_bad_file_closes_the_others(make, tmp_path, refuses: Refuses):
    good = make("good")
    refuses(lambda: Stack([good, tmp_path / "none"]))
    Database.open(good, read_only=False).close()  # nobody holds it


def test_a_file_is_opened_once_for_what_it_holds_and_again_when_it_changed(make, row, problem, profile, monkeypatch):
    path = make("mine", [row()], [profile(registers=3)])
    opened = []
    real = Database.open.__func__
    monkeypatch.setattr(
        Database, "open", classmethod(lambda cls, *args, **kw: opened.append(args) or real(cls, *args, **kw))
    )
    stack = Stack([path])
    assert len(measured(stack, problem)) == stack.measurements() == 1
    assert stack.profiles("another", HASH, 89) == stack.profiles(KERNEL, HASH, 90) == {}
    assert stack.profiles(KERNEL, HASH, 89)[0].registers.tolist() == [3]
    assert measured(stack, find_op("matmul").problem(m=64, n=32, k=17)) == []
    assert len(opened) == 1
    make("mine", [row(latency_s=7.0)], [profile(sm=90, registers=4)])
    assert stack.measurements() == 2
    assert stack.profiles(KERNEL, HASH, 90)[0].registers.tolist() == [4]
