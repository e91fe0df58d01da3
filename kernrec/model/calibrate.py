"""The prior's own coefficients, refitted to what devices did: one multiplier for each part of its time and energy.

Time is the smooth maximum of a core and a DRAM part beyond the launch overhead, `combine` of `model.power`, so

    (latency - fixed) ** p  =  core_time ** p * core_s ** p  +  dram_time ** p * dram_s ** p        p = `OVERLAP`

is linear in the p-th powers of the multipliers; energy is linear in its parts, the static one for the measured time:

    energy  =  static_power * static_w * latency  +  core_energy * core_j  +  dram_energy * dram_j

Both are solved by non-negative least squares of relative errors (Lawson and Hanson, "Solving Least Squares Problems",
1974), per architecture, over rows that the prior does not see at the power limit. A part that the rows do not tell
apart from nothing keeps its published coefficient: its multiplier is 1. The result is data with its provenance.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.errors import KernrecError
from kernrec.model.dataset import Group
from kernrec.model.power import OVERLAP

Array = np.ndarray

FILE = "calibration.json"
FEWEST_ROWS = 20
_BELOW_LIMIT = 0.98  # rows whose predicted power is below this share of the TDP ran at the clock that was assumed
_LEAST_SHARE = 0.05  # a part that is never a twentieth of the whole cannot be told from the rest


@dataclass(frozen=True)
class Calibration:
    """Multipliers of one architecture; `rows`, `energy_rows`, `gpus` and `problems` are what they stand on.

    time_error, energy_error: median relative error after the fit; None without rows.
    """

    arch: str
    core_time: float
    dram_time: float
    static_power: float
    core_energy: float
    dram_energy: float
    rows: int
    energy_rows: int
    gpus: tuple[str, ...]
    problems: int
    time_error: float | None
    energy_error: float | None

    def as_row(self) -> Mapping[str, str]:
        """For a table."""
        return {
            name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in asdict(self).items()
        }


def fit(groups: Sequence[Group]) -> list[Calibration]:
    """A calibration of each architecture that has rows enough; groups without a static profile have nothing to fit.

    Raises `KernrecError` where no architecture has `FEWEST_ROWS`.
    """
    by_arch: dict[str, list[Group]] = {}
    for group in groups:
        if group.facts.core_s is not None and group.facts.static_j is not None:
            by_arch.setdefault(group.facts.gpu.arch, []).append(group)
    rows = {arch: sum(map(len, members)) for arch, members in by_arch.items()}
    found = [_fit(arch, members) for arch, members in sorted(by_arch.items()) if rows[arch] >= FEWEST_ROWS]
    if not found:
        most = max(rows.values(), default=0)
        raise KernrecError(
            f"calibrating takes {FEWEST_ROWS} measured configs of the library's kernels on one architecture; "
            f"the most there are is {most}, {FEWEST_ROWS - most} are missing"
        )
    return found


def _fit(arch: str, groups: list[Group]) -> Calibration:
    def side(name: str) -> Array:
        return np.concatenate([np.asarray(getattr(group.facts, name), dtype=np.float64) for group in groups])

    latency = np.concatenate([group.latency_s for group in groups])
    energy = np.concatenate([group.energy_j for group in groups])
    tdp = np.repeat([group.facts.gpu.tdp_w for group in groups], [len(group) for group in groups])
    free = side("power_w") < _BELOW_LIMIT * tdp
    beyond = latency - side("fixed_s")
    timed = free & (beyond > 0)
    powers = np.stack([side("core_s"), side("dram_s")], axis=1) ** OVERLAP
    core, dram = _multipliers(powers[timed], beyond[timed] ** OVERLAP) ** (1.0 / OVERLAP)
    known = free & np.isfinite(energy)
    static = side("static_j") / side("latency_s") * latency
    parts = np.stack([static, side("core_j"), side("dram_j")], axis=1)
    multipliers = _multipliers(parts[known], energy[known])
    static_power, core_energy, dram_energy = multipliers.tolist()
    predicted = (powers @ np.array([core, dram]) ** OVERLAP) ** (1.0 / OVERLAP) + side("fixed_s")
    return Calibration(
        arch=arch,
        core_time=float(core),
        dram_time=float(dram),
        static_power=static_power,
        core_energy=core_energy,
        dram_energy=dram_energy,
        rows=int(timed.sum()),
        energy_rows=int(known.sum()),
        gpus=tuple(sorted({group.gpu for group in groups})),
        problems=len({group.problem for group in groups}),
        time_error=_error(predicted[timed], latency[timed]),
        energy_error=_error(parts[known] @ multipliers, energy[known]),
    )


def _multipliers(parts: Array, whole: Array) -> Array:
    """Non-negative multipliers of the columns of `parts` (N, P) whose sum is nearest `whole` (N,) in relative error."""
    found = np.ones(parts.shape[1])
    if len(whole) < FEWEST_ROWS:
        return found
    share = parts / whole[:, None]
    told = np.flatnonzero(share.max(axis=0) > _LEAST_SHARE)
    if len(told):
        from scipy.optimize import nnls

        rest = 1.0 - share[:, [i for i in range(parts.shape[1]) if i not in told]].sum(axis=1)
        solved = nnls(share[:, told], np.maximum(rest, 0.0))[0]
        found[told] = np.where(solved > 0, solved, 1.0)
    return found


def _error(predicted: Array, measured: Array) -> float | None:
    return float(np.median(np.abs(predicted / measured - 1.0))) if len(measured) else None


def save(found: Sequence[Calibration], folder: Path, provenance: Mapping[str, Any] | None = None) -> Path:
    """Write calibrations as JSON with their provenance; the file appears whole."""
    path = folder / FILE
    text = json.dumps({"architectures": [asdict(c) for c in found], "provenance": dict(provenance or {})}, indent=1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(text + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise KernrecError(f"cannot write {path}: {error.strerror}") from None
    return path
