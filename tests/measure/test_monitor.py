"""Test `kernrec monitor`, and campaigns at several power limits and clocks."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.measure import collect
from kernrec.measure.campaign.results import CampaignBudget
from kernrec.measure.collect import collect_at, operating_points
from kernrec.measure.device import gpu_limits, nvml
from kernrec.measure.device.interface import SensorReading
from kernrec.measure.device.nvml import LocalGpu
from kernrec.measure.monitor import TraceFile, summarize_trace
from kernrec.measure.request import CollectRequest, CollectResult, Strategy
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint


def sample(time_s: float, power_w: float | None, energy_j: float | None = None, *reasons: str) -> SensorReading:
    return SensorReading(time_s, energy_j, power_w, 1.5e9, None, 60.0, frozenset(reasons))


def test_energy_counter_is_preferred_to_power_samples():
    counted = summarize_trace([sample(0, 100, 50), sample(1, 300, 260)])
    sampled = summarize_trace([sample(0, 100), sample(1, 300)])
    assert (counted.energy_j, counted.energy_from) == (210, "counter")
    assert (sampled.energy_j, sampled.energy_from) == (200, "power")
    # A counter that was reset in between gives no energy.
    assert summarize_trace([sample(0, 100, 50), sample(1, 300, 2)]).energy_from == "power"


@given(power=st.floats(1, 1000), steps=st.lists(st.floats(0.01, 10), min_size=1, max_size=30))
def test_constant_power_gives_power_times_time(power, steps):
    times = [sum(steps[:i]) for i in range(len(steps) + 1)]
    summary = summarize_trace([sample(time, power) for time in times])
    assert summary.energy_j == pytest.approx(power * times[-1])
    assert summary.mean_power_w == pytest.approx(power)


def test_throttling_is_a_fraction_of_the_samples():
    samples = [sample(0, 1, None, "idle"), sample(1, 1, None, "power cap", "idle"), sample(2, 1), sample(3, 1)]
    assert summarize_trace(samples).throttled == {"idle": 0.5, "power cap": 0.25}


def test_trace_file_has_each_sample_immediately(tmp_path):
    path = tmp_path / "it's a trace.csv"
    with TraceFile(path) as file:
        file.add(sample(0.0, 100.25, 3.5, "power cap", "idle"))
        with path.open() as text:
            rows = list(csv.DictReader(text))
        file.add(sample(0.125, None))
    assert [row["power_w"] for row in rows] == ["100.25"]
    assert rows[0]["reasons"] == "idle|power cap"
    assert path.read_text().splitlines()[-1].startswith("0.125,,,")


def test_empty_trace_has_no_summary():
    with pytest.raises(UsageError, match="the trace has no samples"):
        summarize_trace([])


REQUEST = CollectRequest(None, Path("own.duckdb"), strategy=Strategy.PLAN, budget=CampaignBudget(60.0))


@pytest.fixture
def history(monkeypatch):
    events: list[str] = []

    @contextmanager
    def limits_set(card: LocalGpu, point: OperatingPoint) -> Iterator[None]:
        events.append(f"set {point.power_limit_w:g}")
        yield
        events.append("restore")

    monkeypatch.setattr(nvml, "local_gpus", lambda: [LocalGpu(0, "GPU-aaaa", "NVIDIA H200", 0)])
    monkeypatch.setattr(gpu_limits, "check_limits", lambda card, points: events.append(f"check {len(points)}"))
    monkeypatch.setattr(gpu_limits, "limits_set", limits_set)
    return events


def test_operating_points_combine_every_limit_with_every_clock():
    assert operating_points([], []) == (DEFAULT_POINT,)
    assert operating_points([200.0], []) == (OperatingPoint(200.0),)
    assert len(set(operating_points([200.0, 300.0], [1e9, 1.2e9, 1.4e9]))) == 6


def test_all_limits_are_checked_first_and_restored_after_measuring(history, monkeypatch):
    def measure(request: CollectRequest, *_: object) -> CollectResult:
        history.append(f"measure {request.point.power_limit_w:g}")
        return CollectResult()

    monkeypatch.setattr(collect, "collect", measure)
    measured = collect_at(operating_points([300.0, 400.0], []), REQUEST)
    assert history == ["check 2", "set 300", "measure 300", "restore", "set 400", "measure 400", "restore"]
    assert [point.power_limit_w for point, _ in measured] == [300.0, 400.0]


@pytest.mark.parametrize("end", [CollectResult(error="the device is lost"), CollectResult(stopped=True)])
def test_stopped_collection_skips_the_remaining_power_limits(history, monkeypatch, end):
    monkeypatch.setattr(collect, "collect", lambda *_: end)
    measured = collect_at(operating_points([300.0, 400.0], []), replace(REQUEST, gpu="0"))
    assert history == ["check 2", "set 300", "restore"]
    assert [result for _, result in measured] == [end]
