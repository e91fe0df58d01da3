"""Find out what this machine can measure."""

from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kernrec.compile.nvrtc import compiler, supported_sms
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpu
from kernrec.measure.campaign.journal import waiting_measurements
from kernrec.measure.device.interface import DeviceInfo
from kernrec.measure.device.nvml import LocalGpu, local_gpus
from kernrec.measure.protocol.measure_config import Probe
from kernrec.measure.protocol.probe import save_probe
from kernrec.measure.worker.worker_client import WorkerClient
from kernrec.store import Database
from kernrec.util import engine
from kernrec.util.human import counted

_PROBE_LIMIT_S = 60.0


@dataclass(frozen=True)
class GpuDiagnosis:
    index: int
    name: str
    """Name that the driver reports."""
    gpu: str | None
    """Name in the GPU catalog, or None if the catalog lacks this GPU."""
    latency: bool
    energy: bool
    problems: tuple[str, ...]
    """Reasons why something cannot be measured, and other remarks, each in one line."""
    info: DeviceInfo | None = None
    """Description of the device, or None if it was not probed."""
    probe: Probe | None = None


@dataclass(frozen=True)
class Diagnosis:
    compiler: str | None
    """Name and version of the compiler, or None if there is none."""
    database: str
    """State of the database and its journal, in one line."""
    gpus: tuple[GpuDiagnosis, ...]
    problems: tuple[str, ...]
    """Reasons why this machine cannot compile or find GPUs, each in one line."""
    engine: str
    """Compiler that built kernrec's C++ engine, or the reason why there is no engine."""

    @property
    def measures(self) -> tuple[str, ...]:
        """Costs (`latency`, `energy`) that at least one GPU of this machine can measure."""
        usable = [device for device in self.gpus if self.compiler is not None]
        return tuple(kind for kind in ("latency", "energy") if any(getattr(device, kind) for device in usable))

    def as_dict(self) -> dict[str, Any]:
        return {"measures": list(self.measures), **asdict(self)}


def diagnose(database: Path) -> Diagnosis:
    """Check the compiler, the database and every GPU of this machine. Probing takes about ten seconds per GPU."""
    problems = []
    compiler_name: str | None = None
    sms: tuple[int, ...] = ()
    try:
        compiler_name, sms = compiler(), supported_sms()
    except KernrecError as error:
        problems.append(str(error))
    try:
        present = local_gpus()
    except KernrecError as error:
        present = []
        problems.append(str(error))
    diagnosed = tuple(_diagnose_gpu(device, sms, compiler_name is not None) for device in present)
    return Diagnosis(compiler_name, _database(database), diagnosed, tuple(problems), engine.state())


def _diagnose_gpu(device: LocalGpu, sms: tuple[int, ...], compiles: bool) -> GpuDiagnosis:
    problems = [f"used by {device.others} other processes: expect noise"] if device.others else []
    name, info, probe = None, None, None
    try:
        gpu = find_gpu(device.name)
        name = gpu.name
        if not compiles:  # The probe runs kernels, which must be compiled.
            raise KernrecError("not probed without a compiler")
        if gpu.sm not in sms:
            raise KernrecError(f"the compiler does not support sm_{gpu.sm}")
        info, probe = _probed(device)
    except KernrecError as error:
        return GpuDiagnosis(device.index, device.name, name, False, False, (*problems, str(error)))
    reason = info.energy or probe.why_no_energy()
    if reason is not None:
        problems.append(f"latency only: {reason}")
    return GpuDiagnosis(device.index, device.name, name, True, reason is None, tuple(problems), info, probe)


def _probed(device: LocalGpu) -> tuple[DeviceInfo, Probe]:
    with TemporaryDirectory(prefix="kernrec-") as scratch:
        client = WorkerClient({"device": "cuda", "uuid": device.uuid, "scratch": scratch})
        try:
            client.start()
            info = DeviceInfo.from_dict(client.info)
            probe = Probe(**client.request(_PROBE_LIMIT_S, "probe"))
            save_probe(info, probe)
            return info, probe
        finally:
            client.stop()


def _database(path: Path) -> str:
    try:
        waiting = waiting_measurements(path)
    except OSError as error:
        return f"{path}: its journal cannot be read: {error.strerror}"
    journal = ""
    if waiting.holder is not None:
        journal = f"; {waiting.holder} fills it"
    elif waiting.measurements:
        rows = counted(waiting.measurements, "measurement")
        journal = f"; {rows} of a killed collector will be added by the next one"
    if not path.exists():
        return f"{path} does not exist yet; `kernrec collect` creates it{journal}"
    try:
        with Database.open(path) as database:
            return f"{path}: {counted(database.counts()['measurement'], 'measurement')}{journal}"
    except UsageError as error:
        return f"{error}{journal}"
