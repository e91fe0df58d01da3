"""How soon refining finds the best configs of many problems, replayed on recorded matrix products of two GPUs.

Each GPU in turn is the one that is refined, beginning with a model of the other GPU: boosted trees over the config, the
problem and what follows from both (waves, padding, traffic). `kernrec.model.search` decides what to measure; a
measurement is drawn between the fastest and the slowest recorded value. Beside it the same number of measurements is
spread evenly over the problems, chosen within each by the same rule.

How wrong predictions are is stated by folds over the problems of the other GPU, times a factor with which the regret
stated at first is that of the folds, times how much more the model of this GPU loses on the other one than on its own
problems. That ratio is the one number into which rows of the refined GPU enter: there is no third GPU to take it from.
`--leave-out-problems` trains without the problems that are refined. `--half 0` and `--half 1` evaluate problems that
share no shape. `--seeds 0` leaves out the table, `--stops 0` the runs that stop.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import typer
from front import DATA, Data, Table

from kernrec.model.search.joint_posterior import Contenders, JointPosterior, Measured
from kernrec.model.search.refinement import Costs, Refinement

from .transferred_models import CARDS, GAPS, MOST, TUNABLES, Recording, Transferred, grouped, read, transferred

Array = np.ndarray
BUDGETS = (0, 1, 2, 4)
"""Measurements a problem, on average."""
AIMS = (0.965, 0.98, 0.99, 0.995)
"""Mean efficiency that is aimed at after each of them."""
STOP_AT, STOP_PROBLEMS = 0.02, 60
_CHECKED_EVERY = 16
"""Measurements between two looks at the bound, as `refine` has it."""
NOISE = 0.01
_SCALED_ON = 300
"""Problems of the refined GPU whose stated regret, by predictions alone, sets the scale of the errors."""


def run(
    data: Data = DATA, problems: int = 300, seeds: int = 3, stops: int = 20,
    half: Annotated[int | None, typer.Option(min=0, max=1)] = None, leave_out_problems: bool = False,
) -> None:  # fmt: skip
    """Print a table for each GPU; `stops`: runs that stop by themselves; `half`: of the shapes; without it, all."""
    shapes: dict[tuple[int, ...], int] = {}
    recordings = {name: read(data / "triton" / f"inductor_mm_{name}.parquet", CARDS[name], shapes) for name in CARDS}
    pairs = [("a100", "h100"), ("h100", "a100")]
    models = {to: transferred(recordings[source], recordings[to], leave_out_problems) for source, to in pairs}
    for source, target in pairs:
        model, (own, elsewhere) = models[target], models[source].lost
        sampler = Sampler(recordings[target], model, half)
        sampler.state(model.lost[0] * elsewhere / own)
        evaluate(f"{target} from a model of the {source}", sampler, problems, seeds, stops)


@dataclass(frozen=True)
class Problem:
    """One problem to refine."""

    contenders: Contenders
    rows: Array
    """Row of each contender."""
    best_log_s: float
    """Of all recorded configs."""


class Sampler:
    """Draws problems of a recording."""

    def __init__(self, recording: Recording, model: Transferred, half: int | None) -> None:
        """Begin; half: of the shapes (0 or 1); None: all."""
        self.recording = recording
        self._model = model
        self._factor = 1.0
        groups = grouped(recording.problem)
        self._groups = [rows for rows in groups if half in (None, recording.shape[rows[0]] % 2)]
        table = recording.columns
        tunables = np.column_stack([recording.vendor, *(table[name] for name in TUNABLES)]).astype(float)
        one_hot = np.column_stack([column == value for column in tunables.T for value in np.unique(column)])
        sizes = np.column_stack([np.log2(table[name].astype(float)) for name in "mnk"])
        context = np.column_stack((np.ones(len(sizes)), (sizes - sizes.mean(axis=0)) / (2.0 * sizes.std(axis=0))))
        of_kernel = np.column_stack((recording.vendor, ~recording.vendor))
        self._shared, self._of_kernel = (
            (columns[:, :, None] * context[:, None, :]).reshape(len(sizes), -1)
            / np.sqrt(2.0 * columns.sum(axis=1)[:, None])
            for columns in (one_hot.astype(float), of_kernel.astype(float))
        )
        points = np.log2(1.0 + tunables)
        self._points = (points - points.mean(axis=0)) / points.std(axis=0) / np.sqrt(points.shape[1])

    def __len__(self) -> int:
        return len(self._groups)

    def state(self, regret: float) -> None:
        """Scale the errors of predictions so that this is the mean regret stated before anything is measured."""
        factors = np.geomspace(0.5, 8.0, 17)
        sample, stated = self.problems(_SCALED_ON, 0), []
        for factor in factors:
            scaled = [
                replace(c, deviation=factor * c.deviation, features=factor * c.features, of_kernel=factor * c.of_kernel)
                for c in (problem.contenders for problem in sample)
            ]
            stated.append(JointPosterior(scaled).mean_regret())
        self._factor = float(np.interp(regret, stated, factors))

    def problems(self, count: int, seed: int) -> list[Problem]:
        """A random sample of the recorded problems."""
        numbers = np.random.default_rng(seed).permutation(len(self._groups))[:count]
        return [self._problem(self._groups[number]) for number in numbers]

    def _problem(self, members: Array) -> Problem:
        predicted, error, recording = self._model.predicted, self._factor * self._model.error, self.recording
        above = predicted.above_best[members]
        level = np.average(predicted.log_s[members] - above, weights=np.exp(-5.0 * (above - above.min())))
        order = np.argsort(above)[:MOST]
        rows = members[order]
        deviation = np.interp(above[order] - above.min(), GAPS, error[:-1])
        features = np.column_stack((deviation[:, None] * self._shared[rows], error[-1] * self._of_kernel[rows]))
        contenders = Contenders(
            above[order] + level, deviation, features, self._points[rows], recording.vendor[rows].astype(int),
            float(error[-1]), inputs=recording.features[rows],
        )  # fmt: skip
        return Problem(contenders, rows, float(recording.log_s[members].min()))


@dataclass
class Curve:
    """Means over problems after each budget."""

    efficiency: list[float]
    regret: list[float]
    stated: list[float]
    measured: list[int]
    decision_s: float = 0.0
    """Processor time of a decision."""


def refine(recording: Recording, problems: list[Problem], seed: int, evenly: bool, until: float | None = None) -> Curve:
    """Refine; until: stop once the bound on the regret is below it, instead of after each budget."""
    draw = np.random.default_rng(seed)
    posterior = JointPosterior([problem.contenders for problem in problems], seed)
    policy = Refinement(posterior, Costs(0.0, 1.0), NOISE)
    curve, measured, spent_s = Curve([], [], [], []), 0, 0.0
    for budget in BUDGETS if until is None else (100,):
        while measured < budget * len(problems):
            if until is not None and measured % _CHECKED_EVERY == 0 and policy.below(until):
                break
            begin_s = time.process_time()
            others = set(range(len(problems))) - {measured % len(problems)} if evenly else ()
            if evenly:
                policy.look(measured % len(problems))
            visit = policy.next(without=others)
            if visit is None:
                measured += 1
                continue
            which, contender = visit.problem, visit.contenders[0]
            row = problems[which].rows[contender]
            policy.take(which, Measured(contender, drawn(recording, int(row), draw), NOISE))
            measured, spent_s = measured + 1, spent_s + time.process_time() - begin_s
        posterior.rescale()
        regret = true_regrets(recording, problems, posterior)
        curve.efficiency.append(float(np.exp(-regret).mean()))
        curve.regret.append(float(regret.mean()))
        curve.stated.append(posterior.mean_regret())
        curve.measured.append(measured)
    curve.decision_s = spent_s / max(1, measured)
    return curve


def drawn(recording: Recording, row: int, draw: np.random.Generator) -> float:
    """The logarithm of one measurement: between the recorded extremes, or with usual noise around a single value."""
    table, middle = recording.columns, recording.log_s[row]
    if table["repeats"][row] > 1:
        low, high = np.log(table["fastest_s"][row]), np.log(table["slowest_s"][row])
        return float(draw.triangular(low - 1e-9, np.clip(middle, low, high), high + 1e-9))
    return float(middle + 0.007 * draw.standard_normal())


def true_regrets(recording: Recording, problems: list[Problem], posterior: JointPosterior) -> Array:
    """By how much the present choice is slower than the best recorded config, in logarithms, (problems,)."""
    chosen = [problem.rows[posterior.choice(number)] for number, problem in enumerate(problems)]
    return recording.log_s[chosen] - [problem.best_log_s for problem in problems]


def evaluate(title: str, sampler: Sampler, count: int, seeds: int, stops: int) -> None:
    """Print the table of one GPU."""
    recording = sampler.recording
    samples = [sampler.problems(count, seed) for seed in range(seeds)]
    refined, even = (
        [refine(recording, sample, seed, evenly) for seed, sample in enumerate(samples)] for evenly in (False, True)
    )
    if seeds:
        table = Table(f"\n{title}: {len(samples[0])} of {len(sampler)} problems, {seeds} seeds; measurements a problem")
        rows: dict[str, Sequence[Any]] = {
            "mean efficiency, refine": [curve.efficiency for curve in refined],
            "mean efficiency, spread evenly": [curve.efficiency for curve in even],
            "aim": [AIMS],
            "true regret, refine, %": [100 * np.array(curve.regret) for curve in refined],
            "true regret, spread evenly, %": [100 * np.array(curve.regret) for curve in even],
            "stated regret, refine, %": [100 * np.array(curve.stated) for curve in refined],
        }
        for label, curves in rows.items():
            means = np.mean(curves, axis=0)
            table.row({"": label, **{str(k): f"{mean:.4g}" for k, mean in zip(BUDGETS, means, strict=True)}})
        milliseconds = 1e3 * np.mean([curve.decision_s for curve in refined])
        print(f"{milliseconds:.1f} ms of processor time a decision (aim 50)")
    if stops:
        few = min(count, STOP_PROBLEMS)
        print(f"{few} problems until the bound is {STOP_AT:.0%}: {stopped(sampler, few, stops)}", flush=True)


def stopped(sampler: Sampler, few: int, runs: int) -> str:
    """The results of runs that stop by themselves."""
    curves = [
        refine(sampler.recording, sampler.problems(few, seed), seed, False, STOP_AT) for seed in range(100, 100 + runs)
    ]
    regrets, stated, counts = (
        np.array([getattr(curve, name)[0] for curve in curves]) for name in ("regret", "stated", "measured")
    )
    return (
        f"true {regrets.mean():.2%}, at most {regrets.max():.2%}, stated {stated.mean():.2%}, "
        f"{counts.mean() / few:.1f} measurements a problem, kept in {(regrets <= STOP_AT).sum()} of {runs} runs"
    )
