"""Test that measurements of a program's own autotuner are stored; driver and benchmark are emulated."""

import os
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kernrec.errors import UsageError
from kernrec.store import Database
from kernrec.store.measurement import DeviceReport, LatencyReport, Measurement, MeasurementOrigin, ProtocolInfo, Tier
from tests.helpers.triton_driver import Tensor, stand_in_driver

triton = pytest.importorskip("triton", minversion="3.8", reason="needs the extra `triton`")

import kernrec.triton  # noqa: E402
from kernrec.triton import listener, machine  # noqa: E402
from tests.triton import tuned_kernels  # noqa: E402

N = 1 << 16
TIMES_MS = (0.5, 0.3, 0.4)


@pytest.fixture(autouse=True)
def _place(tmp_path_factory, tmp_path, monkeypatch):
    """Give each test its own database, and all tests the same caches."""
    shared = tmp_path_factory.getbasetemp() / "triton"
    monkeypatch.setenv("KERNREC_DB", str(tmp_path / "own.duckdb"))
    monkeypatch.setenv("KERNREC_CACHE", str(shared / "kernrec"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(shared / "compiled"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv("KERNREC_GPU", "a100")


@pytest.fixture(autouse=True)
def driver():
    with stand_in_driver() as active:
        yield active


def tuned(times_ms: Any = TIMES_MS, function: Any = None, **options: Any) -> Any:
    """Return an autotuned function whose emulated benchmark returns the next time of the list."""
    times = iter(times_ms)

    def bench(launch: Any, quantiles: Any) -> list[float]:
        launch()
        time_ms = next(times)
        return [time_ms, time_ms * 0.9, time_ms * 1.1]

    options = {"configs": tuned_kernels.CONFIGS, "key": ["n"], "do_bench": bench} | options
    return triton.autotune(**options)(function or tuned_kernels.scale)


def launch(function: Any, n: int = N) -> None:
    x = Tensor("float32", n)
    function[tuned_kernels.grid](x, x, n, 2.0)


def rows() -> list[dict[str, Any]]:
    path = Path(os.environ["KERNREC_DB"])
    if not path.exists():
        return []
    with Database.open(path) as database:
        return database.rows("measurement")


def test_every_config_measured_by_the_program_becomes_a_row_with_its_origin(monkeypatch):
    monkeypatch.setattr(machine, "_card", lambda: machine.Card(0, "GPU-1", "NVIDIA A100-SXM4-80GB", 0))
    monkeypatch.setattr(machine, "sensors", lambda uuid: None)
    function = tuned()
    with kernrec.triton.record() as recorder:
        launch(function)
        launch(function)  # from Triton's own cache
    stored = sorted(rows(), key=lambda row: row["latency_s"])
    assert [row["latency_s"] for row in stored] == pytest.approx([0.3e-3, 0.4e-3, 0.5e-3])
    assert {(row["gpu"], row["kernel"], row["outcome"]) for row in stored} == {("a100-sxm4-80gb", "scale", "ok")}
    assert {(row["protocol_version"], row["device"]) for row in stored} == {(0, "NVIDIA A100-SXM4-80GB")}
    assert all(
        row["measured_by"].startswith("triton 3.") and " autotune, kernrec" in row["measured_by"] for row in stored
    )
    assert {row["compiler"] for row in stored} == {f"triton {triton.__version__}"}
    assert (recorder.rows, recorder.refused) == (3, {})


def test_listener_records_only_inside_its_block_and_forwards_events():
    heard: list[str] = []

    def before(**event: Any) -> None:
        heard.append(event["fn"].__name__)

    triton.knobs.autotuning.listener = before
    try:
        with kernrec.triton.record():
            launch(tuned())
        launch(tuned(), N * 2)
        assert triton.knobs.autotuning.listener is before
    finally:
        triton.knobs.autotuning.listener = None
    assert (heard, len(rows())) == (["scale", "scale"], 3)


def test_recorded_rows_never_replace_protocol_measurements():
    with kernrec.triton.record():
        launch(tuned())
    with Database.open(Path(os.environ["KERNREC_DB"]), read_only=False) as database:
        [row, *_] = database.measurements(gpu="a100-sxm4-80gb")
        own = Measurement(
            row.identity,
            ProtocolInfo(1, Tier.SCREEN),
            MeasurementOrigin("campaign", datetime(2026, 1, 1), "kernrec"),
            row.outcome,
            report=DeviceReport(LatencyReport(latency_s=2e-3)),
        )
        database.add_measurements([own])
    with kernrec.triton.record():
        launch(tuned())
    assert len(rows()) == 7
    with Database.open(Path(os.environ["KERNREC_DB"])) as database:
        answers = database.measured("a100-sxm4-80gb", ["scale"], row.identity.problem.key)
    of_config = {answer.latency_s: answer.protocol_version for answer in answers}
    assert of_config.pop(2e-3) == 1
    assert sorted(of_config.values()) == [0, 0]


def test_failed_config_is_stored_as_failed():
    with kernrec.triton.record() as recorder:
        launch(tuned((0.5, float("inf"), 0.4)))
    assert sorted(row["outcome"] for row in rows()) == ["constraint", "ok", "ok"]
    assert recorder.rows == 3


def test_drop_in_decorator_uses_recorded_rows():
    with kernrec.triton.record():
        launch(tuned())
    function = kernrec.triton.autotune(tuned_kernels.CONFIGS, ["n"], do_bench=None)(tuned_kernels.scale)
    launch(function)
    assert function.best_config is tuned_kernels.CONFIGS[1]


def test_times_from_the_triton_disk_cache_are_not_stored():
    launch(tuned(cache_results=True), N * 4)
    with kernrec.triton.record() as recorder:
        launch(tuned((), cache_results=True), N * 4)
    assert (recorder.from_cache, recorder.rows, rows()) == (1, 0, [])


def test_rows_wait_for_a_locked_database(monkeypatch, tmp_path):
    keep, failures = listener.keep, [UsageError("own.duckdb is in use by another process")]

    def busy_once(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        keep(*arguments)

    monkeypatch.setattr(listener, "keep", busy_once)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with kernrec.triton.record() as recorder:
            launch(tuned())
            assert recorder.rows == 0
    assert (recorder.rows, len(rows())) == (3, 3)
    assert ["own.duckdb is in use" in str(warning.message) for warning in seen] == [True]


def test_triton_without_listeners_is_refused(monkeypatch):
    monkeypatch.setattr(triton.knobs, "autotuning", object())
    with pytest.raises(UsageError, match=r"Triton 3\.\d+\.\d+ has no listener for its autotuner; Triton 3.8 or later"):
        kernrec.triton.record()
