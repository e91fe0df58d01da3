"""The prior's coefficients as an architecture's measurements have them: a multiplier for each part of time and energy.

    core, DRAM                  time of the core domain, and of DRAM traffic
    static, core, DRAM          power of board and leakage; energy of the core's clock tree and events; of DRAM traffic

`model.calibrate` finds them; here they are applied, kept in a file beside the database (`models/calibration.json`) and
read again. What is not calibrated keeps the coefficient of data sheets and papers, and its multiplier is 1.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from kernrec.errors import KernrecError, UsageError
from kernrec.model.prior.launch_time import LaunchTime
from kernrec.model.prior.power import DRAM, PowerModel
from kernrec.util.atomic_write import write_whole

FILE = "calibration.json"
FORMAT = 1
MOST = 8.0
"""A multiplier beyond this, or below its reciprocal, is no correction of a coefficient any more."""
TIME, ENERGY = ("core_time", "dram_time"), ("static_power", "core_energy", "dram_energy")
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Calibration:
    """Multipliers of one architecture, and what they stand on.

    rows, energy_rows, gpus, problems: what was fitted to. time_factor, energy_factor: (with the data sheet's
    coefficients, with these) by what factor predictions missed measurements on problems held out: the exponential of
    the mean over problems of the median |log(predicted / measured)|; None where that part is not calibrated.
    provenance: of the measurements.
    """

    arch: str
    core_time: float = 1.0
    dram_time: float = 1.0
    static_power: float = 1.0
    core_energy: float = 1.0
    dram_energy: float = 1.0
    rows: int = 0
    energy_rows: int = 0
    gpus: tuple[str, ...] = ()
    problems: int = 0
    time_factor: tuple[float, float] | None = None
    energy_factor: tuple[float, float] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """Names the multipliers: equal where predictions are."""
        told = [self.arch, *(round(getattr(self, name), 9) for name in TIME + ENERGY)]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]

    @property
    def said(self) -> str:
        """What an answer says of it, in a line."""
        return (
            f"calibration {self.hash} of {self.arch}, from {self.rows} configs on {self.problems} problems"
            f" ({', '.join(self.gpus)})"
        )

    def about(self) -> dict[str, Any]:
        """What an answer says of it, as plain values."""
        told = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "provenance"}
        return {"hash": self.hash, **told, "gpus": list(self.gpus)}

    def powered(self, power: PowerModel) -> PowerModel:
        """The power model of one of its GPUs with the calibrated coefficients."""
        return replace(
            power,
            board_w=power.board_w * self.static_power,
            leakage_w=power.leakage_w * self.static_power,
            clock_w=power.clock_w * self.core_energy,
            energy_j={
                event: joules * (self.dram_energy if event == DRAM else self.core_energy)
                for event, joules in power.energy_j.items()
            },
        )

    def timed(self, times: LaunchTime) -> LaunchTime:
        """The prior's times with the calibrated coefficients; joules are `powered`'s."""
        return replace(
            times,
            core_s=times.core_s * self.core_time,
            dram_s=times.dram_s * self.dram_time,
            busy_s=times.busy_s * self.core_time,
            latency_s=times.latency_s * self.core_time,
            l2_s=times.l2_s * self.core_time,
        )


def load(folder: Path) -> dict[str, Calibration]:
    """The calibrations that a folder holds, by architecture; none where there is no file. Raises `UsageError`."""
    path = folder / FILE
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is {path.stat().st_size >> 20} MiB; a calibration is far smaller")
        text = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"cannot read the calibration {path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is no JSON, or is cut short") from None
    try:
        if text.get("format") != FORMAT:
            raise UsageError(
                f"{path} is a calibration of format {text.get('format')!r:.40}; this kernrec reads {FORMAT}:"
                " `kernrec train --calibrate` makes it again"
            )
        found = [_read(entry) for entry in text["architectures"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        missing = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else f"{error!s:.80}"
        raise UsageError(f"{path} is no calibration of kernrec's: {missing}") from None
    return {one.arch: one for one in found}


def _read(entry: Mapping[str, Any]) -> Calibration:
    given = {f.name: entry[f.name] for f in fields(Calibration)}
    for name in TIME + ENERGY:
        if not 1.0 / MOST <= float(given[name]) <= MOST:
            raise ValueError(f"{name} is {given[name]!r:.20}, {1 / MOST:g} to {MOST:g} is accepted")
    for name in ("time_factor", "energy_factor"):
        if given[name] is not None:
            before, after = given[name]
            given[name] = float(before), float(after)
    if not isinstance(given["arch"], str) or not isinstance(given["provenance"], dict):
        raise ValueError("arch and provenance are not what they should be")
    given |= {name: int(given[name]) for name in ("rows", "energy_rows", "problems")}
    return Calibration(**given | {"gpus": tuple(map(str, given["gpus"]))})


def save(found: Mapping[str, Calibration], folder: Path) -> Path:
    """Write the calibrations of a folder, by architecture, in place of those it holds; the file appears whole."""
    path = folder / FILE
    entries = [asdict(found[arch]) for arch in sorted(found)]
    text = json.dumps({"format": FORMAT, "architectures": entries}, indent=1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{text}\n".encode(), shared=True)
    except OSError as error:
        raise KernrecError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from None
    return path
