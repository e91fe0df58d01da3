"""Test that limits the user allowed are set on the GPU and restored at any exit, with real processes."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernrec.errors import KernrecError, UsageError
from kernrec.measure import collect
from kernrec.measure.device import gpu_limits, nvml
from kernrec.measure.device.gpu_limits import check_limits, restore_abandoned
from kernrec.measure.device.nvml import (
    LimitsEntry,
    LocalGpu,
    limits_path,
    lock_limits,
    present_limits,
    read_limits,
    write_limits,
)
from kernrec.measure.request import CollectRequest, CollectResult
from kernrec.recommender.estimate.operating_point import OperatingPoint
from tests.helpers.command import run_here
from tests.helpers.paths import ROOT

CARD = LocalGpu(0, "GPU-emulated", "NVIDIA H200", 0)
STAND_IN = ROOT / "tests" / "measure" / "emulated" / "nvml"
AS_IT_WAS = {"limit": 650_000, "locked": None, "administrator": True}
SET = {"limit": 400_000, "locked": [1200, 1200], "administrator": True}
GUARD_ON_WINDOWS = """
import os, types
del os.pread, os.pwrite
from kernrec.measure.device import gpu_limits
gpu_limits.os = types.SimpleNamespace(name="nt", getppid=os.getpid, read=os.read)
gpu_limits.main()
"""
"""Source of a guard as on Windows, where `os` lacks functions and a virtual environment hides the parent process."""
HOLDER = """
import sys, time
from kernrec.errors import KernrecError
from kernrec.measure.device.gpu_limits import limits_set
from kernrec.measure.device.nvml import LocalGpu
from kernrec.recommender.estimate.operating_point import OperatingPoint
try:
    with limits_set(LocalGpu(0, "GPU-emulated", "NVIDIA H200", 0), OperatingPoint(400.0, 1.2e9)):
        print("set", flush=True)
        if sys.argv[1] == "fail":
            raise RuntimeError
        while sys.argv[1] == "wait":
            time.sleep(0.05)
except KernrecError as error:
    print(error, flush=True)
"""
"""Source of a program that sets limits, and then ends, fails or waits to be killed."""

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")


class EmulatedCard:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "card.json"
        self.become(AS_IT_WAS)

    def become(self, state: dict[str, Any]) -> None:
        self._file.write_text(json.dumps(state))

    @property
    def state(self) -> dict[str, Any]:
        return json.loads(self._file.read_text())

    def hold(self, how: str) -> "subprocess.Popen[str]":
        """Start a program that sets limits and then ends, fails or waits, as `how` names."""
        program = subprocess.Popen(
            [sys.executable, "-c", HOLDER, how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert program.stdout is not None
        self.reply = program.stdout.readline().strip()
        return program


@pytest.fixture
def card(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("EMULATED_CARD", str(tmp_path / "card.json"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(STAND_IN), str(ROOT))))
    spec = importlib.util.spec_from_file_location("pynvml", STAND_IN / "pynvml.py")
    assert spec is not None
    assert spec.loader is not None
    pynvml = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)  # replace NVML only in this test
    spec.loader.exec_module(pynvml)
    for module in (gpu_limits, nvml):
        monkeypatch.setattr(module, "library", lambda: pynvml)
    return EmulatedCard(tmp_path)


def eventually(holds: Callable[[], bool]) -> bool:
    """Return whether the condition becomes true within a minute, which allows for a busy machine."""
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return False


def test_gpu_limits_are_set_and_restored_after_a_failure(card):
    program = card.hold("fail")
    assert card.reply == "set"
    assert program.wait(60) == 1
    assert card.state == AS_IT_WAS
    assert present_limits(CARD.uuid) is None


def test_gpu_limits_are_restored_after_the_program_is_killed(card):
    program = card.hold("wait")
    assert card.state == SET
    assert present_limits(CARD.uuid) == LimitsEntry(650.0, 1.2e9)
    program.kill()
    program.wait(60)
    assert eventually(lambda: card.state == AS_IT_WAS)


def test_guard_process_restores_gpu_limits_on_windows_when_its_input_closes(card):
    wanted = {"uuid": CARD.uuid, "parent": os.getpid(), "power_limit_w": 400.0, "clock_hz": 1.2e9}
    command = [sys.executable, "-c", GUARD_ON_WINDOWS, json.dumps(wanted)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guard:
        assert guard.stdin is not None
        assert guard.stdout is not None
        assert json.loads(guard.stdout.readline()) == {"set": True}
        with pytest.raises(subprocess.TimeoutExpired):
            guard.wait(3 * gpu_limits._POLL_S)
        assert card.state == SET
        guard.stdin.close()
        assert guard.wait(60) == 0
    assert card.state == AS_IT_WAS


def test_next_start_restores_gpu_limits_if_the_guard_process_was_killed(card):
    program = card.hold("wait")
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(program.pid)], capture_output=True, text=True, check=True
    )
    for pid in map(int, children.stdout.split()):
        os.kill(pid, signal.SIGKILL)
    program.kill()
    program.wait(60)
    assert card.state == SET
    assert eventually(lambda: _restored(card))
    assert present_limits(CARD.uuid) is None


def _restored(card: EmulatedCard) -> bool:
    restore_abandoned(CARD)
    return card.state == AS_IT_WAS


def test_gpu_limits_set_by_a_running_process_are_not_changed(card):
    locked = lock_limits(CARD.uuid)
    assert locked is not None
    write_limits(locked, LimitsEntry(650.0, None))
    card.become(SET)
    restore_abandoned(CARD)
    assert card.state == SET
    card.hold("end").wait(60)
    assert "another run of kernrec has set the limits of this GPU" in card.reply
    os.close(locked)
    restore_abandoned(CARD)
    assert card.state["limit"] == AS_IT_WAS["limit"]


def test_gpu_limits_stay_readable_after_their_file_is_deleted(card):
    locked = lock_limits(CARD.uuid)
    assert locked is not None
    write_limits(locked, LimitsEntry(650.0, 1.2e9))
    limits_path(CARD.uuid).unlink()
    assert read_limits(locked) == LimitsEntry(650.0, 1.2e9)
    os.close(locked)


def test_missing_permission_is_reported_in_one_line_and_changes_nothing(card):
    card.become(AS_IT_WAS | {"administrator": False})
    card.hold("end").wait(60)
    assert card.reply.startswith("NVIDIA H200: only an administrator can set limits of a GPU")
    assert card.state["limit"] == AS_IT_WAS["limit"]


def test_gpu_limits_that_cannot_be_restored_are_reported_and_kept(card):
    locked = lock_limits(CARD.uuid)
    assert locked is not None
    write_limits(locked, LimitsEntry(650.0, 1.2e9))
    os.close(locked)
    card.become(SET | {"administrator": False})
    with pytest.raises(KernrecError, match=r"still has the limits of a run that was killed.*nvidia-smi"):
        restore_abandoned(CARD)
    assert present_limits(CARD.uuid) == LimitsEntry(650.0, 1.2e9)


@pytest.mark.parametrize(
    ("point", "line"),
    [
        (OperatingPoint(900.0), "--set-power-limit 900W: NVIDIA H200 accepts 200 to 700 W; the nearest is 700W"),
        (
            OperatingPoint(None, 1.001e9),
            "--lock-clocks 1001MHz: NVIDIA H200 has 110 clocks from 345 to 1980 MHz; the nearest is 1005MHz",
        ),
    ],
)
def test_rejected_gpu_limit_is_reported_in_one_line(card, point, line):
    check_limits(CARD, [OperatingPoint(200.0, 1.2e9)])
    with pytest.raises(UsageError) as refused:
        check_limits(CARD, [OperatingPoint(400.0), point])
    assert str(refused.value) == line
    assert card.state == AS_IT_WAS


def test_truncated_limits_journal_restores_nothing(card):
    limits_path(CARD.uuid).parent.mkdir(parents=True)
    limits_path(CARD.uuid).write_text('{"power_limit_w": 65')
    assert present_limits(CARD.uuid) is None
    restore_abandoned(CARD)
    assert card.state == AS_IT_WAS


@pytest.mark.parametrize("strategy", ["all", "refine"])
def test_collect_measures_at_each_power_limit_and_restores_the_gpu(card, monkeypatch, tmp_path, strategy):
    seen = []

    def measure(request: CollectRequest, *_: object) -> CollectResult:
        seen.append((request.gpu, request.point.power_limit_w, card.state["limit"], card.state["locked"]))
        return CollectResult()

    monkeypatch.setattr(nvml, "local_gpus", lambda: [CARD])
    monkeypatch.setattr(collect, "collect", measure)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    wanted = ("collect", "--op", "mm", "--shape", "m=64,n=64,k=64", "--lock-clocks", "1200MHz", "--strategy", strategy)
    done = run_here(*wanted, "--set-power-limit", "300W,400W", home=tmp_path)
    assert seen == [(CARD.uuid, limit, 1000 * limit, [1200, 1200]) for limit in (300, 400)]
    assert card.state == AS_IT_WAS
    assert "power limit 300 W, clock locked to 1200 MHz" in done.stdout
    refused = run_here(*wanted, "--set-power-limit", "300W,900W", home=tmp_path)
    assert (refused.returncode, len(refused.stderr.splitlines()), len(seen)) == (2, 1, 2)
