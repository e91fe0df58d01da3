"""Calibrations of the analytical model: multipliers for parts of time and energy, by architecture.

    core_time       time of the core clock domain
    dram_time       time of DRAM traffic
    static_power    power of board and leakage
    core_energy     energy of the core's clock tree and events
    dram_energy     energy of DRAM traffic

`kernrec.training.fit_calibration` fits the multipliers to measurements. A multiplier of 1 changes nothing.

A trained model only corrects the version of the analytical model that it was trained with. The model's card contains a
fingerprint of this version.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

import kernrec.gpu
from kernrec.errors import KernrecError, UsageError, cannot_be
from kernrec.gpu import find_gpu
from kernrec.model.analytical.demand import demand
from kernrec.model.analytical.launch_costs import NominalCosts
from kernrec.model.analytical.launch_time import LaunchWork, launch_time
from kernrec.model.analytical.microarchitecture import LAUNCH_S, START_S
from kernrec.model.analytical.power import DRAM, PowerModel
from kernrec.util.cache import cached
from kernrec.util.engine import module
from kernrec.util.files import files_hash, read_input, write_whole
from kernrec.util.light_dataclass import dataclass

FILE = "calibration.json"
FORMAT = 1
MOST = 8.0
"""Largest allowed multiplier. The smallest is 1 / `MOST`."""
TIME, ENERGY = ("core_time", "dram_time"), ("static_power", "core_energy", "dram_energy")
"""Names of the multipliers of time, and of the multipliers of energy."""
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Calibration:
    """Fitted factors on the analytical model's times, powers and energies, for all GPUs of one architecture."""

    arch: str
    core_time: float = 1.0
    dram_time: float = 1.0
    static_power: float = 1.0
    core_energy: float = 1.0
    dram_energy: float = 1.0
    rows: int = 0
    """Number of measured configs that the multipliers of time were fitted to."""
    energy_rows: int = 0
    gpus: tuple[str, ...] = ()
    problems: int = 0
    time_factor: tuple[float, float] | None = None
    """Typical factor between predicted and measured latency: (without calibration, with calibration), or None."""
    energy_factor: tuple[float, float] | None = None
    """Typical factor between predicted and measured energy: (without calibration, with calibration), or None."""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        multipliers = [self.arch, *(round(getattr(self, name), 9) for name in TIME + ENERGY)]
        return hashlib.sha256(json.dumps(multipliers).encode()).hexdigest()[:12]

    @property
    def summary(self) -> str:
        """Return a one-line description for the notes below a recommendation."""
        return (
            f"calibration {self.hash} of {self.arch}, from {self.rows} configs on {self.problems} problems"
            f" ({', '.join(self.gpus)})"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the calibration as JSON values, without its provenance."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "provenance"}
        return {"hash": self.hash, **values, "gpus": list(self.gpus)}

    def apply_to_power(self, power: PowerModel) -> PowerModel:
        """Return a calibrated copy of a power model."""
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
    """Read the calibrations in a folder, keyed by architecture. Return an empty dict if the folder has none. Raise
    `UsageError` if the file is unreadable."""
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
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else f"{error!s:.80}"
        reason = "expected a JSON object" if isinstance(error, AttributeError) else reason
        raise UsageError(f"{path} is not a calibration of kernrec's: {reason}") from None
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
        raise ValueError("arch must be a string, and provenance an object")
    values |= {name: int(values[name]) for name in ("rows", "energy_rows", "problems")}
    return Calibration(**values | {"gpus": tuple(map(str, values["gpus"]))})


def save(calibrations: Mapping[str, Calibration], folder: Path) -> Path:
    """Write calibrations to a folder, and return the path of the file. Raise `KernrecError` if writing fails."""
    path = folder / FILE
    entries = [asdict(calibrations[arch]) for arch in sorted(calibrations)]
    text = json.dumps({"format": FORMAT, "architectures": entries}, indent=1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{text}\n".encode(), shared=True)
    except OSError as error:
        raise KernrecError(cannot_be("written", path, error)) from None
    return path


_GPUS = ("t4", "a100-sxm4-80gb", "rtx3090", "rtx4090", "h200-sxm", "rtx5090", "b200")
"""GPUs for which the fingerprint compares predictions, one per generation."""
_METRICS = (
    "issue", "issue.fma32", "issue.imad", "issue.alu", "issue.mufu", "issue.mma", "issue.ld_shared", "issue.ld_global",
    "mma.f16", "shared.load_wavefronts", "global.a.load_requests", "global.a.load_sectors", "barriers", "issue.cvt",
    "issue.i2f", "issue.f2i", "issue.f64", "issue.cvt64",
)  # fmt: skip
SAME_MODEL = 0.005
"""Maximum relative change of the fingerprint for which a trained model stays valid."""


def analytical_fingerprint() -> list[float]:
    """Return the latencies (us) and energies (mJ) that the uncalibrated model predicts for a few made-up launches."""
    # The five code variants have different bottlenecks: arithmetic, tensor cores, shared memory, DRAM and conversions.
    # `block` and `trip` contain the events per block and per loop iteration, with one row for each code variant.
    block = np.array([[90, 20, 12, 40, 2, 0, 4, 8, 0, 8, 8, 32, 2, 0, 0, 0, 0, 0]] * 5, dtype=np.float64)
    trip = np.array(
        [
            [90, 56, 12, 10, 4, 0, 4, 2, 0, 4, 2, 8, 1, 0, 0, 0, 0, 0],
            [40, 0, 4, 10, 0, 16, 8, 2, 65536, 16, 2, 8, 1, 0, 0, 0, 0, 0],
            [60, 8, 8, 10, 0, 0, 30, 2, 0, 90, 2, 8, 1, 0, 0, 0, 0, 0],
            [30, 4, 4, 6, 0, 0, 0, 16, 0, 0, 16, 64, 0, 0, 0, 0, 0, 0],
            [60, 8, 4, 6, 0, 0, 0, 2, 0, 0, 2, 8, 1, 6, 8, 8, 2, 4],
        ],
        dtype=np.float64,
    )
    fingerprint: list[float] = []
    for name in _GPUS:
        gpu = find_gpu(name)
        power = PowerModel.for_gpu(gpu)
        demanded = demand(gpu, power, _METRICS, np.stack([block, trip], axis=2))
        blocks, trips = np.array([900.0, 2000.0, 300.0, 5000.0, 700.0]), np.array([64.0, 32.0, 128.0, 16.0, 96.0])
        work = LaunchWork.of(
            variants=np.arange(5),
            terms=(blocks, blocks * trips),
            depth=(trips,),
            concurrent=np.array([4.0, 2.0, 1.0, 8.0, 3.0]),
            warps=np.array([8.0, 4.0, 8.0, 4.0, 6.0]),
            prefetch=np.array([0.0, 2.0, 1.0, 0.0, 0.0]),
            dram_bytes=np.array([4e6, 2e7, 1e6, 4e8, 2e6]),
            dram_slowdown=np.ones(5),
            serial_clk=np.zeros(5),
            rounds=trips,
            overlapped=np.array([np.nan, np.nan, np.nan, np.nan, 0.5]),
        )
        times = launch_time(gpu, demanded, work)
        dram_j = times.dram_bytes * power.event_j("dram.bytes")
        nominal = NominalCosts(times.core_s, times.dram_s, LAUNCH_S + START_S, times.core_j, dram_j)
        limited = power.apply_power_limit(nominal)
        fingerprint += [float(f"{value:.6g}") for value in (*(limited.latency_s * 1e6), *(limited.energy_j * 1e3))]
    return fingerprint


def fingerprint_change(earlier: Sequence[float]) -> float:
    """Return the largest relative difference between an earlier fingerprint and the current one. Return infinity if the
    earlier fingerprint is invalid."""
    folders = Path(__file__).parent, Path(kernrec.gpu.__file__).parent
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in (".py", ".toml")]
    sources = f"{files_hash(Path(kernrec.gpu.__file__).parents[1], files)} {module().__file__}"
    now = cached("prior_fingerprint", sources.encode(), lambda: ({"values": analytical_fingerprint()}, {}))[0]["values"]
    if len(earlier) != len(now) or not all(isinstance(value, int | float) and value > 0 for value in earlier):
        return float("inf")
    return float(np.expm1(np.abs(np.log(np.array(now) / np.array(earlier))).max()))
