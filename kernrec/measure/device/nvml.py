"""Read the GPUs of this machine, their sensors and their settings from the driver, and remember changed limits.

Values that a GPU or driver does not report are None. Each GPU has a file with the limits that kernrec has set and the
limits to restore. A process that sets limits keeps the file locked. If an unlocked file has an entry, the process was
killed, and its changes must be undone.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from kernrec import paths
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.measure.device.interface import SensorReading
from kernrec.store.measurement import GpuSettings
from kernrec.util.files import lock_path


@dataclass(frozen=True)
class LimitsEntry:
    """Content of a GPU's limits file: the changes to undo."""

    power_limit_w: float | None
    """Power limit in watts to restore, or None if it was not changed."""
    sm_clock_hz: float | None
    """Clock in Hz to which kernrec has locked the GPU, or None."""


def limits_path(uuid: str) -> Path:
    """Return the path of a GPU's limits file, which may not exist."""
    return paths.state() / "limits" / f"{sha256(uuid.encode()).hexdigest()[:16]}.json"


def lock_limits(uuid: str) -> int | None:
    """Lock a GPU's limits file. Return its descriptor, or None if another process holds the lock. Raise `OSError` if
    the file cannot be opened."""
    path = limits_path(uuid)
    path.parent.mkdir(parents=True, exist_ok=True)
    return lock_path(path)


def write_limits(locked: int, entry: LimitsEntry | None) -> None:
    """Write an entry to the file that `lock_limits` has locked. None means that no limit is set any more."""
    os.ftruncate(locked, 0)
    os.lseek(locked, 0, os.SEEK_SET)
    if entry is not None:
        os.write(locked, json.dumps(asdict(entry)).encode())
    os.fsync(locked)


def read_limits(locked: int) -> LimitsEntry | None:
    """Read the limits file that `lock_limits` has locked. Return None if the file contains no limits."""
    os.lseek(locked, 0, os.SEEK_SET)
    return _entry(os.read(locked, 4096))


def present_limits(uuid: str) -> LimitsEntry | None:
    """Return the limits that any process of kernrec has set on a GPU, or None."""
    try:
        return _entry(limits_path(uuid).read_bytes())
    except OSError:
        return None


def _entry(content: bytes) -> LimitsEntry | None:
    try:
        return LimitsEntry(**json.loads(content)) if content else None
    except (ValueError, TypeError):
        return None  # A process that left an incomplete entry has set no limit.


class NoGPUError(KernrecError):
    """This machine has no NVIDIA GPU, or no driver or library to find one."""


@dataclass(frozen=True)
class LocalGpu:
    index: int
    uuid: str
    name: str
    others: int
    """Number of other processes that used the GPU when kernrec listed the GPUs."""

    @property
    def uuid_hash(self) -> str:
        """Hash of the UUID, which identifies the GPU in databases without revealing its UUID."""
        return sha256(f"kernrec {self.uuid}".encode()).hexdigest()[:16]


@cache
def library() -> Any:
    """Initialize and return the NVML module. Raise `NoGPUError` if it is missing."""
    try:
        import pynvml
    except ImportError:
        raise NoGPUError("measuring needs nvidia-ml-py: install it with `pip install '.[measure]'`") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoGPUError(f"no NVIDIA driver responds ({error}); --replay works without a GPU") from None
    return pynvml


def local_gpus() -> list[LocalGpu]:
    """Return the GPUs of this machine. Raise `NoGPUError` if there is no driver or no GPU."""
    nvml, listed = library(), []
    for index in range(nvml.nvmlDeviceGetCount()):
        sensed = NvmlSensors(nvml.nvmlDeviceGetHandleByIndex(index))
        listed.append(LocalGpu(index, sensed.uuid, sensed.name, sensed.others))
    if not listed:
        raise NoGPUError("the NVIDIA driver finds no GPU; --replay works without one")
    return listed


def visible_gpus() -> list[LocalGpu]:
    """Return the GPUs that `CUDA_VISIBLE_DEVICES` names, or all GPUs if it names none."""
    present, named = local_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [] if named is None else [name.strip() for name in named.split(",")]
    return [each for each in present if any(is_named(name, each) for name in names)] or present


def choose_gpu(wanted: str) -> LocalGpu:
    """Return the GPU with an index or a UUID. For `auto`, return the first visible GPU, preferably an unused one. Raise
    `UsageError` if there is no such GPU."""
    if wanted == "auto":
        allowed = visible_gpus()
        return next((each for each in allowed if not each.others), allowed[0])
    present = local_gpus()
    for each in present:
        if wanted in (str(each.index), each.uuid):
            return each
    listed = ", ".join(f"{each.index} ({each.name})" for each in present)
    raise UsageError(f"no GPU {wanted!r} in this machine; --gpu takes auto or one of {listed}")


def local_gpu(gpu: GPU) -> LocalGpu:
    """Return a GPU of the given model, preferably an unused one. Raise `NoGPUError` if this machine has none."""
    try:
        present = visible_gpus()
    except NoGPUError as error:
        reason = str(error).split(";")[0]
        raise NoGPUError(f"there is no GPU to measure on: {reason}; predictions need no GPU") from None
    matching = sorted(
        (each for each in present if find_gpu(each.name).name == gpu.name), key=lambda each: each.others > 0
    )
    if not matching:
        here = ", ".join(sorted({each.name for each in present}))
        raise NoGPUError(f"there is no {gpu.title} in this machine to measure on; it has {here}")
    return matching[0]


def is_named(name: str, gpu: LocalGpu) -> bool:
    """Return whether `name` (from `CUDA_VISIBLE_DEVICES`) is the index of a GPU or the beginning of its UUID."""
    return name == str(gpu.index) or (name != "" and gpu.uuid.startswith(name))


def gpu_of_slice(uuid: str) -> str:
    """Return the UUID of the GPU to which a MIG slice belongs. Raise `NoGPUError` if the slice does not exist."""
    nvml = library()
    try:
        handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError as error:
        raise NoGPUError(f"{uuid}: {error}") from None
    return NvmlSensors(handle).uuid


def sensors(uuid: str) -> "NvmlSensors":
    return NvmlSensors(library().nvmlDeviceGetHandleByUUID(uuid))


class NvmlSensors:
    """Sensors and settings of one GPU, read through NVML."""

    def __init__(self, handle: Any) -> None:
        self._nvml = library()
        self._handle = handle
        self.uuid = str(_text(self._nvml.nvmlDeviceGetUUID(handle)))
        self.name = str(_text(self._nvml.nvmlDeviceGetName(handle)))

    @property
    def others(self) -> int:
        """Number of other processes that use the GPU for computing or graphics."""
        pids = set()
        for kind in ("Compute", "Graphics"):
            pids |= {process.pid for process in self._query(f"nvmlDeviceGet{kind}RunningProcesses") or ()}
        return len(pids - {os.getpid()})

    @property
    def mig(self) -> bool | None:
        """Whether the GPU is divided into MIG slices. The power of a slice cannot be measured."""
        mode = self._query("nvmlDeviceGetMigMode")
        return None if mode is None else bool(mode[0])

    def energy_j(self) -> float | None:
        """Return the energy counter in joules, which starts when the driver is loaded."""
        return self._thousandth("nvmlDeviceGetTotalEnergyConsumption")

    def power_w(self) -> float | None:
        """Return the instantaneous power of the GPU in watts. If the GPU does not report it, return `mean_power_w`."""
        return self._field_power() if self._instant else self.mean_power_w()

    def mean_power_w(self) -> float | None:
        """Return the power of the board in watts. Since Ampere, NVML reports the mean over a second."""
        return self._thousandth("nvmlDeviceGetPowerUsage")

    def reasons(self) -> frozenset[str]:
        """Return the current clock event reasons such as `SwPowerCap` (nvml.h, `nvmlClocksEventReason*`)."""
        bits = self._query("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # Drivers before 535 have only the older function.
            bits = self._query("nvmlDeviceGetCurrentClocksThrottleReasons")
        return frozenset(name for bit, name in self._reasons.items() if int(bits or 0) & bit)

    def read(self, time_s: float, mean_power: bool = False) -> SensorReading:
        """Read all sensors, and return the values with the time stamp `time_s`. If `mean_power` is true, read
        `mean_power_w` instead of `power_w`."""
        degrees = self._query("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)
        return SensorReading(
            time_s=time_s,
            energy_j=self.energy_j(),
            power_w=self.mean_power_w() if mean_power else self.power_w(),
            sm_clock_hz=self._clock(self._nvml.NVML_CLOCK_SM),
            memory_clock_hz=self._clock(self._nvml.NVML_CLOCK_MEM),
            temperature_c=None if degrees is None else float(degrees),
            reasons=self.reasons(),
        )

    def settings(self) -> GpuSettings:
        """Read the power limit, locked clocks, ECC, MIG and persistence mode. Default or unknown values are None."""
        limit = self._query("nvmlDeviceGetPowerManagementLimit")
        usual = self._query("nvmlDeviceGetPowerManagementDefaultLimit")
        ecc = self._query("nvmlDeviceGetEccMode")
        persistence = self._query("nvmlDeviceGetPersistenceMode")
        # NVML does not report locked clocks, so read the entry that kernrec wrote when it locked them.
        locked = present_limits(self.uuid)
        return GpuSettings(
            power_limit_w=limit / 1e3 if limit and limit != usual else None,
            locked_sm_clock_hz=(locked and locked.sm_clock_hz) or self._set_clock(self._nvml.NVML_CLOCK_SM),
            locked_memory_clock_hz=self._set_clock(self._nvml.NVML_CLOCK_MEM),
            ecc=None if ecc is None else bool(ecc[0]),
            mig=self.mig,
            persistence=None if persistence is None else bool(persistence),
        )

    def versions(self) -> dict[str, str | None]:
        return {
            "vbios": _text(self._query("nvmlDeviceGetVbiosVersion")),
            "driver": _text(self._nvml.nvmlSystemGetDriverVersion()),
            "nvml": _text(self._nvml.nvmlSystemGetNVMLVersion()),
        }

    def why_no_energy(self) -> str | None:
        """Return why the energy of this GPU cannot be measured, or None if it can."""
        if self.mig:
            return "MIG is on, and power is measured only for the whole GPU"
        if self.energy_j() is None:
            return "this GPU has no energy counter (older than Volta)"
        return None

    @cached_property
    def _reasons(self) -> dict[int, str]:
        names = [name for name in dir(self._nvml) if name.startswith("nvmlClocksEventReason")]
        named = [name for name in names if not name.endswith(("All", "None"))]
        return {getattr(self._nvml, name): name.removeprefix("nvmlClocksEventReason") for name in named}

    @cached_property
    def _instant(self) -> bool:
        return self._field_power() is not None

    def _field_power(self) -> float | None:
        nvml = self._nvml
        fields = [(nvml.NVML_FI_DEV_POWER_INSTANT, getattr(nvml, "NVML_POWER_SCOPE_GPU", 0))]
        values = self._query("nvmlDeviceGetFieldValues", fields)
        # Also check the field's own return code, because the function succeeds even if it cannot read the field.
        if values is None or values[0].nvmlReturn != nvml.NVML_SUCCESS:
            return None
        return float(values[0].value.uiVal) / 1e3

    def _set_clock(self, kind: int) -> float | None:
        target = self._query("nvmlDeviceGetApplicationsClock", kind)
        usual = self._query("nvmlDeviceGetDefaultApplicationsClock", kind)
        return target * 1e6 if target and usual and target != usual else None

    def _query(self, function: str, *arguments: Any) -> Any:
        """Call an NVML function for this GPU. Return None if the function is not supported."""
        call = getattr(self._nvml, function, None)
        with suppress(self._nvml.NVMLError):
            return call and call(self._handle, *arguments)
        return None

    def _thousandth(self, function: str) -> float | None:
        value = self._query(function)
        return None if value is None else value / 1e3

    def _clock(self, kind: int) -> float | None:
        megahertz = self._query("nvmlDeviceGetClockInfo", kind)
        return None if megahertz is None else megahertz * 1e6


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
