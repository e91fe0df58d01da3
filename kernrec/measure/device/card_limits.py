"""Set a GPU's power limit and locked core clock temporarily, at the user's request.

    check_limits(card, points)            raises an error for values that the GPU does not accept
    with limits_set(card, point): ...     sets them, and restores them on every way out
    restore_abandoned(card)               restores the settings after killed runs

kernrec does this only if the user passes the options. A separate process sets and restores the limits (`limits_guard`),
so that the GPU does not stay limited if this process is killed.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from kernrec.errors import KernrecError, UsageError
from kernrec.measure.device.limits_guard import restore
from kernrec.measure.device.limits_journal import LimitsJournal, present_entry
from kernrec.measure.device.nvml import Card, library
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.util.process import module_command, module_environment, own_group

_RESTORED_S = 60.0
"""Seconds to wait for the guard to restore a GPU."""


def check_limits(card: Card, points: Iterable[OperatingPoint]) -> None:
    """Raise `UsageError` for a power limit or a clock that the GPU does not accept."""
    nvml = library()
    handle = nvml.nvmlDeviceGetHandleByUUID(card.uuid)
    try:
        for point in points:
            if (watts := point.power_limit_w) is not None:
                low, high = (limit / 1e3 for limit in nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle))
                if not low <= watts <= high:
                    nearest = min(max(watts, low), high)
                    raise UsageError(
                        f"--set-power-limit {watts:g}W: {card.name} accepts {low:g} to {high:g} W; the nearest is"
                        f" {nearest:g}W"
                    )
            if point.clock_hz is not None:
                clocks = _clocks_mhz(card)
                megahertz = point.clock_hz / 1e6
                nearest = min(clocks, key=lambda clock: abs(clock - megahertz))
                if round(megahertz) not in clocks:
                    raise UsageError(
                        f"--lock-clocks {megahertz:g}MHz: {card.name} has {len(clocks)} clocks from {min(clocks)} to"
                        f" {max(clocks)} MHz; the nearest is {nearest}MHz"
                    )
    except nvml.NVMLError as error:
        raise UsageError(f"{card.name} does not let its limits be set: {error}") from None


def _clocks_mhz(card: Card) -> list[int]:
    nvml = library()
    handle = nvml.nvmlDeviceGetHandleByUUID(card.uuid)
    memory = max(nvml.nvmlDeviceGetSupportedMemoryClocks(handle))
    return list(nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory))


@contextmanager
def limits_set(card: Card, point: OperatingPoint) -> Iterator[None]:
    """Set the GPU's limits during a `with` block.

    Raises:
        UsageError: The limits cannot be set.
    """
    if point == DEFAULT_POINT:
        yield
        return
    wanted = {"uuid": card.uuid, "parent": os.getpid(), **point._asdict()}
    guard = subprocess.Popen(
        module_command("kernrec.measure.device.limits_guard", json.dumps(wanted)),
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
                raise UsageError(f"{card.name}: {answer.get('refused', 'its limits could not be set')}")
            yield
        finally:
            guard.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                guard.wait(_RESTORED_S)
            restore_abandoned(card)  # This is needed only if the guard was killed.


def restore_abandoned(card: Card) -> None:
    """Restore a GPU's settings after a run and its guard were killed.

    Raises:
        KernrecError: The GPU is limited, and the driver refuses to restore it.
    """
    if present_entry(card.uuid) is None:
        return
    try:
        journal = LimitsJournal(card.uuid)
    except BlockingIOError:
        return  # The run of this entry is alive.
    try:
        if not restore(card.uuid, journal):
            raise KernrecError(
                f"{card.name} still has the limits of a run that was killed, and only an administrator can restore"
                " them: run `nvidia-smi -rgc` and set the power limit with `nvidia-smi -pl`"
            )
    finally:
        journal.close()
