"""Test that other people's rows add answers but never remove the user's own, and that withdrawn rows are unused."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.store import Database, Stack
from kernrec.store.measurement import NEWEST_PROTOCOL, Measurement
from kernrec.store.measurement_log import evidence
from kernrec.store.share.withdraw import retracted, retraction_rows, withdraw_here
from tests.helpers.depth import few_examples
from tests.helpers.reading import reading_here
from tests.helpers.sharing import GPU, KERNEL, PROBLEM, Person, measurement, measurements, merge, store_measurements

OTHER = {"block_m": 32}
ALL = "measurement_id IN (SELECT measurement_id FROM db.merged)"


@pytest.fixture
def own(tmp_path):
    return store_measurements(tmp_path / "own.duckdb", [measurement(position=3)])


def answers(path: Path) -> list[tuple[float, bool, float | None]]:
    """Return (latency, whether another user measured it, latency by other users) of each measured config."""
    with Database.open(path) as database:
        evidence_here = evidence([database.log(GPU, [PROBLEM.key])], [KERNEL], PROBLEM.key)
        return [(answer.latency_s, answer.merged, answer.others_s) for answer in evidence_here.measured]


def merged(own: Path, *rows: Measurement) -> list[tuple[float, bool, float | None]]:
    with reading_here(), Database.open(own, read_only=False) as database:
        merge(database, store_measurements(own.parent / "theirs.duckdb", rows))
    return answers(own)


def test_merged_sessions_do_not_change_the_users_answer(own):
    rows = [measurement(session=f"theirs {n}", latency_s=3e-4) for n in range(5)]
    rows.append(measurement(session="theirs", config=OTHER, latency_s=2e-3))
    assert merged(own, *rows) == [(1e-3, False, 3e-4), (2e-3, True, None)]


def test_config_that_fails_elsewhere_but_runs_here_is_kept(own):
    rows = [measurement(session="theirs", outcome="incorrect", latency_s=None, measured_at="2026-04-01")]
    rows.append(measurement(session="theirs", config=OTHER, outcome="crash", latency_s=None))
    merged(own, *rows)
    with Database.open(own) as database:
        evidence_here = evidence([database.log(GPU, [PROBLEM.key])], [KERNEL], PROBLEM.key)
    assert [failed.config for failed in evidence_here.failed] == [OTHER]


@pytest.mark.parametrize(
    ("table", "change"), [("config", "kernel = 'another'"), ("problem", """dims = '{"n":32,"m":64,"k":16}'""")]
)
def test_merged_row_with_a_duplicated_config_does_not_change_answers(own, table, change):
    twin = "* REPLACE ('twin' AS {0}, 't' AS session, 3e-4 AS latency_s, 'twin row' AS measurement_id)"
    with Database.open(own, read_only=False) as database:
        name, value = change.split(" = ", 1)
        database.change(
            [
                f"INSERT INTO db.{table} SELECT * REPLACE ('twin' AS {table}_id, {value} AS {name}) FROM db.{table}",
                f"INSERT INTO db.measurement SELECT {twin.format(table + '_id')} FROM db.measurement",
                "INSERT INTO db.merged SELECT measurement_id, gpu, problem_id, '', NULL FROM db.measurement"
                " WHERE measurement_id = 'twin row'",
            ]
        )
    assert [(latency_s, from_others) for latency_s, from_others, _ in answers(own)] == [(1e-3, False)]


@pytest.mark.every(2)
@pytest.mark.parametrize("value", [64.0, True])
@pytest.mark.parametrize("outcome", ["ok", "incorrect"])
def test_config_value_of_another_type_is_a_different_config(own, value, outcome):
    with Database.open(own, read_only=False) as database:
        database.add_measurements([measurement(config={"block_m": 1}, latency_s=2e-3, position=4)])
    latency_s = 3e-4 if outcome == "ok" else None
    twin = measurement(session="theirs", config={"block_m": value}, outcome=outcome, latency_s=latency_s)
    assert [row[:2] for row in merged(own, twin)] == [(1e-3, False), (2e-3, False)]
    with Database.open(own) as database:
        assert not evidence([database.log(GPU, [PROBLEM.key])], [KERNEL], PROBLEM.key).failed


def test_merged_rows_can_be_retracted_separately(own):
    merged(own, measurement(session="theirs", latency_s=3e-4), measurement(session="theirs", config=OTHER))
    assert withdraw_here(own, ALL, "", agree=lambda rows: len(rows) == 2) == 2
    assert answers(own) == [(1e-3, False, None)]


@pytest.mark.every(3)
@pytest.mark.slow
@few_examples(5)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "session": st.sampled_from(["monday", "tuesday"]),
                "block": st.sampled_from([None, 0]),
                "position": st.sampled_from([None, 3, 4]),
                "config": st.sampled_from([{"block_m": 64}, OTHER]),
                "latency_s": st.sampled_from([1e-4, 1e-3, 2e-3]),
                "protocol_version": st.sampled_from([0, NEWEST_PROTOCOL]),
                "tier": st.sampled_from(["screen", "final"]),
                "replayed": st.sampled_from([None, True]),
            }
        ),
        min_size=1,
        max_size=6,
    )
)
def test_merge_never_changes_the_users_answers(tmp_path_factory, rows):
    path = store_measurements(tmp_path_factory.mktemp("own") / "own.duckdb", [measurement(position=3)])
    after = merged(path, *(measurement(**row) for row in rows))
    assert [latency_s for latency_s, from_others, _ in after if not from_others] == [1e-3]


def test_invalid_config_is_named_with_a_remedy(database, problem, refuses):
    """An earlier kernrec accepted invalid configs."""

    def refused(text: str) -> None:
        database.add_measurements([measurement()])
        database.change([f"UPDATE db.config SET tunables = '{text}'"])
        database.measured(GPU, [KERNEL], problem.key)

    refuses(refused, ['{"block_m":' + "9" * 5000 + "}", '{"block_m":' + "9" * 30 + "}", r'{"block_m":"\q"}'])


@pytest.fixture(scope="module")
def alices(tmp_path_factory):
    """Create Alice's database of three measurements, and withdraw the first measurement."""
    base = tmp_path_factory.mktemp("retractions")
    alice = Person(base / "alice")
    alice.measure(measurements("monday", 3))
    assert take_back(alice, "position = 0") == 1
    return base


@pytest.fixture
def base(alices, tmp_path, read_here):
    shutil.copytree(alices, tmp_path, dirs_exist_ok=True)
    return tmp_path


def take_back(person: Person, condition: str, reason: str = "a broken fan") -> int:
    return withdraw_here(person.database, condition, reason, agree=lambda _: True)


def answering(database: Database) -> list[int]:
    return sorted(answer.config["block_m"] for answer in database.measured(GPU, [KERNEL], PROBLEM.key))


def test_retracted_row_stays_in_the_log_but_is_not_used(base):
    alice = Person(base / "alice")
    with Database.open(alice.database) as database:
        assert answering(database) == [2, 3]
        assert len(database.rows("measurement")) == 3
        assert len(database.measurements()) == len(database.rows("best")) + 1 == 2
        assert retracted(database) == 1
        entries = {(row["signer"], row["reason"]) for row in database.rows("retraction")}
        assert entries == {("", "a broken fan")}
        assert database.altered() == []
    assert Stack([alice.database]).measurements() == 2
    answers = Stack([alice.database]).evidence(GPU, PROBLEM.op, [KERNEL], PROBLEM.key).measured
    assert sorted(answer.config["block_m"] for answer in answers) == [2, 3]
    assert take_back(alice, "true") == 2  # a withdrawn row is not selected again


def test_retraction_of_one_contradictory_row_restores_the_other():
    with Database.memory() as database:
        keys = database.add_measurements([measurement(position=0, latency_s=s) for s in (1e-3, 5e-3)])
        assert answering(database) == []
        database.add("retraction", retraction_rows(keys[1:], ""))
        assert database.conflicts() == []
        assert [answer.latency_s for answer in database.measured(GPU, [KERNEL], PROBLEM.key)] == [1e-3]
