"""Identify the GPU that Triton uses, and measure the energy of launches with NVML."""

import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.measure.device.nvml import LocalGpu, NoGPUError, local_gpus, sensors
from kernrec.measure.protocol.energy_counter import LEAST_TICKS, power_from_ticks
from kernrec.store.measurement import EnergyReport

WINDOW_S = 1.0
"""Minimum duration of an energy measurement in seconds."""
LONGEST_WINDOW_S = 5.0
SETTLE_S = 0.3
"""Seconds of launches before an energy measurement, so that clocks and power settle."""
BATCH_S = 0.02
"""Seconds between two reads of the energy counter."""


@dataclass(frozen=True)
class Machine:
    """GPU to rank configs for, and whether this process can measure on it."""

    gpu: GPU
    local: LocalGpu | None = None
    """GPU of this machine as NVML reports it, or None."""
    present: bool = False
    """Whether this process can measure, because Triton's driver finds a GPU."""

    @property
    def name(self) -> str | None:
        """Return the driver's name of the GPU, or None if this machine has no GPU."""
        return self.local.name if self.local else None

    @property
    def uuid_hash(self) -> str | None:
        """Return a hash that identifies the GPU but hides its UUID. Return None if this machine has no GPU."""
        return self.local.uuid_hash if self.local else None

    @cached_property
    def _sensors(self) -> Any:
        return sensors(self.local.uuid) if self.local else None

    def settings(self) -> dict[str, Any]:
        """Return power limit, locked clocks, MIG mode and driver versions as `MeasuredDevice` fields."""
        if self._sensors is None:
            return {}
        now = self._sensors.settings()
        return {
            "power_limit_w": now.power_limit_w,
            "locked_sm_clock_hz": now.sm_clock_hz,
            "locked_memory_clock_hz": now.memory_clock_hz,
            "mig": now.mig,
            **{name: self._sensors.versions().get(name) for name in ("driver", "vbios", "nvml")},
        }

    def why_no_energy(self) -> str | None:
        """Return why energy cannot be measured on this GPU, or None if it can."""
        return "NVML does not know the GPU" if self._sensors is None else self._sensors.why_no_energy()

    def energy(self, launch: Callable[[], object], synchronize: Callable[[], object], latency_s: float) -> EnergyReport:
        """Measure a launch's energy under sustained load.

        The energy is the mean power, from NVML's energy counter, times the latency. Return an empty report if NVML did
        not update the counter often enough.

        Args:
            launch: Function that submits one launch.
            synchronize: Function that waits until all launches are done.
            latency_s: Approximate latency of a launch in seconds.
        """
        batch = max(1, math.ceil(BATCH_S / latency_s))
        times: list[float] = []
        joules: list[float] = []

        def run_batch() -> None:
            for _ in range(batch):
                launch()
            synchronize()
            times.append(time.monotonic())
            joules.append(self._sensors.energy_j() or 0.0)

        begin = time.monotonic()
        while not times or times[-1] - begin < SETTLE_S:
            run_batch()
        times, joules = times[-1:], joules[-1:]
        start, slope = times[0], None
        while slope is None and times[-1] - start < LONGEST_WINDOW_S:
            run_batch()
            if times[-1] - start >= WINDOW_S:
                slope = power_from_ticks(times, joules, start, times[-1])
        window_s = times[-1] - start
        launch_s = window_s / (batch * (len(times) - 1))
        if slope is None:
            return EnergyReport()
        return EnergyReport(
            sustained_latency_s=launch_s,
            energy_j=slope.power_w * launch_s,
            energy_low_j=slope.low_w * launch_s,
            energy_high_j=slope.high_w * launch_s,
            power_w=slope.power_w,
            energy_method=f"NVML energy counter, at least {LEAST_TICKS} updates",
            energy_ticks=slope.ticks,
            energy_tick_s=slope.period_s,
            energy_window_s=window_s,
        )


def this_machine(wanted: str | None, present: bool) -> Machine:
    """Return the GPU to rank configs for.

    The GPU's name comes from `wanted`, or from the environment variable KERNREC_GPU, or from the driver, in this order.

    Args:
        wanted: Common name of the GPU, or None.
        present: Whether Triton's driver has a GPU.

    Raises:
        UsageError: The name is unknown, or this process runs on another GPU than the named one.
        KernrecError: There is no GPU and no name.
    """
    local = _local() if present else None
    name = wanted or os.environ.get("KERNREC_GPU")
    if name is None:
        if local is None:
            raise KernrecError("there is no GPU here: name one with gpu= or KERNREC_GPU to rank configs for it")
        return Machine(find_gpu(local.name), local, present)
    gpu = find_gpu(name)
    if local is not None and find_gpu(local.name) != gpu:
        raise UsageError(f"the GPU {name!r:.40} was named, but this process runs on {local.name}: name that, or no GPU")
    return Machine(gpu, local, present)


def _local() -> LocalGpu | None:
    """Return torch's current GPU, or the first visible GPU if torch is not used. Return None if NVML lacks the GPU."""
    torch = sys.modules.get("torch")
    name = index = None
    if torch is not None and torch.cuda.is_available():
        index = torch.cuda.current_device()
        name = torch.cuda.get_device_name(index)
        uuid = str(getattr(torch.cuda.get_device_properties(index), "uuid", ""))
    try:
        present = local_gpus()
    except NoGPUError:
        return LocalGpu(index or 0, f"GPU-{uuid}", name, 0) if name else None
    if name is not None:
        return next((local for local in present if uuid and uuid in local.uuid), None) or next(
            (local for local in present if local.name == name), None
        )
    return present[0]
