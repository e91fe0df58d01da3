"""Make kernrec measure on the emulated driver, with code that another process compiled and sensors without readings."""

import json
from collections.abc import Mapping
from types import SimpleNamespace

from cupy.cuda import Clock
from cupy.cuda.function import PTX

import kernrec.measure.device.cuda as cuda
from kernrec.measure.device.interface import SensorReading
from kernrec.ptx import parse
from kernrec.store.measurement import GpuSettings


class MissingSensors:
    others = 0

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    def why_no_energy(self) -> str | None:
        return f"no sensors: {self._reason}"

    def settings(self) -> GpuSettings:
        return GpuSettings()

    def versions(self) -> dict[str, str | None]:
        return {"vbios": None, "driver": None, "nvml": None}

    def read(self, time_s: float) -> SensorReading:
        return SensorReading(time_s, None, None, None, None, None)


def use_emulated_device(ptx_by_key: Mapping[str, str]) -> None:
    """Replace the compiler, the sensors and the clock. Keys are JSON of a source's name and its sorted macros."""

    def compiled(source, sm, defines=None, name="kernel.cu"):
        key = json.dumps([name, dict(sorted((defines or {}).items()))])
        ptx = ptx_by_key.get(key, "")
        if ptx:
            PTX[key.encode()] = ptx
        entries = parse(ptx).entries if ptx else ()
        return SimpleNamespace(cubin=key.encode(), ptx=ptx, resources=dict.fromkeys(entries))

    cuda.compile_source = compiled
    cuda.compile_job = lambda job, cache: compiled(job.source, job.sm, job.defines, job.name)
    cuda.time = Clock
    cuda.sensors = lambda uuid: MissingSensors("NVIDIA H200", "emulated")
