"""Fit calibrations, which are multipliers of the analytical model, and store those that help on held-out problems.

The model combines core time and DRAM time by a smooth maximum and adds the launch overhead `fixed`, so

    (latency - fixed) ** p  =  core_time ** p * core_s ** p  +  dram_time ** p * dram_s ** p        p = `OVERLAP`

is linear in the p-th powers of the multipliers `core_time` and `dram_time`. For a measured latency, the energy is
linear in the other multipliers:

    energy  =  static_power * static_w * latency
             + core_energy * (clock_w * latency + core_j)  +  dram_energy * dram_j

Iteratively reweighted, non-negative least squares minimize the weighted sum of log(r)**2, with r = predicted /
measured. Least squares alone would minimize (r - 1)**2, in which configs with too long predictions dominate. With the
weight log(r) / (r (r - 1)), the gradient equals that of log(r)**2. Every problem has the same weight. Measurements at
the power limit are not used, because their clock is unknown. Multipliers of time, and multipliers of energy, are kept
only if they reduce errors on held-out problems.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.model.analytical.calibration import ENERGY, FILE, MOST, TIME, Calibration, load, save
from kernrec.model.analytical.launch_costs import NominalCosts
from kernrec.model.analytical.microarchitecture import OVERLAP
from kernrec.model.analytical.power import PowerModel
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.load_measurements import MeasurementRequest, load_measurements, provenance
from kernrec.training.scores import rank_correlation
from kernrec.util.optional import import_optional, require_optional

Array = np.ndarray

FEWEST_ROWS = 20
"""Minimum number of measured configs per architecture."""
FEWEST_PROBLEMS = 3
"""Minimum number of problems per architecture."""
MOST_FOLDS = 20
"""Maximum number of folds. If there are more problems, several share a fold."""
_BELOW_LIMIT = 0.95
"""Fraction of the TDP below which the power limit is assumed not to lower the clock. It allows for reading errors."""
_RANK_LOSS = 0.01
"""Maximum accepted decrease of the rank correlation if calibration reduces the error."""
_PRIOR_WEIGHT = 0.001
"""Weight of each multiplier's regularization toward 1, as a number of problems. It matters only for undetermined
multipliers."""
_LEAST_SHARE = 0.05
"""Minimum share of a multiplier's part in the measured values (90th percentile over rows). Multipliers of smaller parts
are not fitted."""
_ITERATIONS = 12


@dataclass(frozen=True)
class CalibrationFit:
    """Result of fitting a calibration for one architecture."""

    arch: str
    calibration: Calibration | None
    """Multipliers that help, or None if none do."""
    findings: tuple[str, ...]
    """A sentence on the effect of calibration for each quantity."""


def calibrate_analytical(request: MeasurementRequest) -> tuple[Path, list[CalibrationFit], list[str]]:
    """Fit a calibration for each measured architecture, and store those that help, for `kernrec train --calibrate`.
    Return (path of the calibration file, results, notes for the user). Raise `KernrecError` if there are too few
    measurements."""
    require_optional(("sklearn",), "calibrating the analytical model", "train")
    # Load predictions without the present calibration, because the new calibration replaces it.
    measurements = load_measurements(request, calibrated=False)
    folder = measurements.models_folder
    fits = fit(measurements.groups, provenance(Dataset(measurements.groups), measurements, calibrated=False))
    notes = list(measurements.notes)
    try:
        stored = load(folder)
    except UsageError as error:
        notes.append(f"{error}; it is replaced")
        stored = {}
    fitted = {result.arch for result in fits}
    calibrations: dict[str, Calibration] = {arch: entry for arch, entry in stored.items() if arch not in fitted}
    for result in fits:
        notes += [f"{result.arch}: {finding}" for finding in result.findings]
        if result.calibration is not None:
            calibrations[result.arch] = result.calibration
        else:
            dropped = "; its earlier calibration is removed" if result.arch in stored else ""
            notes.append(f"{result.arch}: the data sheet's coefficients stay{dropped}")
    if calibrations != stored:
        save(calibrations, folder)
        if len(list(folder.glob("*.json"))) > 1:
            notes.append(
                "a model only corrects the calibration it was trained with: run `kernrec train` again if models were"
                " trained before this calibration"
            )
    return folder / FILE, fits, notes


def fit(groups: Sequence[RowGroup], origin: Mapping[str, Any] | None = None) -> list[CalibrationFit]:
    """Fit a calibration for each architecture with enough measurements. Raise `KernrecError` if there is none."""
    by_arch: dict[str, list[_CalibrationRows]] = {}
    for group in groups:
        # Groups without a static profile are ignored.
        if np.isfinite(group.inputs.core_s).all():
            by_arch.setdefault(group.inputs.gpu.arch, []).append(_CalibrationRows.of(group))
    enough = {arch: rows for arch, rows in sorted(by_arch.items()) if not any(_missing(rows))}
    if not enough:
        raise KernrecError(_too_few(by_arch))
    return [_fit_arch(arch, rows, origin or {}) for arch, rows in enough.items()]


def predict_group(group: RowGroup, calibration: Calibration) -> dict[str, Array]:
    """Return the predicted `latency` in seconds and `energy` in joules of each row if the power limit is the TDP."""
    return _CalibrationRows.of(group).predict(calibration)


@dataclass(frozen=True)
class _CalibrationRows:
    """Group of N measured rows, some of which are used for fitting."""

    group: RowGroup
    power: PowerModel
    timed: Array
    """Whether each row is used for multipliers of time."""
    powered: Array
    """Whether each row is used for multipliers of energy."""

    @classmethod
    def of(cls, group: RowGroup) -> "_CalibrationRows":
        inputs = group.inputs
        drawn = group.energy_j / group.latency_s
        power = np.where(np.isfinite(drawn), drawn, inputs.power_w)
        free = power < _BELOW_LIMIT * inputs.gpu.tdp_w
        timed = free & (group.latency_s > inputs.fixed_s)
        if group.trust is not None:
            timed &= group.trust == 1.0
        powered = free & np.isfinite(drawn) & np.isfinite(inputs.core_j)
        return cls(group, PowerModel.for_gpu(inputs.gpu), timed, powered)

    def time_shares(self) -> Array:
        """Return core time and DRAM time as fractions of the measured time, raised to the power of `OVERLAP`, (rows,
        2)."""
        inputs = self.group.inputs
        core_s = inputs.core_s[self.timed] * (self.power.boost_hz / self.power.running_hz)
        parts = np.stack([core_s, inputs.dram_s[self.timed]], axis=1)
        beyond = self.group.latency_s[self.timed] - inputs.fixed_s[self.timed]
        return np.asarray((parts / beyond[:, None]) ** OVERLAP)

    def energy_shares(self) -> Array:
        """Return static, core and DRAM energy as fractions of the measured energy, (rows, 3)."""
        rows, inputs = self.powered, self.group.inputs
        latency = self.group.latency_s[rows]
        power = self.power
        volts = float(power.voltage(power.running_hz))
        static = (power.board_w + float(power.leakage_at(power.running_hz))) * latency
        core = (power.clock_w * (power.running_hz / power.boost_hz) * latency + inputs.core_j[rows]) * volts**2
        parts = np.stack([static, core, inputs.dram_j[rows]], axis=1)
        return np.asarray(parts / self.group.energy_j[rows][:, None])

    def predict(self, calibration: Calibration) -> dict[str, Array]:
        inputs = self.group.inputs
        nominal = NominalCosts(
            inputs.core_s * calibration.core_time,
            inputs.dram_s * calibration.dram_time,
            inputs.fixed_s,
            np.nan_to_num(inputs.core_j) * calibration.core_energy,
            np.nan_to_num(inputs.dram_j) * calibration.dram_energy,
        )
        limited = calibration.apply_to_power(self.power).apply_power_limit(nominal)
        return {"latency": limited.latency_s, "energy": limited.energy_j}


def _problems(rows: Iterable[_CalibrationRows]) -> list[str]:
    return sorted({member.group.problem for member in rows if member.timed.any()})


def _missing(rows: Sequence[_CalibrationRows]) -> tuple[int, int]:
    timed = sum(int(member.timed.sum()) for member in rows)
    return max(FEWEST_PROBLEMS - len(_problems(rows)), 0), max(FEWEST_ROWS - timed, 0)


def _too_few(by_arch: Mapping[str, list[_CalibrationRows]]) -> str:
    needed = (
        f"calibrating needs {FEWEST_PROBLEMS} problems and {FEWEST_ROWS} measured configs of kernels with a static"
        " profile, below the power limit, on one architecture; "
    )
    if not by_arch:
        return f"{needed}there are none: {FEWEST_PROBLEMS} problems, {FEWEST_ROWS} configs are missing"
    (problems, configs), arch = min((_missing(rows), arch) for arch, rows in sorted(by_arch.items()))
    return f"{needed}{arch} is the closest: {problems} problems, {configs} configs are missing"


def _fit_arch(arch: str, rows: list[_CalibrationRows], origin: Mapping[str, Any]) -> CalibrationFit:
    """Fit the calibration of one architecture. Keep multipliers only if they help, separately for time and energy."""
    problems = _problems(rows)
    count = min(len(problems), MOST_FOLDS)
    folds = [set(problems[start::count]) for start in range(count)]
    without = [_coefficients(arch, [member for member in rows if member.group.problem not in fold]) for fold in folds]
    whole = _coefficients(arch, rows)
    helpful: tuple[str, ...] = ()
    factors: dict[str, Any] = {}
    findings: list[str] = []
    # Test latency first, because the energy test uses the calibrated latency.
    for quantity, names in (("latency", TIME), ("energy", ENERGY)):
        before: list[tuple[float, float]] = []
        after: list[tuple[float, float]] = []
        for fold, fitted in zip(folds, without, strict=True):
            tested = [member for member in rows if member.group.problem in fold]
            before += _group_errors(tested, _only(fitted, helpful), quantity)
            after += _group_errors(tested, _only(fitted, helpful + names), quantity)
        if all(getattr(whole, name) == 1.0 for name in names):
            findings.append(f"{quantity}: too few measurements to calibrate it")
            continue
        (old_error, old_rank), (new_error, new_rank) = np.mean(before, axis=0), np.mean(after, axis=0)
        better = sum(new[0] < old[0] for old, new in zip(before, after, strict=True))
        helps = new_error < old_error and 2 * better > len(before) and new_rank > old_rank - _RANK_LOSS
        findings.append(
            f"{quantity} of {len(problems)} problems, each held out: off by a factor of {np.exp(old_error):.3f} with"
            f" the data sheet's coefficients, {np.exp(new_error):.3f} calibrated (better on {better} of {len(before)});"
            f" rank correlation {old_rank:.3f} before, {new_rank:.3f} after: {'kept' if helps else 'no help, not kept'}"
        )
        if helps:
            helpful += names
            factor = float(np.exp(old_error)), float(np.exp(new_error))
            factors["time_factor" if names is TIME else "energy_factor"] = factor
    if not helpful:
        return CalibrationFit(arch, None, tuple(findings))
    calibration = replace(
        _only(whole, helpful),
        **factors,
        rows=sum(int(member.timed.sum()) for member in rows),
        energy_rows=sum(int(member.powered.sum()) for member in rows),
        gpus=tuple(sorted({member.group.gpu for member in rows})),
        problems=len(problems),
        provenance=dict(origin),
    )
    return CalibrationFit(arch, calibration, tuple(findings))


def _only(calibration: Calibration, names: Iterable[str]) -> Calibration:
    multipliers: dict[str, Any] = {name: getattr(calibration, name) for name in names}
    return Calibration(calibration.arch, **multipliers)


def _group_errors(
    rows: Iterable[_CalibrationRows], calibration: Calibration, quantity: str
) -> list[tuple[float, float]]:
    """Return (median |log(predicted / measured)|, rank correlation) of each group with measurements of `quantity`."""
    results = []
    for member in rows:
        measured = member.group.latency_s if quantity == "latency" else member.group.energy_j
        rows_measured = np.isfinite(measured)
        if rows_measured.any():
            predicted, measured = member.predict(calibration)[quantity][rows_measured], measured[rows_measured]
            error = float(np.median(np.abs(np.log(predicted / measured))))
            results.append((error, rank_correlation(predicted, measured)))
    return results


def _coefficients(arch: str, rows: Sequence[_CalibrationRows]) -> Calibration:
    time = _multipliers([member.time_shares() for member in rows], rows, MOST**OVERLAP) ** (1.0 / OVERLAP)
    energy = _multipliers([member.energy_shares() for member in rows], rows, MOST)
    return Calibration(arch, *time.tolist(), *energy.tolist())


def _multipliers(shares: Sequence[Array], rows: Sequence[_CalibrationRows], largest: float) -> Array:
    """Fit multipliers to all rows. Each problem has the same total weight."""
    if sum(map(len, shares)) < FEWEST_ROWS:
        return np.ones(shares[0].shape[1] if shares else 1)
    rows_of_problem: dict[str, int] = {}
    for member, part in zip(rows, shares, strict=True):
        problem = member.group.problem
        rows_of_problem[problem] = rows_of_problem.get(problem, 0) + len(part)
    weight = [1.0 / max(rows_of_problem[member.group.problem], 1) for member in rows]
    return fit_multipliers(np.concatenate(shares), np.repeat(weight, list(map(len, shares))), largest)


def fit_multipliers(shares: Array, weights: Array, largest: float) -> Array:
    """Return the non-negative multipliers of P parts that minimize the squared logarithmic error.

    Args:
        shares: Each part as a fraction of the measured value, array of shape (N, P).
        weights: Weight of each row.
        largest: Largest plausible multiplier. The smallest is its reciprocal.
    """
    scale = np.exp(-np.median(np.log(np.maximum(shares.sum(axis=1), 1e-12))))
    # A multiplier is 1 if its part is too small to determine it, or if the fitted value is implausible.
    free = np.quantile(shares * scale, 0.9, axis=0) > _LEAST_SHARE
    while True:
        multipliers = _solve(shares, weights, free)
        implausible = free & ((multipliers > largest) | (multipliers < 1.0 / largest))
        if not implausible.any():
            return multipliers
        free &= ~implausible


def _solve(shares: Array, weights: Array, free: Array) -> Array:
    """Solve for the multiplier of each part of the time. A part that is not `free` keeps the multiplier 1."""
    multipliers = np.ones(shares.shape[1])
    if not free.any():
        return multipliers
    regression = import_optional("sklearn.linear_model", "calibrating the analytical model", "train").LinearRegression(
        positive=True, fit_intercept=False
    )
    fixed = shares[:, ~free].sum(axis=1)
    # The last rows of `design` pull each multiplier toward 1.
    design = np.concatenate([shares[:, free], np.eye(int(free.sum()))])
    target = np.concatenate([1.0 - fixed, np.ones(int(free.sum()))])
    multipliers[free] = np.exp(-np.median(np.log(np.maximum(shares.sum(axis=1), 1e-12))))
    for _ in range(_ITERATIONS):
        ratio = np.clip(shares @ multipliers, 1e-3, 1e3)
        excess = ratio - 1.0
        small = np.abs(excess) < 1e-6
        slope = np.where(small, 1.0, np.log(ratio) / np.where(small, 1.0, ratio * excess))
        # Regularize relative deviations from 1, so that small and large multipliers are regularized equally.
        regularization = _PRIOR_WEIGHT / np.maximum(multipliers[free], 1e-3) ** 2
        regression.fit(design, target, sample_weight=np.concatenate([weights * slope, regularization]))
        multipliers[free] = regression.coef_
    return multipliers
