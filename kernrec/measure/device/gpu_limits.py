"""Set a GPU's power limit and locked core clock temporarily, at the user's request.

A separate process, the guard, sets and restores the limits, so that the GPU does not stay limited if this process is
killed:

    python -m kernrec.measure.device.gpu_limits '{"uuid": ..., "parent": ..., "power_limit_w": ..., "clock_hz": ...}'

The guard writes the present limits to disk (`nvml.write_limits`), sets the new limits, and prints `{"set": true}`. When
its standard input is closed, its parent ends or a signal asks it to end, the guard restores the earlier limits. If the
guard cannot set the limits, it prints `{"refused": reason}` and ends. If the guard is killed, too, the next start of
kernrec restores the limits.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from kernrec.errors import KernrecError, UsageError
from kernrec.measure.device.nvml import (
    LimitsEntry,
    LocalGpu,
    library,
    lock_limits,
    present_limits,
    read_limits,
    write_limits,
)
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.util.process import module_command, module_environment, own_group

_POLL_S = 0.2
"""Seconds between checks that the parent process is alive. Standard input may stay open after the parent's end."""


def main() -> int:
    """Run the guard: set the limits, wait until the parent ends, and restore the limits."""
    wanted = json.loads(sys.argv[1])
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        locked = lock_limits(wanted["uuid"])
    except OSError as error:
        return _refuse(f"the present limits cannot be saved: {error}")
    if locked is None:
        return _refuse("another run of kernrec has set the limits of this GPU; wait until it ends")
    restore(wanted["uuid"], locked)  # A killed run may not have restored the limits.
    if reason := _set(wanted, locked):
        return _refuse(reason)
    print(json.dumps({"set": True}), flush=True)
    threading.Thread(target=_wait_for_end_of_input, args=(ended,), daemon=True).start()
    while not ended.wait(_POLL_S):
        # On POSIX, a process gets another parent when its parent ends. On Windows, the parent may be the launcher of a
        # virtual environment, so rely only on standard input, which closes when kernrec ends.
        if os.name != "nt" and os.getppid() != wanted["parent"]:
            break
    restore(wanted["uuid"], locked)
    return 0


def _wait_for_end_of_input(ended: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    ended.set()


def _refuse(reason: str) -> int:
    print(json.dumps({"refused": reason}), flush=True)
    return 1


def _set(wanted: dict[str, Any], locked: int) -> str | None:
    """Set the wanted limits. If the driver refuses a limit, restore the earlier limits and return the reason."""
    nvml = library()
    handle = nvml.nvmlDeviceGetHandleByUUID(wanted["uuid"])
    limit_w, clock_hz = wanted["power_limit_w"], wanted["clock_hz"]
    changed = False
    try:
        before_w = nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3 if limit_w is not None else None
        write_limits(locked, LimitsEntry(before_w, clock_hz))
        if limit_w is not None:
            nvml.nvmlDeviceSetPowerManagementLimit(handle, round(limit_w * 1e3))
            changed = True
        if clock_hz is not None:
            megahertz = round(clock_hz / 1e6)
            nvml.nvmlDeviceSetGpuLockedClocks(handle, megahertz, megahertz)
    except nvml.NVMLError as error:
        if changed:
            restore(wanted["uuid"], locked)
        else:
            write_limits(locked, None)
        if isinstance(error, nvml.NVMLError_NoPermission):
            return "only an administrator can set limits of a GPU; omit the option to measure at the present limits"
        return f"the driver refuses to set them: {error}"
    return None


def restore(uuid: str, descriptor: int) -> bool:
    """Restore a GPU's limits from a file, and clear the file. Return False if the driver refuses."""
    entry = read_limits(descriptor)
    if entry is None:
        return True
    nvml = library()
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    calls: list[tuple[Any, ...]] = []
    if entry.power_limit_w is not None:
        calls.append((nvml.nvmlDeviceSetPowerManagementLimit, handle, round(entry.power_limit_w * 1e3)))
    if entry.sm_clock_hz is not None:
        calls.append((nvml.nvmlDeviceResetGpuLockedClocks, handle))
    refused = False
    for call, *arguments in calls:
        try:
            call(*arguments)
        except nvml.NVMLError:
            refused = True
    if not refused:
        write_limits(descriptor, None)
    return not refused


_RESTORED_S = 60.0
"""Maximum seconds to wait until the guard has restored a GPU's limits."""


def check_limits(gpu: LocalGpu, points: Iterable[OperatingPoint]) -> None:
    """Raise `UsageError` if the GPU does not accept the power limit or the clock of an operating point."""
    nvml = library()
    handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    try:
        for point in points:
            if (watts := point.power_limit_w) is not None:
                low, high = (limit / 1e3 for limit in nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle))
                if not low <= watts <= high:
                    nearest = min(max(watts, low), high)
                    raise UsageError(
                        f"--set-power-limit {watts:g}W: {gpu.name} accepts {low:g} to {high:g} W; the nearest is"
                        f" {nearest:g}W"
                    )
            if point.clock_hz is not None:
                memory = max(nvml.nvmlDeviceGetSupportedMemoryClocks(handle))
                clocks = nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory)
                megahertz = point.clock_hz / 1e6
                nearest = min(clocks, key=lambda clock: abs(clock - megahertz))
                if round(megahertz) not in clocks:
                    raise UsageError(
                        f"--lock-clocks {megahertz:g}MHz: {gpu.name} has {len(clocks)} clocks from {min(clocks)} to"
                        f" {max(clocks)} MHz; the nearest is {nearest}MHz"
                    )
    except nvml.NVMLError as error:
        raise UsageError(f"the limits of {gpu.name} cannot be set: {error}") from None


@contextmanager
def limits_set(gpu: LocalGpu, point: OperatingPoint) -> Iterator[None]:
    if point == DEFAULT_POINT:
        yield
        return
    wanted = {"uuid": gpu.uuid, "parent": os.getpid(), **point._asdict()}
    guard = subprocess.Popen(
        module_command("kernrec.measure.device.gpu_limits", json.dumps(wanted)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=module_environment(),
        **own_group(),
    )
    assert guard.stdin is not None
    assert guard.stdout is not None
    with guard.stdin, guard.stdout:
        try:
            answer = json.loads(guard.stdout.readline() or b"{}")
            if not answer.get("set"):
                raise UsageError(f"{gpu.name}: {answer.get('refused', 'its limits could not be set')}")
            yield
        finally:
            guard.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                guard.wait(_RESTORED_S)
            restore_abandoned(gpu)  # If the guard was killed, restore the limits here.


def restore_abandoned(gpu: LocalGpu) -> None:
    """Restore a GPU's limits if the run that set them was killed together with its guard. Raise `KernrecError` if the
    driver refuses."""
    # If the file is locked, the run that set the limits is still alive.
    if present_limits(gpu.uuid) is None or (locked := lock_limits(gpu.uuid)) is None:
        return
    try:
        if not restore(gpu.uuid, locked):
            raise KernrecError(
                f"{gpu.name} still has the limits of a run that was killed, and only an administrator can restore"
                " them: run `nvidia-smi -rgc` and set the power limit with `nvidia-smi -pl`"
            )
    finally:
        os.close(locked)


if __name__ == "__main__":
    sys.exit(main())
