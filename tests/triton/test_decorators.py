"""Test the drop-in for Triton's autotuner with Triton's own objects. Only driver and benchmark are emulated."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernrec.errors import KernrecWarning, UsageError
from tests.helpers.paths import ROOT
from tests.helpers.sharing import measured_rows
from tests.helpers.triton_kernels import Tensor, stand_in_driver

triton = pytest.importorskip("triton", reason="needs the extra `triton`")

import kernrec.triton  # noqa: E402
from kernrec.triton import machine, tuner  # noqa: E402
from tests.triton import tuned_kernels  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiled_here")

N = 1 << 16


@pytest.fixture(autouse=True)
def _place(tmp_path_factory, tmp_path, monkeypatch):
    """Give each test a new database, and share the caches among all tests."""
    shared = tmp_path_factory.getbasetemp() / "triton"
    monkeypatch.setenv("KERNREC_DB", str(tmp_path / "own.duckdb"))
    monkeypatch.setenv("KERNREC_CACHE", str(shared / "kernrec"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(shared / "compiled"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.delenv("KERNREC_TRITON", raising=False)
    monkeypatch.setenv("KERNREC_GPU", "a100")
    tuner._warned.clear()


@pytest.fixture
def driver():
    with stand_in_driver() as active:
        yield active


class Bench:
    """Stand in for `triton.testing.do_bench`: launch, and return the next time of the list."""

    def __init__(self, *times_ms: float) -> None:
        self.times_ms = times_ms
        self.calls = 0

    def __call__(self, launch: Any, quantiles: Any) -> list[float]:
        launch()
        time_ms = self.times_ms[self.calls % len(self.times_ms)]
        self.calls += 1
        return [time_ms, time_ms * 0.9, time_ms * 1.1]


def tuned(bench: Any, function: Any = None, configs: Any = None, key: Any = ("n",), **options: Any) -> Any:
    decorate = kernrec.triton.autotune(configs or tuned_kernels.CONFIGS, list(key), do_bench=bench, **options)
    return decorate(function or tuned_kernels.scale)


def launch(function: Any, n: int = N, factor: float = 2.0) -> dict[str, Any]:
    x = Tensor("float32", n)
    function[tuned_kernels.grid](x, x, n, factor)
    return dict(function.best_config.kwargs)


def rows() -> list[dict[str, Any]]:
    return measured_rows(Path(os.environ["KERNREC_DB"]))


@pytest.mark.every(2)
def test_top_configs_are_measured_once_and_then_read_from_the_database(driver):
    bench = Bench(0.5, 0.3)
    first = tuned(bench, top_k=2)
    chosen = launch(first)
    assert bench.calls == 2
    assert len(driver.launched) == 3  # two measurements and the launch itself
    stored = rows()
    assert sorted(row["latency_s"] for row in stored) == pytest.approx([0.3e-3, 0.5e-3])
    assert {(row["gpu"], row["kernel"], row["outcome"]) for row in stored} == {("a100-sxm4-80gb", "scale", "ok")}
    launch(first)
    assert bench.calls == 2  # the time comes from Triton's own cache

    again = Bench(0.1)
    assert launch(tuned(again, top_k=2), factor=3.0) == chosen  # `factor` is not part of the key
    assert launch(tuned(again, top_k=1)) == chosen
    assert again.calls == 0
    assert len(rows()) == 2

    launch(tuned(more := Bench(0.1), top_k=3))
    assert more.calls == 3  # three configs are requested, two were measured


@pytest.mark.every(2)
def test_offline_decorator_uses_the_top_recommendation_without_measuring(driver, monkeypatch, refuses):
    monkeypatch.setenv("KERNREC_TRITON", "offline")
    bench = Bench(0.5)
    predicted = launch(tuned(bench))
    assert (bench.calls, rows()) == (0, [])
    monkeypatch.delenv("KERNREC_TRITON")
    measured = Bench(0.1, 0.2, 0.3)
    assert launch(tuned(measured)) == predicted  # the top recommendation is measured first
    monkeypatch.setenv("KERNREC_TRITON", "offlin")
    refuses(lambda: launch(tuned(bench), N * 2))


@pytest.mark.every(3)
def test_compile_error_affects_only_its_config(driver):
    configs = [triton.Config({"BLOCK": block, "WIDTH": 1}) for block in (48, 64, 128)]
    bench = Bench(0.5)
    x = Tensor("float32", N)
    with pytest.warns(KernrecWarning, match=r"1 of 3 configs are skipped, such as block=48.*tuned_kernels\.py:\d+: "):
        tuned(bench, tuned_kernels.add_rows, configs)[tuned_kernels.grid](x, x, N)
    assert bench.calls == 2


@pytest.mark.every(3)
def test_excess_shared_memory_is_refused_before_assembling(driver, tmp_path, monkeypatch):
    configs = [triton.Config({"BLOCK": 128}, num_stages=stages) for stages in (2, 3)]
    x = Tensor("float16", 4, 128, 128)
    monkeypatch.setenv("KERNREC_GPU", "rtx3090")
    with (
        stand_in_driver(86),
        pytest.warns(KernrecWarning, match=r"num_stages=3.*needs \d+ bytes of shared memory a block; sm_86 has 101376"),
    ):
        tuned(Bench(0.5), tuned_kernels.square, configs, ["a"][:0])[(1,)](x, x, x)


def test_unpredictable_function_is_measured_by_triton(driver):
    hooked = [triton.Config({"BLOCK": block}, pre_hook=lambda inputs: None) for block in (64, 128)]
    bench = Bench(0.5, 0.4)
    with pytest.warns(KernrecWarning, match="its configs are not ranked, all 2 are measured: .* has a pre_hook"):
        assert launch(tuned(bench, configs=hooked)) == {"BLOCK": 128}
    assert bench.calls == 2


class Sensors:
    """Stand in for NVML with a GPU that draws `watts` and updates its energy counter every millisecond."""

    def __init__(self, watts: list[float], calls: list[int]) -> None:
        self.watts, self.calls = watts, calls
        self._joules = self._last = 0.0

    def why_no_energy(self) -> str | None:
        return None

    def settings(self) -> Any:
        return SimpleNamespace(power_limit_w=None, sm_clock_hz=None, memory_clock_hz=None, mig=False)

    def versions(self) -> dict[str, str | None]:
        return {}

    def energy_j(self) -> float:
        import time

        now = round(time.monotonic(), 3)
        self._joules += (now - self._last if self._last else 0.0) * self.watts[len(self.calls) - 1]
        self._last = now
        return self._joules


def test_energy_objective_selects_by_energy(driver, monkeypatch):
    calls: list[int] = []
    bench = Bench(0.05, 0.06)

    def timed(launch: Any, quantiles: Any) -> list[float]:
        calls.append(1)
        return bench(launch, quantiles)

    gpu = machine.LocalGpu(0, "GPU-1", "NVIDIA A100-SXM4-80GB", 0)
    sensors = Sensors([400.0, 100.0], calls)
    monkeypatch.setattr(machine, "_local", lambda: gpu)
    monkeypatch.setattr(machine, "sensors", lambda uuid: sensors)
    for name, seconds in (("WINDOW_S", 0.05), ("SETTLE_S", 0.01), ("BATCH_S", 0.002)):
        monkeypatch.setattr(machine, name, seconds)
    function = tuned(timed, top_k=2, objective="energy")
    chosen = launch(function)
    stored = sorted(rows(), key=lambda row: row["energy_j"])
    assert [row["power_w"] for row in stored] == pytest.approx([100.0, 400.0], rel=0.5)
    assert stored[0]["latency_s"] == pytest.approx(0.06e-3)
    assert driver.synchronized
    assert launch(tuned(Bench(1.0), top_k=2, objective="energy")) == chosen
    assert launch(tuned(Bench(1.0), top_k=2)) != chosen  # the other config is faster


@pytest.mark.parametrize(("options", "message"), [
    ({"objective": "enrgy"}, "unknown objective 'enrgy'; did you mean energy"),
    ({"top_k": 0}, "top_k is 0; expected a whole number of at least 1"),
    ({"prune_configs_by": {"perf_model": len}}, "perf_model and kernrec both rank configs"),
    ({"configs": [triton.Config({"BLOK": 64})]}, r"configs\[0\]: unknown meta-parameter 'BLOK'; did you mean"),
    ({"configs": [{"BLOCK": 64}]}, r"configs\[0\] is .*; a triton.Config is expected"),
])  # fmt: skip
def test_impossible_decorator_arguments_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        tuned(None, **options)


def test_only_jit_functions_can_be_tuned():
    with pytest.raises(UsageError, match=r"plain is not a function with @triton\.jit"):

        @kernrec.triton.autotune(tuned_kernels.CONFIGS, ["n"])
        def plain(x: int) -> None:
            pass


def test_arguments_must_match_the_function(driver):
    x = Tensor("float32", N)
    with pytest.raises(UsageError, match="the value of parameter factor is missing"):
        tuned(None)[tuned_kernels.grid](x, x, N)
    with pytest.raises(UsageError, match="scale: 6 arguments were given; it has 5: x, y, n, factor, BLOCK"):
        tuned(None)[tuned_kernels.grid](x, x, N, 2.0, 64, 65)
    with pytest.raises(UsageError, match="scale: unknown parameter 'facto'; did you mean factor"):
        tuned(None)[tuned_kernels.grid](x, x, N, facto=2.0)
    with pytest.raises(UsageError, match=r"prune.* is for early_config_prune"):
        kernrec.triton.prune()([], {})


@pytest.mark.every(3)
def test_second_process_reads_tuned_times_from_the_database(driver, tmp_path):
    chosen = launch(tuned(Bench(0.5, 0.3), top_k=2))
    script = tmp_path / "second.py"
    script.write_text(
        "import json, kernrec.triton\n"
        "from tests.triton import tuned_kernels\n"
        "from tests.helpers.triton_kernels import Tensor, stand_in_driver\n"
        "function = kernrec.triton.autotune(tuned_kernels.CONFIGS, ['n'], top_k=2)(tuned_kernels.scale)\n"
        f"x = Tensor('float32', {N})\n"
        "with stand_in_driver() as driver:\n"
        f"    function[tuned_kernels.grid](x, x, {N}, 2.0)\n"
        "print(json.dumps([function.best_config.kwargs, len(driver.launched)]))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert json.loads(done.stdout) == [chosen, 1], done.stderr
