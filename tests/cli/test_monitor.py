"""Test `kernrec monitor` on a stand-in for NVML, and on a recorded trace."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

NVML = """
import os
from pathlib import Path
from kernrec.measure import monitor
class Clock:
    # The clock advances 5 ms per reading, so that energy and time agree even if the process runs late.
    now = 0.0
    def monotonic(self):
        self.now += 0.005
        return self.now
clock = Clock()
clock.sleep = monitor.time.sleep
monitor.time = clock
NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
nvmlClocksEventReasonSwPowerCap = 4
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlDeviceGetCount(): return int(os.environ.get("GPUS", "1"))
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return b"Stand-in GPU %d" % handle
def nvmlDeviceGetUUID(handle): return f"GPU-{handle}{handle}{handle}{handle}-stand-in"
def nvmlDeviceGetHandleByUUID(uuid): return int(uuid[4])
def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle): return handle
def nvmlDeviceGetMigMode(handle): return [handle == 1, handle == 1]
def nvmlDeviceGetPowerUsage(handle):
    with Path(__file__).with_name("readings").open("a") as readings: readings.write(".")
    return 200_000
def nvmlDeviceGetTotalEnergyConsumption(handle):
    if "NO_COUNTER" in os.environ: raise NVMLError("not supported")
    return round(clock.now * 200_000)
def nvmlDeviceGetClockInfo(handle, kind): return 1500 if kind == NVML_CLOCK_SM else 9000
def nvmlDeviceGetTemperature(handle, kind): raise NVMLError("not supported")
def nvmlDeviceGetCurrentClocksEventReasons(handle): return 4
"""


@pytest.fixture
def nvml(tmp_path):
    """Return environment variables with which Python imports a stand-in for NVML."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "pynvml.py").write_text(NVML)
    return os.environ | {"PYTHONPATH": f"{tmp_path / 'lib'}{os.pathsep}{os.getcwd()}"}


def read_trace(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "kernrec", "monitor", *map(str, arguments)]


def run(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=env, timeout=60, check=False)


@pytest.mark.every(3)
def test_monitor_returns_the_commands_exit_status_and_output(nvml, tmp_path):
    readings = tmp_path / "lib" / "readings"
    script = (
        "import pathlib, time\n"
        f"while pathlib.Path({str(readings)!r}).stat().st_size < 12: time.sleep(0.01)\n"
        "print('done'); raise SystemExit(7)"
    )
    trace = tmp_path / "t.csv"
    done = run("--trace", trace, "--json", "--", sys.executable, "-c", script, env=nvml)
    assert done.returncode == 7
    assert done.stdout == "done\n"
    summary = json.loads(done.stderr)
    assert summary["mean_power_w"] == pytest.approx(200)
    assert summary["throttled"]["SwPowerCap"] == pytest.approx(1)
    assert summary["max_temperature_c"] is None
    samples = read_trace(trace)
    assert len(samples) == summary["samples"] >= 12
    times = [float(sample["time_s"]) for sample in samples]
    assert times[-1] - times[0] == pytest.approx(summary["duration_s"])
    assert float(samples[0]["sm_clock_hz"]) == 1.5e9


@pytest.mark.parametrize(("visible", "gpu", "note"), [
    ("1,0", 1, "only the first of the 2 GPUs"), ("GPU-0000", 0, ""), ("MIG-1-2", 1, "MIG is on"),
])  # fmt: skip
def test_first_visible_gpu_is_monitored(nvml, visible, gpu, note):
    done = run("--", "true", env=nvml | {"GPUS": "2", "CUDA_VISIBLE_DEVICES": visible})
    assert done.returncode == 0
    assert f"Stand-in GPU {gpu}, one sample" in done.stderr
    assert note in done.stderr


def test_program_that_does_not_exist_is_refused_in_one_line(nvml):
    done = run("--", "no-such-command", env=nvml)
    assert (done.returncode, done.stderr.count("\n")) == (127, 1)
    assert "no-such-command cannot be run: there is no such file" in done.stderr


def test_ctrl_c_ends_the_command_and_keeps_the_trace(nvml, tmp_path):
    trace = tmp_path / "t.csv"
    script = "import time; print('up', flush=True); time.sleep(30)"
    process = begun("--trace", trace, script, env=nvml)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode in (1, 130)  # Python's exit status after an interrupt, or the shell's for SIGINT
    assert len(read_trace(trace)) >= 2


def begun(*arguments: object, env: dict[str, str]) -> subprocess.Popen[str]:
    """Start a monitor of a Python program, and return the monitor once the program has printed "up"."""
    *options, code = arguments
    process = subprocess.Popen(
        command(*options, "--", sys.executable, "-c", code),
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_monitor_forwards_termination_signals(nvml, tmp_path):
    trace = tmp_path / "t.csv"
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print('up', flush=True); signal.pause()"
    process = begun("--trace", trace, code, env=nvml)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 5
    assert "200 W" in errors
    assert len(read_trace(trace)) >= 2


def test_unwritable_trace_is_reported_before_the_command_runs(nvml, tmp_path):
    done = run("--trace", tmp_path / "none" / "t.csv", "--", "touch", tmp_path / "touched", env=nvml)
    assert done.returncode == 2
    assert "cannot be written: there is no such folder" in done.stderr
    assert not (tmp_path / "touched").exists()
    assert run("--trace", tmp_path / "t.csv", "--", "no-such-command", env=nvml).returncode == 127
    assert not list(tmp_path.glob("*.csv*"))
