"""Test that replaying recorded measurements uses the same protocol and campaign as a GPU."""

from pathlib import Path

import numpy as np
import pytest

from kernrec.measure.campaign.results import EFFORTS, CampaignBudget
from kernrec.measure.collect import collect
from kernrec.measure.device.interface import ConfigUnderTest
from kernrec.measure.device.replay import load_recordings, replay_gpu
from kernrec.measure.protocol.measure_config import Probe, measure_config
from kernrec.measure.request import CollectRequest, CollectResult
from kernrec.model.search.energy_guide import FIRST_ENERGY
from kernrec.op import find_op
from kernrec.store import Database, canonical_json
from kernrec.store.measurement import Tier
from tests.helpers.recording import BEST, make_recording, store_rows
from tests.helpers.sharing import measured_rows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_here")]


def _collect(recording: Path, database: Path, **more: object) -> CollectResult:
    wanted = {"problems": None, "database": database, "recording": recording}
    return collect(CollectRequest(**wanted | more))  # type: ignore[arg-type]


def test_replayed_times_have_the_recorded_noise(tmp_path):
    (recording,) = load_recordings(make_recording(tmp_path / "r.duckdb"), None)
    device = replay_gpu([recording])
    ran = [recorded for recorded in recording.outcomes.values() if recorded.samples_s]
    best = min(ran, key=lambda recorded: float(np.median(recorded.samples_s)))
    report = measure_config(
        device, ConfigUnderTest("recorded", best.config, recording.problem), Tier.SCREEN, None, Probe()
    )
    assert set(report.latency_samples_s) <= set(best.samples_s)
    assert report.latency_s == pytest.approx(float(np.median(best.samples_s)), rel=0.02)


@pytest.mark.every(2)
def test_replayed_campaign_finds_the_recorded_best_and_marks_its_rows(tmp_path):
    recording = make_recording(tmp_path / "r.duckdb")
    done = _collect(recording, tmp_path / "k.duckdb")
    for row in measured_rows(tmp_path / "k.duckdb"):
        assert row["protocol_version"] == 0
        assert str(row["device"]).startswith("replay of ")
        assert row["replayed"] is True
    (result,) = done.results
    assert result.best is not None
    assert result.best.config == BEST
    assert done.error is None
    tiers = {tier: measured_rows(tmp_path / "k.duckdb", tier=tier) for tier in ("screen", "coarse", "final")}
    assert len(tiers["screen"]) == 200
    assert FIRST_ENERGY <= len(tiers["coarse"]) <= 60  # predicts the power of 120 or more other configs
    assert len(tiers["final"]) == 32  # eight configs in four rounds
    assert all(row["reference_age_s"] <= 70.0 for row in tiers["final"])
    assert tiers["final"][-1]["idle_w"] == pytest.approx(60.0, rel=0.01)
    ratios = {row["reference_energy"] for row in tiers["final"]} - {None}
    assert ratios
    assert all(ratio == pytest.approx(1.0, abs=0.02) for ratio in ratios)
    truth = {key: outcome for r in load_recordings(recording, None) for key, outcome in r.outcomes.items()}
    joules = {key: row.power_w * np.median(row.samples_s) for key, row in truth.items() if row.outcome == "ok"}
    assert result.lowest_energy is not None
    least = joules["recorded", canonical_json(dict(result.lowest_energy.config))]
    assert least <= 1.02 * min(joules.values())
    with Database.open(tmp_path / "k.duckdb") as opened:
        configs = {row["config_id"]: str(row["tunables"]) for row in opened.rows("config")}
    for row in tiers["coarse"] + tiers["final"]:
        assert row["power_w"] == pytest.approx(truth["recorded", configs[row["config_id"]]].power_w, rel=0.02)


@pytest.mark.every(3)
def test_resumed_campaign_measures_nothing_twice(tmp_path):
    recording, database = make_recording(tmp_path / "r.duckdb"), tmp_path / "k.duckdb"
    _collect(recording, database, budget=CampaignBudget(configs=80), effort=EFFORTS["quick"])
    first = len(measured_rows(database, tier="screen"))
    _collect(recording, database)
    screened = [row["config_id"] for row in measured_rows(database, tier="screen")]
    assert first == 64  # number of configs that a quick campaign measures per problem
    assert len(screened) == len(set(screened)) == 200


@pytest.mark.every(3)
def test_resumed_campaign_continues_with_promising_configs(tmp_path):
    """The best of 400 recorded configs is among the first 64, although only measurements lead to it."""
    recording = make_recording(tmp_path / "r.duckdb", 400, energy=False)
    (result,) = _collect(recording, tmp_path / "k.duckdb", effort=EFFORTS["quick"]).results
    assert result.best is not None
    assert abs(result.best.config["x"] - BEST["x"]) <= 2


@pytest.mark.every(3)
def test_time_budget_of_a_replay_leaves_time_for_energy(tmp_path):
    recording = make_recording(tmp_path / "r.duckdb")
    _collect(recording, tmp_path / "k.duckdb", budget=CampaignBudget(seconds=60.0))
    tiers = [row["tier"] for row in measured_rows(tmp_path / "k.duckdb")]
    assert "coarse" in tiers
    assert len(tiers) < 280


@pytest.mark.parametrize(
    "made", [{"mig": True}, {"power_limit_w": 200.0}, {"locked_sm_clock_hz": 1e9}, {"replayed": True}]
)
def test_rows_of_slices_replays_or_other_limits_are_not_replayed(tmp_path, made):
    path = make_recording(tmp_path / "r.duckdb", 20)
    before = len(measured_rows(path))
    odd = {"gpu": "rtx3090", "kernel": "recorded", "kernel_hash": "0123456789abcdef", "config": {"x": 500, "y": 0},
           "problem": find_op("matmul").problem(m=1024, n=1024, k=1024), "protocol_version": 1, "tier": "final",
           "session": "then", "measured_at": "2026-01-01", "latency_s": 1e-6, "outcome": "ok"}  # fmt: skip
    (recording,) = load_recordings(store_rows(path, [odd | made]), None)
    assert len(recording.outcomes) == before
    assert all(recorded.config != odd["config"] for recorded in recording.outcomes.values())
