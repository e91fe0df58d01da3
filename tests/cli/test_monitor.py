"""`kernrec monitor` as people run it: on a library that stands in for NVML where there is no GPU, and on a trace."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernrec.measure.monitor import reason_names
from kernrec.measure.trace import Sample, read_trace, write_trace

NVML = """
import time
NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return b"Stand-in GPU"
def nvmlDeviceGetPowerUsage(handle): return 200_000
def nvmlDeviceGetTotalEnergyConsumption(handle): return int(time.monotonic() * 200_000)
def nvmlDeviceGetClockInfo(handle, kind): return 1500 if kind == NVML_CLOCK_SM else 9000
def nvmlDeviceGetTemperature(handle, kind): raise NVMLError("not supported")
def nvmlDeviceGetCurrentClocksEventReasons(handle): return 4
"""


@pytest.fixture
def nvml(tmp_path: Path) -> dict[str, str]:
    """An environment in which Python finds a stand-in for NVML."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "pynvml.py").write_text(NVML)
    return os.environ | {"PYTHONPATH": f"{tmp_path / 'lib'}{os.pathsep}{os.getcwd()}"}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "kernrec", "monitor", *map(str, arguments)]


def run(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=env, timeout=60, check=False)


def test_the_exit_status_and_standard_output_are_the_commands(nvml: dict[str, str], tmp_path: Path) -> None:
    script = "import time; time.sleep(0.3); print('done'); raise SystemExit(7)"
    trace = tmp_path / "t.csv"
    done = run(
        "--period", "20ms", "--calls", "10", "--trace", trace, "--json", "--", sys.executable, "-c", script, env=nvml
    )
    assert done.returncode == 7
    assert done.stdout == "done\n"
    summary = json.loads(done.stderr)
    assert summary["duration_s"] > 0.3
    assert summary["mean_power_w"] == pytest.approx(200, rel=0.05)
    assert summary["joules_per_call"] == pytest.approx(20 * summary["duration_s"], rel=0.05)
    assert summary["throttled"]["power cap"] == pytest.approx(1)
    assert summary["max_temperature_c"] is None
    samples = read_trace(trace)
    assert len(samples) == summary["samples"] >= 10
    assert samples[0].sm_clock_hz == 1.5e9


def test_ctrl_c_ends_the_command_and_keeps_the_trace(nvml: dict[str, str], tmp_path: Path) -> None:
    trace = tmp_path / "t.parquet"
    script = "import time; print('up', flush=True); time.sleep(30)"
    process = subprocess.Popen(
        command("--period", "20ms", "--trace", trace, "--", sys.executable, "-c", script),
        env=nvml,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode in (1, 130)  # Python's own on an interrupt, or the signal's
    assert len(read_trace(trace)) >= 2


def test_a_process_is_watched_until_it_ends(nvml: dict[str, str]) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])
    monitor = subprocess.Popen(command("--pid", other.pid, "--json"), env=nvml, stdout=subprocess.PIPE, text=True)
    other.wait()
    said, _ = monitor.communicate(timeout=20)
    assert monitor.returncode == 0
    assert json.loads(said)["samples"] >= 2


def test_a_trace_is_shown_without_a_gpu(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    write_trace(trace, [Sample(i / 10, 100.0 + i, None, 2e9, 1e9, 50.0, "power cap" * (i > 4)) for i in range(100)])
    done = run("--replay", trace, "--calls", "99")
    assert done.returncode == 0
    assert "9.9 s, 100 samples" in done.stdout
    assert "integrated from power samples" in done.stdout
    assert "power cap 95 %" in done.stdout
    assert done.stdout.count("power cap") >= 10


@pytest.mark.parametrize(
    ("arguments", "says", "status"),
    [
        ([], "give one of", 2),
        (["--replay", "missing.csv"], "missing.csv cannot be read", 2),
        (["--replay", "a.csv", "--pid", "1"], "give one of", 2),
        (["--replay", "a.csv", "--trace", "t.json"], ".csv or .parquet", 2),
        (["--replay", "a.csv", "--period", "3"], "100ms", 2),
        (["--replay", "a.csv", "--calls", "0"], "at least 1", 2),
        (["--pid", "4194999"], "no process 4194999", 2),
        (["--device", "3", "--", "true"], "this machine has 1", 2),
        (["--", "no-such-command"], "cannot be run", 127),
    ],
)
def test_misuse_gets_one_line(nvml: dict[str, str], arguments: list[str], says: str, status: int) -> None:
    done = run(*arguments, env=nvml)
    assert done.returncode == status
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_reasons_have_names() -> None:
    assert reason_names(0x04 | 0x40) == "power cap|hardware thermal"
    assert reason_names(0) == ""
