"""Set a GPU's limits, and restore them once the parent process has ended for any reason.

    python -m kernrec.measure.device.limits_guard '{"uuid": ..., "parent": ..., "power_limit_w": ..., "clock_hz": ...}'

The process prints one JSON line: `{"set": true}`, or `{"refused": reason}` before it ends. Then it waits until its
standard input
is closed, its parent has ended or a signal asks it to end. The earlier limits are on disk before any limit is set
(`limits_journal`), so the next start of kernrec restores them even if this process is killed, too.
"""

import json
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from kernrec.measure.device.limits_journal import LimitsEntry, LimitsJournal
from kernrec.measure.device.nvml import library
from kernrec.util.process import is_alive

_POLL_S = 0.2
"""Seconds between two checks of the parent, because a process that the parent forked may hold the pipe open."""


def main() -> int:
    """Set the limits, wait for the parent's end, and restore the limits."""
    wanted = json.loads(sys.argv[1])
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        journal = LimitsJournal(wanted["uuid"])
    except BlockingIOError:
        return _refuse("another run of kernrec has set the limits of this GPU; wait until it ends")
    except OSError as error:
        return _refuse(f"the present limits cannot be saved: {error}")
    restore(wanted["uuid"], journal)  # A killed run left this entry.
    if reason := _set(wanted, journal):
        return _refuse(reason)
    print(json.dumps({"set": True}), flush=True)
    threading.Thread(target=_wait_for_end_of_input, args=(ended,), daemon=True).start()
    while not ended.wait(_POLL_S):
        if os.getppid() != wanted["parent"] or not is_alive(wanted["parent"]):
            break
    restore(wanted["uuid"], journal)
    return 0


def _wait_for_end_of_input(ended: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    ended.set()


def _refuse(reason: str) -> int:
    print(json.dumps({"refused": reason}), flush=True)
    return 1


def _set(wanted: dict[str, Any], journal: LimitsJournal) -> str | None:
    """Set the wanted limits; on failure, change nothing and return the reason."""
    nvml = library()
    handle = nvml.nvmlDeviceGetHandleByUUID(wanted["uuid"])
    limit_w, clock_hz = wanted["power_limit_w"], wanted["clock_hz"]
    changed = False
    try:
        before_w = nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3 if limit_w is not None else None
        journal.write(LimitsEntry(before_w, clock_hz))
        if limit_w is not None:
            nvml.nvmlDeviceSetPowerManagementLimit(handle, round(limit_w * 1e3))
            changed = True
        if clock_hz is not None:
            megahertz = round(clock_hz / 1e6)
            nvml.nvmlDeviceSetGpuLockedClocks(handle, megahertz, megahertz)
    except nvml.NVMLError as error:
        if changed:
            restore(wanted["uuid"], journal)
        else:
            journal.write(None)
        if isinstance(error, nvml.NVMLError_NoPermission):
            return "only an administrator can set limits of a GPU; omit the option to measure at the present limits"
        return f"the driver refuses to set them: {error}"
    return None


def restore(uuid: str, journal: LimitsJournal) -> bool:
    """Restore the limits of an entry, and clear it; if the driver refuses, keep the entry and return False."""
    entry = journal.read()
    if entry is None:
        return True
    nvml = library()
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    restored = True
    try:
        if entry.power_limit_w is not None:
            nvml.nvmlDeviceSetPowerManagementLimit(handle, round(entry.power_limit_w * 1e3))
    except nvml.NVMLError:
        restored = False
    try:
        if entry.sm_clock_hz is not None:
            nvml.nvmlDeviceResetGpuLockedClocks(handle)
    except nvml.NVMLError:
        restored = False
    if restored:
        journal.write(None)
    return restored


if __name__ == "__main__":
    sys.exit(main())
