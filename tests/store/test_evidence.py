"""Test queries to the log: intervals, failures, other kernels and several databases."""

import pytest

from kernrec.op import find_op
from kernrec.store import Database, Evidence
from kernrec.store.measurement_log import evidence
from tests.helpers.sharing import add

GPU, KERNEL = "h200-sxm", "matmul_simt"


def interval(database, problem):
    (answer,) = database.measured(GPU, [KERNEL], problem.key)
    return answer.latency_low_s, answer.latency_high_s


@pytest.mark.parametrize("stated", [{"latency_low_s": 9e-4, "latency_high_s": 1.2e-3}, {}])
def test_single_session_has_its_stated_interval(database, row, problem, stated):
    add(database, row(**stated))
    assert interval(database, problem) == (stated.get("latency_low_s"), stated.get("latency_high_s"))


def test_locked_memory_clock_is_a_separate_answer(database, row, problem):
    add(database, row(), row(locked_memory_clock_hz=1e9, latency_s=2e-3))
    answers = database.measured(GPU, [KERNEL], problem.key)
    assert [(answer.latency_s, answer.locked_memory_clock_hz) for answer in answers] == [(1e-3, None), (2e-3, 1e9)]


def test_failure_counts_until_the_config_succeeds_in_any_database(row, problem):
    def log(*rows):
        with Database.memory() as database:
            add(database, *rows)
            return database.log(GPU, [problem.key])

    def failures(*logs):
        return [failure.outcome for failure in evidence(logs, [KERNEL], problem.key).failed]

    crash, well = log(row(outcome="crash", latency_s=None)), log(row(measured_at="2026-03-02"))
    assert failures(crash) == ["crash"]
    assert failures(well, crash) == failures(crash, well) == []
    wrong = log(row(outcome="incorrect", latency_s=None), row(measured_at="2026-03-02"))
    assert failures(wrong) == ["incorrect"]  # a race may succeed at times


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


def test_problem_measured_only_on_a_slice_is_not_measured(database, row):
    add(database, row(mig=True))


REPLAY = {
    "measured_by": "kernrec 0.1.0",
    "replayed": True,
    "protocol_version": 0,
    "session": "replay",
    "measured_at": "2026-05-01",
}


def test_replayed_rows_never_count_beside_measured_rows(row, problem):
    imported, replayed = row(protocol_version=0), row(**REPLAY, latency_s=9e-4)

    def measured_in(*databases):
        logs = []
        for rows in databases:
            with Database.memory() as database:
                add(database, *rows)
                logs.append(database.log(GPU, [problem.key]))
        (answer,) = evidence(logs, [KERNEL], problem.key).measured
        return answer.latency_s, answer.sessions, answer.replayed

    assert (
        measured_in([imported, replayed]) == measured_in([replayed], [imported]) == measured_in([imported], [replayed])
    )
    assert measured_in([imported, replayed]) == (1e-3, 1, False)
    assert measured_in([replayed]) == (9e-4, 1, True)


def test_single_problem_reads_the_same_as_among_others(database, row, problem):
    other = find_op("matmul").problem(m=64, n=32, k=17)
    add(database, row(), row(problem=other, latency_s=2.0), row(outcome="timeout", latency_s=None))
    for single in (problem, other):
        alone, whole = database.log(GPU, [single.key]), database.log(GPU, [problem.key, other.key, "none"])
        assert evidence([alone], [KERNEL], single.key) == evidence([whole], [KERNEL], single.key)
        assert len(evidence([alone], [KERNEL], single.key).measured) == 1
    assert evidence([database.log(GPU, [])], [KERNEL], problem.key) == Evidence()
