"""Which cards this machine has, their sensors and their settings, from the driver. Settings are only read.

What a card or driver does not report is None; only the lack of any card is an error.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from types import ModuleType
from typing import Any
from uuid import UUID

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.measure.device.interface import CardSettings
from kernrec.measure.device.limits_journal import present_entry


class NoGPUError(KernrecError):
    """This machine has no NVIDIA GPU, or no driver or library to find one."""


@dataclass(frozen=True)
class Card:
    """A GPU of this machine."""

    index: int
    """As `nvidia-smi` counts."""
    uuid: str
    name: str
    others: int
    """Other processes that use it."""

    @property
    def uuid_hash(self) -> str:
        """Identifies the card in the database without revealing its UUID."""
        return sha256(f"kernrec {self.uuid}".encode()).hexdigest()[:16]


@cache
def library() -> ModuleType:
    """NVML, initialized; raises `NoGPUError`."""
    try:
        import pynvml
    except ImportError:
        raise NoGPUError("measuring needs nvidia-ml-py: install it with `pip install '.[measure]'`") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoGPUError(f"no NVIDIA driver responds ({error}); --device replay works without a GPU") from None
    return pynvml


def cards() -> list[Card]:
    """The GPUs of this machine. Raises `NoGPUError` if there is no driver or no GPU.

    If only NVML is missing, they are listed by CUDA: their latency can still be measured.
    """
    try:
        nvml = library()
    except NoGPUError:
        if by_cuda := _cards_of_cuda():
            return by_cuda
        raise
    listed = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
        listed.append(Card(index, uuid, name, _others(nvml, handle)))
    if not listed:
        raise NoGPUError("the NVIDIA driver finds no GPU; --device replay works without one")
    return listed


def choose_cards(wanted: str) -> list[Card]:
    """The cards that `auto`, `all`, an index or a UUID names; `auto` is the first that is not in use, else the first.

    If `CUDA_VISIBLE_DEVICES` is set, `auto` and `all` choose among the cards it names.
    """
    present = cards()
    if wanted in ("auto", "all"):
        allowed = [card for card in present if _visible(card)] or present
        free = [card for card in allowed if not card.others]
        return allowed if wanted == "all" else (free or allowed)[:1]
    chosen = [card for card in present if str(card.index) == wanted or card.uuid == wanted]
    if not chosen:
        known = ", ".join(f"{card.index} ({card.name})" for card in present)
        raise UsageError(f"no GPU {wanted!r} in this machine; --gpu takes auto, all or one of {known}")
    return chosen


def card_of(gpu: GPU) -> Card:
    """The card of this machine that is `gpu`, preferably one that is not in use. Raises `NoGPUError` without any."""
    try:
        present = choose_cards("all")
    except NoGPUError as error:
        reason = str(error).split(";")[0]
        raise NoGPUError(f"there is no GPU to measure on: {reason}; without measuring none is needed") from None
    matching = sorted(
        (card for card in present if find_gpu(card.name).name == gpu.name), key=lambda card: card.others > 0
    )
    if not matching:
        here = ", ".join(sorted({card.name for card in present}))
        raise NoGPUError(f"there is no {gpu.title} in this machine to measure on; it has {here}")
    return matching[0]


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
    except Exception:  # no CuPy, no driver or no device: in any case there is no card
        return []
    return [
        Card(i, f"GPU-{UUID(bytes=bytes(properties['uuid']))}", _text(properties["name"]), 0)
        for i, properties in enumerate(known)
    ]


def sensors(uuid: str) -> "NvmlSensors | MissingSensors":
    """The sensors of a card; `MissingSensors` if there is no NVML."""
    try:
        return NvmlSensors(uuid)
    except NoGPUError as error:
        card = next(card for card in _cards_of_cuda() if card.uuid == uuid)
        return MissingSensors(card.name, str(error))


class MissingSensors:
    """The sensors of a card without NVML: every reading is None."""

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
        self._uuid = uuid
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self.name = _text(nvml.nvmlDeviceGetName(self._handle))
        self.others = _others(nvml, self._handle)
        self._reasons = {
            getattr(nvml, name): name.removeprefix("nvmlClocksEventReason")
            for name in dir(nvml)
            if name.startswith("nvmlClocksEventReason") and not name.endswith(("All", "None"))
        }
        # POWER_AVERAGE and the older call give a mean over a second on newer cards, so the instantaneous power of the
        # GPU is read, and the older call only if a card does not have that field.
        self._instant = self._field_power() is not None

    def energy_j(self) -> float | None:
        """The energy counter, since the driver was loaded."""
        millijoules = self._query(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if millijoules is None else millijoules / 1e3

    def power_w(self) -> float | None:
        """Instantaneous power of the GPU."""
        if self._instant:
            return self._field_power()
        milliwatts = self._query(self._nvml.nvmlDeviceGetPowerUsage)
        return None if milliwatts is None else milliwatts / 1e3

    def sm_clock_hz(self) -> float | None:
        """The SM clock as the driver reports it."""
        return self._clock(self._nvml.NVML_CLOCK_SM)

    def memory_clock_hz(self) -> float | None:
        """The memory clock."""
        return self._clock(self._nvml.NVML_CLOCK_MEM)

    def temperature_c(self) -> float | None:
        """Temperature of the GPU."""
        degrees = self._query(self._nvml.nvmlDeviceGetTemperature, self._nvml.NVML_TEMPERATURE_GPU)
        return None if degrees is None else float(degrees)

    def reasons(self) -> frozenset[str]:
        """Clock event reasons: `GpuIdle`, `SwPowerCap`, `HwThermalSlowdown`, ..."""
        bits = self._query(self._nvml.nvmlDeviceGetCurrentClocksEventReasons) or 0
        return frozenset(name for bit, name in self._reasons.items() if bits & bit)

    def settings(self) -> CardSettings:
        """Settings that somebody may have changed; None: the default, or unknown."""
        nvml = self._nvml
        limit = self._query(nvml.nvmlDeviceGetPowerManagementLimit)
        usual = self._query(nvml.nvmlDeviceGetPowerManagementDefaultLimit)
        ecc = self._query(nvml.nvmlDeviceGetEccMode)
        mig = self._query(nvml.nvmlDeviceGetMigMode)
        persistence = self._query(nvml.nvmlDeviceGetPersistenceMode)
        locked = present_entry(self._uuid)  # NVML does not tell what clocks are locked to
        return CardSettings(
            power_limit_w=limit / 1e3 if limit and limit != usual else None,
            sm_clock_hz=(locked and locked.sm_clock_hz) or self._set_clock(nvml.NVML_CLOCK_SM),
            memory_clock_hz=self._set_clock(nvml.NVML_CLOCK_MEM),
            ecc=None if ecc is None else bool(ecc[0]),
            mig=None if mig is None else bool(mig[0]),
            persistence=None if persistence is None else bool(persistence),
        )

    def versions(self) -> dict[str, str | None]:
        """Versions of the card's firmware, the driver and NVML."""
        nvml = self._nvml
        return {
            "vbios": _text(self._query(nvml.nvmlDeviceGetVbiosVersion)),
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "nvml": _text(nvml.nvmlSystemGetNVMLVersion()),
        }

    def why_no_energy(self) -> str | None:
        """Why energy cannot be measured, in one line; None if it can."""
        if self.settings().mig:
            return "MIG is on, and power is that of the whole card"
        if self.energy_j() is None:
            return "this card has no energy counter (Volta was the first to have one)"
        return None

    def _field_power(self) -> float | None:
        nvml = self._nvml
        fields = [(nvml.NVML_FI_DEV_POWER_INSTANT, getattr(nvml, "NVML_POWER_SCOPE_GPU", 0))]
        values = self._query(nvml.nvmlDeviceGetFieldValues, fields)
        # The call succeeds even if the field fails: each value has a return code of its own.
        if values is None or values[0].nvmlReturn != nvml.NVML_SUCCESS:
            return None
        return float(values[0].value.uiVal) / 1e3

    def _clock(self, kind: int) -> float | None:
        megahertz = self._query(self._nvml.nvmlDeviceGetClockInfo, kind)
        return None if megahertz is None else megahertz * 1e6

    def _set_clock(self, kind: int) -> float | None:
        nvml = self._nvml
        target = self._query(nvml.nvmlDeviceGetApplicationsClock, kind)
        usual = self._query(nvml.nvmlDeviceGetDefaultApplicationsClock, kind)
        return target * 1e6 if target and usual and target != usual else None

    def _query(self, call: Callable[..., Any], *arguments: Any) -> Any:
        with suppress(self._nvml.NVMLError):
            return call(self._handle, *arguments)
        return None


def _others(nvml: ModuleType, handle: Any) -> int:
    """Processes that use a card, without this one; those that use its display are included."""
    pids = set()
    for call in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        with suppress(nvml.NVMLError):
            pids |= {process.pid for process in call(handle)}
    return len(pids - {os.getpid()})


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
