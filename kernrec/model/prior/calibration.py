"""Calibrations of the analytical model: multipliers for parts of time and energy, by architecture.

    core_time, dram_time        time of the core clock domain; time of DRAM traffic
    static_power                power of board and leakage
    core_energy, dram_energy    energy of the core's clock tree and events; energy of DRAM traffic

`kernrec.training.fit_calibration` fits the multipliers. This module applies them, and stores them in a file beside the
database (`models/calibration.json`). Without calibration, a multiplier is 1, which keeps the coefficients of data
sheets and papers.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import Any

from kernrec.errors import KernrecError, UsageError, cannot_be
from kernrec.model.prior.power import DRAM, PowerModel
from kernrec.util.files import read_input, write_whole
from kernrec.util.light_dataclass import dataclass

FILE = "calibration.json"
FORMAT = 1
MOST = 8.0
"""Largest plausible multiplier; the smallest plausible multiplier is its reciprocal."""
TIME, ENERGY = ("core_time", "dram_time"), ("static_power", "core_energy", "dram_energy")
"""Multipliers of time and of energy, by field name of `Calibration`."""
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Calibration:
    """Multipliers of one architecture, with statistics of the measurements that determined them."""

    arch: str
    """Architecture, such as `sm_89`."""
    core_time: float = 1.0
    dram_time: float = 1.0
    static_power: float = 1.0
    core_energy: float = 1.0
    dram_energy: float = 1.0
    rows: int = 0
    """Number of measured configs in the fit of time."""
    energy_rows: int = 0
    """Number of measured configs in the fit of energy."""
    gpus: tuple[str, ...] = ()
    problems: int = 0
    time_factor: tuple[float, float] | None = None
    """Typical factor between predicted and measured latency on held-out problems, before and after calibration: the
    exponential of the mean over problems of the median |log(predicted / measured)|. None if time is not calibrated.
    """
    energy_factor: tuple[float, float] | None = None
    """Typical factor between predicted and measured energy on held-out problems, like `time_factor`."""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """Return a hash of the multipliers; equal hashes mean equal predictions."""
        multipliers = [self.arch, *(round(getattr(self, name), 9) for name in TIME + ENERGY)]
        return hashlib.sha256(json.dumps(multipliers).encode()).hexdigest()[:12]

    @property
    def summary(self) -> str:
        """Return one line that describes the calibration in the notes of an answer."""
        return (
            f"calibration {self.hash} of {self.arch}, from {self.rows} configs on {self.problems} problems"
            f" ({', '.join(self.gpus)})"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the provenance."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "provenance"}
        return {"hash": self.hash, **values, "gpus": list(self.gpus)}

    def apply_to_power(self, power: PowerModel) -> PowerModel:
        """Return the power model of one of the architecture's GPUs, with the calibrated coefficients."""
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


def load(folder: Path) -> dict[str, Calibration]:
    """Read the calibrations of a folder, by architecture; empty if there is no file. Raises `UsageError` if the file
    cannot be read, or is not a calibration of this version.
    """
    path = folder / FILE
    try:
        text = json.loads(read_input(path, _MOST_BYTES, f"the calibration {path}"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(cannot_be("read", f"the calibration {path}", error)) from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON, or is cut short") from None
    try:
        if text.get("format") != FORMAT:
            raise UsageError(
                f"{path} is a calibration of format {text.get('format')!r:.40}; this kernrec reads format {FORMAT}:"
                " run `kernrec train --calibrate` again"
            )
        calibrations = [_read(entry) for entry in text["architectures"]]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        missing = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else f"{error!s:.80}"
        raise UsageError(f"{path} is not a calibration of kernrec's: {missing}") from None
    return {calibration.arch: calibration for calibration in calibrations}


def _read(entry: Mapping[str, Any]) -> Calibration:
    values = {f.name: entry[f.name] for f in fields(Calibration)}
    for name in TIME + ENERGY:
        if not 1.0 / MOST <= float(values[name]) <= MOST:
            raise ValueError(f"{name} is {values[name]!r:.20}; {1 / MOST:g} to {MOST:g} is allowed")
    for name in ("time_factor", "energy_factor"):
        if values[name] is not None:
            before, after = values[name]
            values[name] = float(before), float(after)
            if not all(map(math.isfinite, values[name])):
                raise ValueError(f"{name} is not finite")
    if not isinstance(values["arch"], str) or not isinstance(values["provenance"], dict):
        raise ValueError("arch must be a text and provenance an object")
    values |= {name: int(values[name]) for name in ("rows", "energy_rows", "problems")}
    return Calibration(**values | {"gpus": tuple(map(str, values["gpus"]))})


def save(calibrations: Mapping[str, Calibration], folder: Path) -> Path:
    """Replace a folder's calibrations atomically, by architecture. Raises `KernrecError` if writing fails."""
    path = folder / FILE
    entries = [asdict(calibrations[arch]) for arch in sorted(calibrations)]
    text = json.dumps({"format": FORMAT, "architectures": entries}, indent=1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{text}\n".encode(), shared=True)
    except OSError as error:
        raise KernrecError(cannot_be("written", path, error)) from None
    return path
