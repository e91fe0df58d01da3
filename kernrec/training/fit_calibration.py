"""Refitting the prior's own coefficients to what devices did, where that helps on problems that were held out.

Time is the smooth maximum of a core and a DRAM part beyond the launch overhead, `combine` of `model.power`, so

    (latency - fixed) ** p  =  core_time ** p * core_s ** p  +  dram_time ** p * dram_s ** p        p = `OVERLAP`

is linear in the p-th powers of the multipliers; energy is linear in its parts, for the measured time:

    energy  =  static_power * static_w * latency
             + core_energy * (clock_w * latency + core_j)  +  dram_energy * dram_j

Both are solved by non-negative least squares (Lawson and Hanson, "Solving Least Squares Problems", 1974), reweighted
until what is least is the squared logarithm of predicted over measured: with r = predicted / measured the weight
log(r) / (r (r - 1)) gives (r - 1)**2 the gradient of log(r)**2 (iteratively reweighted least squares; plain relative
errors to the p-th power would hear those alone that are predicted too slow). Every problem weighs the same. A belief
in the published coefficient, worth a thousandth of a problem, decides what the rows do not tell apart, and a part that
is next to nothing in them keeps it. Rows that ran at the power limit ran at an unknown clock and are left out.

A multiplier is kept where it helps: each problem is held out in turn, and the error that the calibrated prior makes
there, power limit and all, is held against that of the published coefficients.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernrec.errors import KernrecError
from kernrec.model.prior.calibration import ENERGY, MOST, TIME, Calibration
from kernrec.model.prior.power import OVERLAP, NominalCosts, PowerModel
from kernrec.training.dataset import RowGroup
from kernrec.training.scores import rank_correlation
from kernrec.util.optional import import_optional

Array = np.ndarray

FEWEST_ROWS = 20
FEWEST_PROBLEMS = 3
"""Of an architecture, with `FEWEST_ROWS` configs among them."""
MOST_FOLDS = 20
"""More problems than this are held out several at a time."""
_BELOW_LIMIT = 0.95  # of the TDP: less power than that, a reading's error aside, did not lower the clock
_BELIEF = 0.001
_LEAST_SHARE = 0.05
_ROUNDS = 12
_RANKS = 0.01  # how much rank correlation a smaller error may cost


@dataclass(frozen=True)
class Fitted:
    """What fitting an architecture gave. calibration: None where nothing helped. said: of each quantity, a line."""

    arch: str
    calibration: Calibration | None
    said: tuple[str, ...]


def fit(groups: Sequence[RowGroup], provenance: Mapping[str, Any] | None = None) -> list[Fitted]:
    """What each architecture's measurements say of its coefficients; groups without static profiles have none.

    The groups' inputs are those of the prior that is not calibrated. Raises `KernrecError` where no architecture has
    `FEWEST_PROBLEMS` and `FEWEST_ROWS`, saying how many are missing.
    """
    by_arch: dict[str, list[_Rows]] = {}
    for group in groups:
        if group.inputs.core_s is not None:
            by_arch.setdefault(group.inputs.gpu.arch, []).append(_Rows.of(group))
    enough = {arch: rows for arch, rows in sorted(by_arch.items()) if not any(_missing(rows))}
    if not enough:
        raise KernrecError(_too_few(by_arch))
    return [_fitted(arch, rows, provenance or {}) for arch, rows in enough.items()]


@dataclass(frozen=True)
class _Rows:
    """A group with its GPU's power model. timed, powered: rows whose time and whose energy say something."""

    group: RowGroup
    power: PowerModel
    timed: Array
    powered: Array

    @classmethod
    def of(cls, group: RowGroup) -> "_Rows":
        inputs = group.inputs
        drawn = group.energy_j / group.latency_s
        power = np.where(np.isfinite(drawn), drawn, inputs.power_w)
        free = power < _BELOW_LIMIT * inputs.gpu.tdp_w
        timed = free & (group.latency_s > np.asarray(inputs.fixed_s))
        powered = free & np.isfinite(drawn) & (inputs.core_j is not None)
        return cls(group, PowerModel.for_gpu(inputs.gpu), timed, powered)

    def joules(self) -> tuple[Array, Array]:
        """The prior's energy of the core's events and of DRAM traffic; none where nobody counted."""
        inputs, nothing = self.group.inputs, np.zeros(len(self.group))
        core, dram = ((nothing if part is None else np.asarray(part)) for part in (inputs.core_j, inputs.dram_j))
        return core, dram

    def time_shares(self) -> Array:
        """Core and DRAM part over what was measured, to the power of `OVERLAP`; (timed, 2)."""
        inputs = self.group.inputs
        parts = np.stack([np.asarray(inputs.core_s)[self.timed], np.asarray(inputs.dram_s)[self.timed]], axis=1)
        beyond = self.group.latency_s[self.timed] - np.asarray(inputs.fixed_s)[self.timed]
        return (parts / beyond[:, None]) ** OVERLAP

    def energy_shares(self) -> Array:
        """Static, core and DRAM energy for the measured time, over what was measured; (powered, 3)."""
        rows, (core_j, dram_j) = self.powered, self.joules()
        latency = self.group.latency_s[rows]
        core = self.power.clock_w * latency + core_j[rows]
        parts = np.stack([self.power.static_w * latency, core, dram_j[rows]], axis=1)
        return parts / self.group.energy_j[rows][:, None]

    def predicted(self, found: Calibration) -> dict[str, Array]:
        """Latency and energy of all rows by a calibration, under the power limit."""
        inputs, (core_j, dram_j) = self.group.inputs, self.joules()
        nominal = NominalCosts(
            np.asarray(inputs.core_s) * found.core_time,
            np.asarray(inputs.dram_s) * found.dram_time,
            np.asarray(inputs.fixed_s),
            core_j * found.core_energy,
            dram_j * found.dram_energy,
        )
        limited = found.powered(self.power).apply_power_limit(nominal)
        return {"latency": limited.latency_s, "energy": limited.energy_j}


def predicted(group: RowGroup, found: Calibration) -> dict[str, Array]:
    """Latency and energy (N,) of a group's configs by the prior with these coefficients, under the power limit.

    The group's inputs are those of the prior that is not calibrated.
    """
    return _Rows.of(group).predicted(found)


def _problems(rows: Iterable[_Rows]) -> list[str]:
    return sorted({one.group.problem for one in rows if one.timed.any()})


def _missing(rows: Sequence[_Rows]) -> tuple[int, int]:
    """(problems, configs) that are missing."""
    known = sum(int(one.timed.sum()) for one in rows)
    return max(FEWEST_PROBLEMS - len(_problems(rows)), 0), max(FEWEST_ROWS - known, 0)


def _too_few(by_arch: Mapping[str, list[_Rows]]) -> str:
    said = (
        f"calibrating takes {FEWEST_PROBLEMS} problems and {FEWEST_ROWS} measured configs of kernels with a static"
        " profile, below the power limit, on one architecture; "
    )
    if not by_arch:
        return f"{said}there are none: {FEWEST_PROBLEMS} problems, {FEWEST_ROWS} configs are missing"
    arch, (problems, configs) = min(
        ((arch, _missing(rows)) for arch, rows in sorted(by_arch.items())), key=lambda found: found[1]
    )
    return f"{said}{arch} is nearest: {problems} problems, {configs} configs are missing"


def _fitted(arch: str, rows: list[_Rows], provenance: Mapping[str, Any]) -> Fitted:
    problems = _problems(rows)
    count = min(len(problems), MOST_FOLDS)
    folds = [set(problems[start::count]) for start in range(count)]
    without = [_coefficients(arch, [one for one in rows if one.group.problem not in fold]) for fold in folds]
    whole = _coefficients(arch, rows)
    kept: tuple[str, ...] = ()
    factors: dict[str, Any] = {}
    said: list[str] = []
    # Time first: energy is power for a time, and judged by the time that will be predicted.
    for quantity, names in (("latency", TIME), ("energy", ENERGY)):
        before: list[tuple[float, float]] = []
        after: list[tuple[float, float]] = []
        for fold, found in zip(folds, without, strict=True):
            tested = [one for one in rows if one.group.problem in fold]
            before += _judged(tested, _only(found, kept), quantity)
            after += _judged(tested, _only(found, kept + names), quantity)
        if all(getattr(whole, name) == 1.0 for name in names):
            said.append(f"{quantity}: too little was measured to calibrate it")
            continue
        (error, ranks), (new, new_ranks) = np.mean(before, axis=0), np.mean(after, axis=0)
        better = sum(new[0] < old[0] for old, new in zip(before, after, strict=True))
        helps = new < error and 2 * better > len(before) and new_ranks > ranks - _RANKS
        said.append(
            f"{quantity} of {len(problems)} problems, each held out: off by a factor of {np.exp(error):.3f} with the"
            f" data sheet's coefficients, {np.exp(new):.3f} calibrated (better on {better} of {len(before)}); rank"
            f" correlation {ranks:.3f}, {new_ranks:.3f}: {'kept' if helps else 'no help, not kept'}"
        )
        if helps:
            kept += names
            factors["time_factor" if names is TIME else "energy_factor"] = float(np.exp(error)), float(np.exp(new))
    if not kept:
        return Fitted(arch, None, tuple(said))
    calibration = replace(
        _only(whole, kept),
        **factors,
        rows=sum(int(one.timed.sum()) for one in rows),
        energy_rows=sum(int(one.powered.sum()) for one in rows),
        gpus=tuple(sorted({one.group.gpu for one in rows})),
        problems=len(problems),
        provenance=dict(provenance),
    )
    return Fitted(arch, calibration, tuple(said))


def _only(found: Calibration, names: Iterable[str]) -> Calibration:
    """The multipliers of these names alone."""
    kept: dict[str, Any] = {name: getattr(found, name) for name in names}
    return Calibration(found.arch, **kept)


def _judged(rows: Iterable[_Rows], found: Calibration, quantity: str) -> list[tuple[float, float]]:
    """(median |log(predicted / measured)|, rank correlation) of each group."""
    results = []
    for one in rows:
        measured = one.group.latency_s if quantity == "latency" else one.group.energy_j
        known = np.isfinite(measured)
        if known.any():
            predicted = one.predicted(found)[quantity][known]
            error = float(np.median(np.abs(np.log(predicted / measured[known]))))
            results.append((error, rank_correlation(predicted, measured[known])))
    return results


def _coefficients(arch: str, rows: Sequence[_Rows]) -> Calibration:
    """The multipliers that fit rows best; 1 where there is nothing to fit."""
    time = _multipliers([one.time_shares() for one in rows], rows) ** (1.0 / OVERLAP)
    energy = _multipliers([one.energy_shares() for one in rows], rows)
    return Calibration(arch, *time.tolist(), *energy.tolist())


def _multipliers(shares: Sequence[Array], rows: Sequence[_Rows]) -> Array:
    """What each part is to be multiplied by; shares: (N, P) of each group, of what was measured."""
    if sum(map(len, shares)) < FEWEST_ROWS:
        return np.ones(shares[0].shape[1] if shares else 1)
    of_problem: dict[str, int] = {}
    for one, found in zip(rows, shares, strict=True):
        of_problem[one.group.problem] = of_problem.get(one.group.problem, 0) + len(found)
    share = np.concatenate(shares)
    weight = np.repeat([1.0 / max(of_problem[one.group.problem], 1) for one in rows], list(map(len, shares)))
    # A part that is hardly ever a twentieth of the whole cannot be told from the rest.
    common = np.exp(-np.median(np.log(np.maximum(share.sum(axis=1), 1e-12))))
    free = np.quantile(share * common, 0.9, axis=0) > _LEAST_SHARE
    most = MOST**OVERLAP if share.shape[1] == len(TIME) else MOST
    while True:
        found = _solved(share, weight, free)
        wild = free & ((found > most) | (found < 1.0 / most))
        if not wild.any():
            return found
        # What rows would have vanish or explode they do not tell: it keeps its coefficient.
        free &= ~wild


def _solved(share: Array, weight: Array, free: Array) -> Array:
    """The multipliers of the columns that are `free`, of least squared log error; the others are 1."""
    found = np.ones(share.shape[1])
    if not free.any():
        return found
    nnls = import_optional("scipy.optimize", "fitting a calibration", "train").nnls

    rest = share[:, ~free].sum(axis=1)
    found[free] = np.exp(-np.median(np.log(np.maximum(share.sum(axis=1), 1e-12))))
    for _ in range(_ROUNDS):
        ratio = np.clip(share @ found, 1e-3, 1e3)
        away = ratio - 1.0
        near = np.abs(away) < 1e-6
        slope = np.where(near, 1.0, np.log(ratio) / np.where(near, 1.0, ratio * away))
        columns, weights = share[:, free], weight * slope
        # Relative to what was found so far: what it is worth does not depend on how wrong the coefficient is.
        belief = _BELIEF / np.maximum(found[free], 1e-3) ** 2
        # Normal equations: as many columns as parts, however many rows there are.
        factor = np.linalg.cholesky((columns.T * weights) @ columns + np.diag(belief))
        found[free] = nnls(factor.T, np.linalg.solve(factor, columns.T @ (weights * (1.0 - rest)) + belief))[0]
    return found
