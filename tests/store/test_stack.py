"""Test answers, logs and profiles from several databases together."""

import numpy as np
import pytest
from build_database import write_profiles

from kernrec.errors import UsageError
from kernrec.op import find_op
from kernrec.store import Database, Evidence, Stack, read_profiles
from kernrec.store.measurement_log import evidence
from tests.helpers.sharing import add

GPU, KERNEL, HASH = "h200-sxm", "matmul_simt", "0123456789abcdef"


@pytest.fixture
def make(tmp_path):

    def make(name, measurements=(), profiles=()):
        with Database.open(tmp_path / name, read_only=False, create=True) as database:
            add(database, *measurements)
            database.add_profiles(profiles)
        return tmp_path / name

    return make


def measured(stack, problem):
    return list(stack.evidence(GPU, problem.op, [KERNEL], problem.key).measured)


def test_first_database_that_measured_a_config_is_used(make, row, problem):
    slow, fast = {"block_m": 32}, {"block_m": 128}
    mine = make("mine", [row(config=slow, latency_s=5e-3)])
    team = make("team", [row(config=slow, latency_s=1e-6), row(config=fast, latency_s=1e-3)])
    stack = Stack([mine, team])
    answers = stack.evidence(GPU, problem.op, iter([KERNEL]), problem.key).measured
    assert [(row.config, row.latency_s) for row in answers] == [(fast, 1e-3), (slow, 5e-3)]


def test_shipped_profiles_take_precedence_then_the_first_database(make, profile, tmp_path, monkeypatch):
    """A merged or pulled database may hold an untrusted source's profiles, which would change predictions."""
    theirs = [profile(registers=4), profile(sm=75, registers=4, compiler="nvrtc 99.0")]
    databases = [make("empty"), make("mine", profiles=[profile(registers=3)]), make("theirs", profiles=theirs)]
    monkeypatch.setattr("kernrec.paths.shipped", lambda name: tmp_path / name)
    write_profiles(tmp_path / "db/prebuilt" / f"{KERNEL}.profile.parquet", [profile(sm=75, registers=2)])
    stack = Stack(databases)
    assert stack.profiles(KERNEL, HASH, 89)[0].registers.tolist() == [3]
    assert stack.profiles(KERNEL, HASH, 75)[0].registers.tolist() == [2]
    assert stack.profiles(KERNEL, HASH, 90) == {}


def test_users_database_is_used_if_it_exists(make, row, problem, tmp_path, monkeypatch):
    monkeypatch.delenv("KERNREC_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert measured(Stack(), problem) == []
    assert list(tmp_path.iterdir()) == []
    make("kernrec/kernrec.duckdb", [row()])
    stack = Stack()
    another = Stack()
    assert len(measured(stack, problem)) == 1
    assert len(measured(another, problem)) == 1
    assert measured(Stack([]), problem) == []


def test_database_given_twice_is_used_once(make, row, tmp_path):
    mine, team = make("mine", [row()]), make("team", [row(config={"block_m": 32}), row(config={"block_m": 128})])
    (tmp_path / "link").symlink_to(mine)
    assert Stack([mine, team, tmp_path / "link", mine]).measurements() == 3


def test_database_is_unlocked_between_queries(make, tmp_path, problem, row):
    good = make("good", [row()])
    stack = Stack([good])
    Database.open(good, read_only=False).close()
    assert len(measured(stack, problem)) == 1
    Database.open(good, read_only=False).close()


def test_databases_are_closed_if_another_file_is_invalid(make, tmp_path, refuses):
    good = make("good")
    refuses(lambda: Stack([good, tmp_path / "none"]))
    Database.open(good, read_only=False).close()  # this fails if another connection is open


def test_database_is_reopened_only_after_it_changed(make, row, problem, profile, monkeypatch):
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


@pytest.mark.parametrize("stated", [{"latency_low_s": 9e-4, "latency_high_s": 1.2e-3}, {}])
def test_result_of_a_single_session_keeps_its_interval(database, row, problem, stated):
    add(database, row(**stated))
    (answer,) = database.measured(GPU, [KERNEL], problem.key)
    assert (answer.latency_low_s, answer.latency_high_s) == (stated.get("latency_low_s"), stated.get("latency_high_s"))


def test_each_locked_memory_clock_has_its_own_answer(database, row, problem):
    add(database, row(), row(locked_memory_clock_hz=1e9, latency_s=2e-3))
    answers = database.measured(GPU, [KERNEL], problem.key)
    assert [(answer.latency_s, answer.locked_memory_clock_hz) for answer in answers] == [(1e-3, None), (2e-3, 1e9)]


def log_of(problem, *rows):
    with Database.memory() as database:
        add(database, *rows)
        return database.log(GPU, [problem.key])


def test_failure_counts_until_the_config_succeeds_in_any_database(row, problem):
    def failures(*logs):
        return [failure.outcome for failure in evidence(logs, [KERNEL], problem.key).failed]

    crash = log_of(problem, row(outcome="crash", latency_s=None))
    well = log_of(problem, row(measured_at="2026-03-02"))
    assert failures(crash) == ["crash"]
    assert failures(well, crash) == failures(crash, well) == []
    wrong = log_of(problem, row(outcome="incorrect", latency_s=None), row(measured_at="2026-03-02"))
    assert failures(wrong) == ["incorrect"]  # a kernel with a race succeeds sometimes


def test_mig_slice_rows_do_not_describe_the_whole_gpu(database, row, problem):
    add(
        database,
        row(mig=False, latency_s=2e-3),
        row(mig=True, session="slice"),
        row(mig=True, config={"x": 1}, kernel="theirs"),
    )
    add(database, row(mig=True, outcome="crash", latency_s=None, measured_at="2026-04-01"))
    answers = evidence([database.log(GPU, [problem.key])], [KERNEL], problem.key)
    assert [(answer.latency_s, answer.sessions) for answer in answers.measured] == [(2e-3, 1)]
    assert (answers.failed, answers.foreign) == ((), ())
    assert len(database.rows("measurement")) == 4


def test_replayed_rows_are_ignored_if_measured_rows_exist(row, problem):
    imported = row(protocol_version=0)
    replay = {"measured_by": "kernrec 0.1.0", "replayed": True, "session": "replay", "measured_at": "2026-05-01"}
    replayed = row(**replay, protocol_version=0, latency_s=9e-4)

    def measured_in(*databases):
        logs = [log_of(problem, *rows) for rows in databases]
        (answer,) = evidence(logs, [KERNEL], problem.key).measured
        return answer.latency_s, answer.sessions, answer.replayed

    assert (
        measured_in([imported, replayed]) == measured_in([replayed], [imported]) == measured_in([imported], [replayed])
    )
    assert measured_in([imported, replayed]) == (1e-3, 1, False)
    assert measured_in([replayed]) == (9e-4, 1, True)


def test_reading_one_problem_equals_reading_several(database, row, problem):
    other = find_op("matmul").problem(m=64, n=32, k=17)
    add(database, row(), row(problem=other, latency_s=2.0), row(outcome="timeout", latency_s=None))
    for single in (problem, other):
        alone, whole = database.log(GPU, [single.key]), database.log(GPU, [problem.key, other.key, "none"])
        assert evidence([alone], [KERNEL], single.key) == evidence([whole], [KERNEL], single.key)
        assert len(evidence([alone], [KERNEL], single.key).measured) == 1
    assert evidence([database.log(GPU, [])], [KERNEL], problem.key) == Evidence()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "it's [1] *?" / "matmul_simt.profile.parquet"


@pytest.fixture
def rows(profile):
    noise = np.random.default_rng(1)
    return [
        profile(variant_key=f"c{code:02}", sm=sm, registers=32 + code, counts=noise.integers(0, 999, (2, 2)) / 64)
        for sm in (75, 89)
        for code in range(20)
    ]


def test_written_profiles_read_back(path, rows):
    write_profiles(path, reversed(rows))
    table = read_profiles(path, KERNEL, HASH, 89)[0]
    expected = rows[20:]
    assert table.variant_keys == tuple(row.variant_key for row in expected)
    assert table.entry == "matmul_simt"
    assert (table.metrics, table.terms) == (("issue.fma32", "issue.ld_shared"), ("block", "k_tiles"))
    np.testing.assert_array_equal(table.registers, [row.registers for row in expected])
    np.testing.assert_array_equal(table.static_smem_bytes, [4096] * 20)
    np.testing.assert_array_equal(table.counts, [row.counts for row in expected])
    assert table.counts.dtype == np.float64
    assert table.registers.dtype == np.int64


def test_file_is_independent_of_row_order(path, rows):
    write_profiles(path, rows)
    first = path.read_bytes()
    write_profiles(path, reversed(rows))
    assert path.read_bytes() == first
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_profile_of_each_launch_is_read_with_missing_metrics_as_zero(path, profile):
    write_profiles(
        path,
        [
            profile(variant_key="a"),
            profile(variant_key="b", metrics=("issue.bar",), counts=np.array([[7.0, 8.0]])),
            profile(variant_key="b", launch=1, entry="reduce", terms=("block",), counts=np.array([[5.0], [6.0]])),
        ],
    )
    tables = read_profiles(path, KERNEL, HASH, 89)
    assert list(tables) == [0, 1]
    assert tables[0].metrics == ("issue.fma32", "issue.ld_shared", "issue.bar")
    np.testing.assert_array_equal(tables[0].counts, [[[1, 2], [3, 4.5], [0, 0]], [[0, 0], [0, 0], [7, 8]]])
    assert (tables[1].entry, tables[1].variant_keys, tables[1].terms) == ("reduce", ("b",), ("block",))
    np.testing.assert_array_equal(tables[1].counts, [[[5], [6]]])


def test_other_kernel_source_or_architecture_has_no_profile(path, rows):
    write_profiles(path, rows)
    assert read_profiles(path, KERNEL, HASH, 90) == {}
    assert read_profiles(path, KERNEL, "f" * 16, 89) == {}
    assert read_profiles(path, "other", HASH, 89) == {}


def test_profile_of_the_newer_compiler_is_used(database, profile):
    database.add_profiles(
        [
            profile(compiler="nvrtc 13.10", registers=10),
            profile(compiler="nvrtc 13.9", registers=9),
            profile(compiler="nvrtc 12.20", registers=8),
        ]
    )
    assert database.profiles(KERNEL, HASH, 89)[0].registers.tolist() == [10]


def test_file_that_is_not_parquet_is_refused_in_one_line(path):
    path.parent.mkdir()
    path.write_text("hello")
    with pytest.raises(UsageError) as caught:
        read_profiles(path, KERNEL, HASH, 89)
    assert str(caught.value).startswith(f"{path}")
    assert "\n" not in str(caught.value)
