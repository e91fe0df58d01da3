"""Test that answers are medians over people, after the times of each GPU are scaled to a typical GPU of its model."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.store import Database
from kernrec.store.measurement import Measurement
from kernrec.store.measurement_log import MeasuredAnswer, evidence
from kernrec.store.schema import with_derived
from tests.helpers.depth import few_examples
from tests.helpers.sharing import GPU, KERNEL, PROBLEM, key_of, measurement, merge_signed

CONFIGS = 6
TRUE_S = [1e-3 * (1 + i) for i in range(CONFIGS)]


def rows_of(
    person: str, scale: float, configs: Sequence[int] = range(CONFIGS), sessions: int = 1, **more: object
) -> list[Measurement]:
    """Simulate noisy rows of a person whose GPU takes `scale` times as long as a typical GPU of its model."""
    draw = np.random.default_rng(sum(map(ord, person)))
    return [
        measurement(
            session=f"{person} {session}",
            position=config,
            config={"block_m": config + 1},
            device_uuid_hash=(person * 16)[:16],
            latency_s=TRUE_S[config] * scale * float(np.exp(0.005 * draw.standard_normal())),
            energy_j=0.3 * TRUE_S[config] / scale,
            power_w=0.3 * 1e3 / scale**2,
            **more,
        )
        for session in range(sessions)
        for config in configs
    ]


def combined(people: Mapping[str, Sequence[Measurement]], own: Sequence[Measurement] = ()) -> Database:
    database = Database.memory()
    database.add_measurements(own)
    merge_signed(database, people)
    return database


def answers(database: Database) -> dict[int, MeasuredAnswer]:
    there = evidence([database.log(GPU, [PROBLEM.key])], [KERNEL], PROBLEM.key)
    return {answer.config["block_m"] - 1: answer for answer in there.measured}


class Scale(NamedTuple):
    """Costs of a contributor's GPU relative to other GPUs of the same model."""

    latency_scale: float
    latency_ratio: float
    energy_ratio: float


def scales(database: Database) -> dict[str, Scale]:
    rows = database.query(f"SELECT contributor, {', '.join(Scale._fields)} FROM db.gpu_scale")
    return {str(contributor): Scale(*values) for contributor, *values in rows}


@pytest.mark.every(3)
@few_examples(5)
@given(st.floats(0.5, 2.5))
def test_scale_of_an_outlier_gpu_is_recovered_and_changes_no_answer(scale):
    people = {"ann": rows_of("ann", 1.0), "ben": rows_of("ben", 1.0), "cyd": rows_of("cyd", scale, sessions=3)}
    with combined(people) as database:
        assert scales(database)[key_of("cyd")].latency_ratio == pytest.approx(scale, rel=0.02)
        assert scales(database)[key_of("cyd")].energy_ratio == pytest.approx(1 / scale, rel=0.02)
        assert scales(database)[key_of("ann")].latency_scale == pytest.approx(1.0, rel=0.02)
        for config, answer in answers(database).items():
            assert answer.latency_s == pytest.approx(TRUE_S[config], rel=0.03)
            assert answer.energy_j == pytest.approx(0.3 * TRUE_S[config], rel=0.03)
            assert answer.contributors == 3


def test_rows_from_only_a_slow_gpu_are_rescaled_to_a_typical_gpu():
    people = {"ann": rows_of("ann", 1.0, range(4)), "ben": rows_of("ben", 1.0, range(4)), "cyd": rows_of("cyd", 1.6)}
    with combined(people) as database:
        answer = answers(database)[CONFIGS - 1]
        assert answer.latency_s == pytest.approx(TRUE_S[-1], rel=0.03)
        assert (answer.contributors, answer.rescaled) == (1, 1)
        assert scales(database)[key_of("cyd")].latency_ratio == pytest.approx(1.6, rel=0.01)


def test_one_of_three_users_cannot_change_an_answer():
    people = {"ann": rows_of("ann", 1.0), "ben": rows_of("ben", 1.01)}
    liar = [
        measurement(session=f"liar {n}", config={"block_m": 1}, latency_s=1e-5, measured_at="2026-05-01")
        for n in range(40)
    ]
    with combined({**people, "liar": liar}) as database:
        answer = answers(database)[0]
        assert answer.latency_s == pytest.approx(TRUE_S[0], rel=0.03)
        assert (answer.contributors, answer.sessions) == (3, 42)
        assert answer.spread_low_s == pytest.approx(1e-5)
        assert answer.spread_high_s == pytest.approx(TRUE_S[0], rel=0.05)


def test_users_rows_are_neither_rescaled_nor_replaced():
    people = {person: rows_of(person, 1.0) for person in ("ann", "ben", "cyd")}
    with combined(people, own=rows_of("me", 1.4, range(4))) as database:
        assert scales(database)["own"].latency_ratio == pytest.approx(1.4, rel=0.02)
        answer = answers(database)[0]
        assert answer.latency_s == pytest.approx(1.4 * TRUE_S[0], rel=0.03)
        assert (answer.merged, answer.rescaled) == (False, 0)
        assert answer.others_s == pytest.approx(TRUE_S[0], rel=0.03)
        assert answers(database)[CONFIGS - 1].latency_s == pytest.approx(TRUE_S[-1], rel=0.03)


def test_false_gpu_scales_in_a_file_do_not_change_answers():
    with combined({"ann": [measurement()]}) as database:
        database.change(["INSERT INTO db.merged FROM db.merged", "INSERT INTO db.merged FROM db.merged"])
        for scale in ("1e-300", "'nan'::DOUBLE", "1e300"):
            values = f"'{GPU}', '{key_of('ann')}', '00112233aabbccdd', {scale}, {scale}, 1.0, 1.0, 3"
            database.change([f"INSERT INTO db.gpu_scale VALUES ({values})"])
            (answer,) = answers(database).values()
            assert (answer.latency_s, answer.sessions, answer.rescaled) == (1e-3, 1, 0)
            database.change(["DELETE FROM db.gpu_scale"])
        assert database.query(with_derived("whole_gpu_rows", "SELECT count(*) FROM whole_gpu_rows")) == [(1,)]
