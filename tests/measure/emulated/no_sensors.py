"""A stand-in for the sensors of the emulated GPU: every reading is None."""

from kernrec.measure.device.interface import GpuSettings, SensorReading


class MissingSensors:
    """Sensors without readings."""

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
