"""What this machine can measure and what it cannot, found out by trying: `kernrec doctor`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kernrec.compile.nvrtc import compiler, supported_sms
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpu
from kernrec.measure.campaign.journal import journal_path, left_behind
from kernrec.measure.device.interface import DeviceInfo, MeasurementFailure
from kernrec.measure.device.nvml import Card, cards
from kernrec.measure.protocol.probe import Probe
from kernrec.measure.protocol.probe_cache import save_probe
from kernrec.measure.worker.worker_client import WorkerClient
from kernrec.store import Database

_PROBE_LIMIT_S = 60.0


@dataclass(frozen=True)
class CardDiagnosis:
    """One card. latency, energy: whether they can be measured; problems: why not and what else to know, a line each."""

    index: int
    name: str
    gpu: str | None
    latency: bool
    energy: bool
    problems: tuple[str, ...]
    info: DeviceInfo | None = None
    probe: Probe | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Everything `kernrec doctor` says. compiler: None where there is none; problems: of the machine, a line each."""

    compiler: str | None
    database: str
    cards: tuple[CardDiagnosis, ...]
    problems: tuple[str, ...]

    @property
    def measures(self) -> tuple[str, ...]:
        """What can be measured here, of `latency` and `energy`."""
        usable = [card for card in self.cards if self.compiler is not None]
        return tuple(kind for kind in ("latency", "energy") if any(getattr(card, kind) for card in usable))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"measures": list(self.measures), **asdict(self)}


def diagnose(database: Path) -> Diagnosis:
    """Look at the compiler, the database and every card of this machine; each card is probed for some ten seconds."""
    problems = []
    found: str | None = None
    sms: tuple[int, ...] = ()
    try:
        found, sms = compiler(), supported_sms()
    except KernrecError as error:
        problems.append(str(error))
    try:
        present = cards()
    except KernrecError as error:
        present = []
        problems.append(str(error))
    examined = tuple(_examine(card, sms, found is not None) for card in present)
    return Diagnosis(found, _database(database), examined, tuple(problems))


def _examine(card: Card, sms: tuple[int, ...], compiles: bool) -> CardDiagnosis:
    problems = [f"used by {card.others} other processes: expect noise"] if card.others else []
    try:
        known = find_gpu(card.name)
    except UsageError as error:
        return CardDiagnosis(card.index, card.name, None, False, False, (*problems, str(error)))
    if compiles and known.sm not in sms:
        problems.append(f"the compiler makes no code for sm_{known.sm}")
        return CardDiagnosis(card.index, card.name, known.name, False, False, tuple(problems))
    if not compiles:  # the probe's own kernels need compiling too
        return CardDiagnosis(
            card.index, card.name, known.name, False, False, (*problems, "not probed without a compiler")
        )
    with TemporaryDirectory(prefix="kernrec-") as scratch:
        client = WorkerClient({"device": "cuda", "uuid": card.uuid, "scratch": scratch})
        try:
            client.start()
            info = DeviceInfo.from_dict(client.info)
            probe = Probe(**client.request(_PROBE_LIMIT_S, "probe"))
            save_probe(info, probe)
        except (MeasurementFailure, KernrecError) as error:
            return CardDiagnosis(card.index, card.name, known.name, False, False, (*problems, str(error)))
        finally:
            client.stop()
    reason = info.energy or probe.why_no_energy()
    if reason is not None:
        problems.append(f"latency only: {reason}")
    return CardDiagnosis(card.index, card.name, known.name, True, reason is None, tuple(problems), info, probe)


def _database(path: Path) -> str:
    """The state of a database and its journal, in one line."""
    try:
        records, holder = left_behind(journal_path(path))
    except OSError as error:
        return f"{path}: its journal cannot be read: {error.strerror}"
    journal = ""
    if holder is not None:
        journal = f"; a collector (PID {holder}) is filling it"
    elif records:
        journal = f"; {records} measurements of a collector that was killed wait for the next one"
    if not path.exists():
        return f"{path} does not exist yet; collecting makes it{journal}"
    try:
        with Database.open(path) as database:
            return f"{path}: {database.counts()['measurement']} measurements{journal}"
    except UsageError as error:
        return f"{error}{journal}"
