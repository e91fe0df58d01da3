"""Test that measuring at several power limits in turn stops after the first incomplete run."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kernrec.measure import collect
from kernrec.measure.collect import collect_at, operating_points
from kernrec.measure.device import gpu_limits, nvml
from kernrec.measure.device.nvml import LocalGpu
from kernrec.measure.request import CollectRequest, CollectResult
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint

CARD = LocalGpu(0, "GPU-aaaa", "NVIDIA H200", 0)


REQUEST = CollectRequest(None, Path("own.duckdb"))


@pytest.fixture
def history(monkeypatch):
    """Record everything that is done to the GPU, in order."""
    events: list[str] = []

    @contextmanager
    def limits_set(card: LocalGpu, point: OperatingPoint) -> Iterator[None]:
        events.append(f"set {point.power_limit_w:g}")
        yield
        events.append("restore")

    monkeypatch.setattr(nvml, "local_gpus", lambda: [CARD])
    monkeypatch.setattr(gpu_limits, "check_limits", lambda card, points: events.append(f"check {len(points)}"))
    monkeypatch.setattr(gpu_limits, "limits_set", limits_set)
    return events


def test_every_pair_of_limit_and_clock_is_a_point():
    assert operating_points([], []) == (DEFAULT_POINT,)
    assert operating_points([200.0], []) == (OperatingPoint(200.0),)
    assert len(set(operating_points([200.0, 300.0], [1e9, 1.2e9, 1.4e9]))) == 6


def test_all_limits_are_checked_before_the_first_is_set_and_restored(history, monkeypatch):
    def measure(request: CollectRequest, *_: object) -> CollectResult:
        history.append(f"measure {request.point.power_limit_w:g}")
        return CollectResult()

    monkeypatch.setattr(collect, "collect", measure)
    measured = collect_at(operating_points([300.0, 400.0], []), REQUEST)
    assert history == ["check 2", "set 300", "measure 300", "restore", "set 400", "measure 400", "restore"]
    assert [point.power_limit_w for point, _ in measured] == [300.0, 400.0]


@pytest.mark.parametrize("end", [CollectResult(error="the device is lost"), CollectResult(stopped=True)])
def test_early_end_at_one_limit_skips_the_rest(history, monkeypatch, end):
    monkeypatch.setattr(collect, "collect", lambda *_: end)
    measured = collect_at(operating_points([300.0, 400.0], []), replace(REQUEST, gpu="0"))
    assert history == ["check 2", "set 300", "restore"]
    assert [result for _, result in measured] == [end]
