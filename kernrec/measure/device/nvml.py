"""What the driver tells of a card: which there are, their sensors, their settings. Nothing here changes anything.

Whatever a card or driver does not know is None; only the lack of any card is an error.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache as once
from hashlib import sha256
from types import ModuleType
from typing import Any
from uuid import UUID

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.measure.device.interface import CardSettings


class NoGPUError(KernrecError):
    """There is no NVIDIA GPU here, or nothing through which to ask for it."""


@dataclass(frozen=True)
class Card:
    """A GPU of this machine. index: as `nvidia-smi` counts; others: processes that use it."""

    index: int
    uuid: str
    name: str
    others: int

    @property
    def uuid_hash(self) -> str:
        """What stands for the card in the database: the same card has the same, and it tells nothing else."""
        return sha256(f"kernrec {self.uuid}".encode()).hexdigest()[:16]


@once
def library() -> ModuleType:
    """NVML, ready to be asked; raises `NoGPUError`."""
    try:
        import pynvml
    except ImportError:
        raise NoGPUError("measuring needs nvidia-ml-py: install it with `pip install '.[measure]'`") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoGPUError(f"no NVIDIA driver answers ({error}); --device replay works without a GPU") from None
    return pynvml


def cards() -> list[Card]:
    """The GPUs of this machine. Raises `NoGPUError` without a driver, or when it knows no GPU.

    Where only NVML is missing, CUDA tells which there are: their latency can still be measured.
    """
    try:
        nvml = library()
    except NoGPUError:
        if found := _cards_of_cuda():
            return found
        raise
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
        found.append(Card(index, uuid, name, _others(nvml, handle)))
    if not found:
        raise NoGPUError("the NVIDIA driver knows no GPU here; --device replay works without one")
    return found


def choose_cards(wanted: str) -> list[Card]:
    """The cards that `auto`, `all` or an index names; `auto` is the first that nobody uses, else the first.

    Where `CUDA_VISIBLE_DEVICES` is set, only the cards it names are there for `auto` and `all`.
    """
    found = cards()
    if wanted in ("auto", "all"):
        allowed = [card for card in found if _visible(card)] or found
        free = [card for card in allowed if not card.others]
        return allowed if wanted == "all" else (free or allowed)[:1]
    chosen = [card for card in found if str(card.index) == wanted or card.uuid == wanted]
    if not chosen:
        known = ", ".join(f"{card.index} ({card.name})" for card in found)
        raise UsageError(f"no GPU {wanted!r} in this machine; --gpu takes auto, all or one of {known}")
    return chosen


def card_of(gpu: GPU) -> Card:
    """The card of this machine that is `gpu`, one that nobody uses first. Raises `NoGPUError` without any."""
    try:
        found = choose_cards("all")
    except NoGPUError as error:
        reason = str(error).split(";")[0]
        raise NoGPUError(f"there is no GPU to measure on: {reason}; without measuring none is needed") from None
    fitting = sorted((card for card in found if find_gpu(card.name).name == gpu.name), key=lambda card: card.others > 0)
    if not fitting:
        here = ", ".join(sorted({card.name for card in found}))
        raise NoGPUError(f"there is no {gpu.title} in this machine to measure on; it has {here}")
    return fitting[0]


def _visible(card: Card) -> bool:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named is None or any(
        name.strip() == str(card.index) or (name.strip() and card.uuid.startswith(name.strip()))
        for name in named.split(",")
    )


def _cards_of_cuda() -> list[Card]:
    try:
        from cupy.cuda import runtime

        known = [runtime.getDeviceProperties(i) for i in range(runtime.getDeviceCount())]
    except Exception:  # no CuPy, no driver, no device: whatever it is, there is no card to be had
        return []
    return [
        Card(i, f"GPU-{UUID(bytes=bytes(properties['uuid']))}", _text(properties["name"]), 0)
        for i, properties in enumerate(known)
    ]


def sensors(uuid: str) -> "NvmlSensors | MissingSensors":
    """The sensors of a card, or what stands for them where NVML does not answer."""
    try:
        return NvmlSensors(uuid)
    except NoGPUError as error:
        card = next(card for card in _cards_of_cuda() if card.uuid == uuid)
        return MissingSensors(card.name, str(error))


class MissingSensors:
    """A card of which NVML tells nothing."""

    others = 0

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    def why_no_energy(self) -> str | None:
        return f"no sensors: {self._reason}"

    def settings(self) -> CardSettings:
        return CardSettings()

    def versions(self) -> dict[str, str | None]:
        return {"vbios": None, "driver": None, "nvml": None}

    def energy_j(self) -> float | None:
        return None

    power_w = sm_clock_hz = memory_clock_hz = temperature_c = energy_j

    def reasons(self) -> frozenset[str]:
        return frozenset()


class NvmlSensors:
    """The sensors and settings of one card, by its UUID."""

    def __init__(self, uuid: str) -> None:
        self._nvml = nvml = library()
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self.name = _text(nvml.nvmlDeviceGetName(self._handle))
        self.others = _others(nvml, self._handle)
        self._reasons = {
            getattr(nvml, name): name.removeprefix("nvmlClocksEventReason")
            for name in dir(nvml)
            if name.startswith("nvmlClocksEventReason") and not name.endswith(("All", "None"))
        }
        # POWER_AVERAGE and the older call are a mean over a second on newer cards: only the instantaneous value of the
        # GPU alone is taken, and the older call where a card does not know the field.
        self._instant = self._field_power() is not None

    def energy_j(self) -> float | None:
        """The energy counter, from the start of the driver."""
        millijoules = self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if millijoules is None else millijoules / 1e3

    def power_w(self) -> float | None:
        """Instantaneous power of the GPU."""
        if self._instant:
            return self._field_power()
        milliwatts = self._ask(self._nvml.nvmlDeviceGetPowerUsage)
        return None if milliwatts is None else milliwatts / 1e3

    def sm_clock_hz(self) -> float | None:
        """The SM clock as the driver reads it."""
        return self._clock(self._nvml.NVML_CLOCK_SM)

    def memory_clock_hz(self) -> float | None:
        """The memory clock."""
        return self._clock(self._nvml.NVML_CLOCK_MEM)

    def temperature_c(self) -> float | None:
        """Of the GPU."""
        found = self._ask(self._nvml.nvmlDeviceGetTemperature, self._nvml.NVML_TEMPERATURE_GPU)
        return None if found is None else float(found)

    def reasons(self) -> frozenset[str]:
        """Why clocks are what they are: `GpuIdle`, `SwPowerCap`, `HwThermalSlowdown`, ..."""
        bits = self._ask(self._nvml.nvmlDeviceGetCurrentClocksEventReasons) or 0
        return frozenset(name for bit, name in self._reasons.items() if bits & bit)

    def settings(self) -> CardSettings:
        """What somebody may have set; None where it is as the card comes, or unknown."""
        nvml = self._nvml
        limit = self._ask(nvml.nvmlDeviceGetPowerManagementLimit)
        usual = self._ask(nvml.nvmlDeviceGetPowerManagementDefaultLimit)
        ecc = self._ask(nvml.nvmlDeviceGetEccMode)
        mig = self._ask(nvml.nvmlDeviceGetMigMode)
        persistence = self._ask(nvml.nvmlDeviceGetPersistenceMode)
        return CardSettings(
            power_limit_w=limit / 1e3 if limit and limit != usual else None,
            sm_clock_hz=self._set_clock(nvml.NVML_CLOCK_SM),
            memory_clock_hz=self._set_clock(nvml.NVML_CLOCK_MEM),
            ecc=None if ecc is None else bool(ecc[0]),
            mig=None if mig is None else bool(mig[0]),
            persistence=None if persistence is None else bool(persistence),
        )

    def versions(self) -> dict[str, str | None]:
        """Of the card's firmware, the driver and NVML, as columns of a row."""
        nvml = self._nvml
        return {
            "vbios": _text(self._ask(nvml.nvmlDeviceGetVbiosVersion)),
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "nvml": _text(nvml.nvmlSystemGetNVMLVersion()),
        }

    def why_no_energy(self) -> str | None:
        """Why energy cannot be measured, in one line; None where it can."""
        if self.settings().mig:
            return "MIG is on, and power is that of the whole card"
        if self.energy_j() is None:
            return "this card has no energy counter (Volta was the first to have one)"
        return None

    def _field_power(self) -> float | None:
        nvml = self._nvml
        fields = [(nvml.NVML_FI_DEV_POWER_INSTANT, getattr(nvml, "NVML_POWER_SCOPE_GPU", 0))]
        found = self._ask(nvml.nvmlDeviceGetFieldValues, fields)
        # The call succeeds even when the field did not: each value has a return code of its own.
        if found is None or found[0].nvmlReturn != nvml.NVML_SUCCESS:
            return None
        return float(found[0].value.uiVal) / 1e3

    def _clock(self, kind: int) -> float | None:
        megahertz = self._ask(self._nvml.nvmlDeviceGetClockInfo, kind)
        return None if megahertz is None else megahertz * 1e6

    def _set_clock(self, kind: int) -> float | None:
        nvml = self._nvml
        target = self._ask(nvml.nvmlDeviceGetApplicationsClock, kind)
        usual = self._ask(nvml.nvmlDeviceGetDefaultApplicationsClock, kind)
        return target * 1e6 if target and usual and target != usual else None

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        with suppress(self._nvml.NVMLError):
            return call(self._handle, *arguments)
        return None


def _others(nvml: ModuleType, handle: Any) -> int:
    """Processes on a card but this one; those of its display count too."""
    pids = set()
    for call in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        with suppress(nvml.NVMLError):
            pids |= {process.pid for process in call(handle)}
    return len(pids - {os.getpid()})


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
