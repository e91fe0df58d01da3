"""How soon refining finds the best configs of many problems, replayed on recorded matrix products of two GPUs.

    python tools/evaluate_refine.py [--data ../shared/data] [--problems 300] [--seeds 3] [--stops 20]

Each GPU in turn is the one that is refined, beginning with a model of the other GPU: boosted trees over the config, the
problem and what follows from both (waves, padding, traffic). `kernrec.model.search` decides what to measure; a
measurement is drawn between the fastest and the slowest recorded value. Beside it the same number of measurements is
spread evenly over the problems, chosen within each by the same rule.

How wrong predictions are is stated by folds over the problems of the other GPU, times how much more wrong the model of
this GPU is on the other one than on its own problems: nothing of the rows that are refined enters.
`--leave-out-problems` trains without the problems that are refined, too. Exits 0 without the recordings.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.model.search.joint_posterior import DEGREES, Contenders, JointPosterior, Measured
from kernrec.model.search.refinement import Costs, Refinement
from kernrec.store.connection import parquet_rows

Array = np.ndarray
BUDGETS = (0, 1, 2, 4)
"""Measurements a problem, on average."""
AIMS = (0.965, 0.98, 0.99, 0.995)
"""Mean efficiency that is aimed at after each of them."""
STOP_AT, STOP_PROBLEMS = 0.02, 60
NOISE = 0.01
MOST = 24
"""Contenders of a problem."""
_TUNABLES = ("block_m", "block_n", "block_k", "num_stages", "num_warps")
_SHAPE = ("m", "n", "k", "dtype", "a_stride_0", "a_stride_1", "b_stride_0", "b_stride_1", "tf32")
_FOLDS, _ROUNDS, _MODELS = 3, 120, 4
"""Folds of the problems, trees of a model, and models that a prediction is the mean of."""
_MEDIAN = 0.7407
"""Of the absolute value of a Student's t of four degrees of freedom."""
_GAPS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Predicted distances from the best config, in logarithms, at which the error of predictions is estimated."""


@dataclass(frozen=True)
class Card:
    """What predictions need to know of a GPU."""

    sms: int
    flops: float
    """Of f16 matrix products, a second."""
    bandwidth: float
    shared_bytes: float


CARDS = {
    # Data sheets; the bandwidth of the H100 is that of the recorded card (shared/data/README.md).
    "a100": Card(108, 312e12, 1555e9, 164e3),
    "h100": Card(132, 700e12, 2400e9, 227e3),
}


@dataclass(frozen=True)
class Recording:
    """The rows of one GPU."""

    columns: dict[str, Array]
    features: Array
    """(rows, features)."""
    log_s: Array
    roofline: Array
    """Log of the least time by data sheet, (rows,)."""
    problem: Array
    """Number of each row's problem."""
    shape: Array
    """Number of each row's (m, n, k), the same on all GPUs."""

    @property
    def vendor(self) -> Array:
        """Whether a row is of the vendor's library."""
        return np.asarray(self.columns["implementation"] == "extern_mm")

    def above_best(self) -> Array:
        """Log time over that of the problem's best config, (rows,)."""
        best = np.full(self.problem.max() + 1, np.inf)
        np.minimum.at(best, self.problem, self.log_s)
        return self.log_s - best[self.problem]


@dataclass(frozen=True)
class Predicted:
    """What a model says of rows."""

    above_best: Array
    log_s: Array


def main() -> int:
    """Print a table for each GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--stops", type=int, default=20, help="runs that stop by themselves")
    parser.add_argument("--leave-out-problems", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.data / "triton"
    if not folder.is_dir():
        print(f"no {folder}: nothing evaluated (--data names the folder of recorded data)")
        return 0
    shapes: dict[tuple[int, ...], int] = {}
    recordings = {name: read(folder / f"inductor_mm_{name}.parquet", CARDS[name], shapes) for name in CARDS}
    pairs = [("a100", "h100"), ("h100", "a100")]
    models = {}
    for source, target in pairs:
        models[target] = transferred(recordings[source], recordings[target], arguments.leave_out_problems)
    for source, target in pairs:
        predicted, own_error, _ = models[target]
        _, other_own, other_elsewhere = models[source]
        factor = float(np.median(other_elsewhere / other_own))
        evaluate(f"{target} from a model of the {source}", recordings[target], predicted, factor * own_error, arguments)
    return 0


def read(path: Path, card: Card, shapes: dict[tuple[int, ...], int]) -> Recording:
    """The rows of a file that ran."""
    with parquet_rows(path) as (connection, source):
        columns = connection.execute(f"FROM {source} WHERE latency_s IS NOT NULL").fetchnumpy()
    table = {name: np.ma.filled(column, 0) for name, column in columns.items()}
    problems: dict[tuple[Any, ...], int] = {}
    keys = zip(*(table[name].tolist() for name in _SHAPE), strict=True)
    numbers = [(problems.setdefault(key, len(problems)), shapes.setdefault(key[:3], len(shapes))) for key in keys]
    problem, shape = np.array(numbers).T
    features, roofline = features_of(table, card)
    return Recording(table, features, np.log(table["latency_s"]), roofline, problem, shape)


def features_of(table: dict[str, Array], card: Card) -> tuple[Array, Array]:
    """(features (rows, F), log of the roofline's time (rows,))."""
    m, n, k = (table[name].astype(float) for name in "mnk")
    vendor = table["implementation"] == "extern_mm"
    tile_m, tile_n, tile_k, stages, warps = (
        np.where(vendor, usual, table[name]).astype(float)
        for name, usual in zip(_TUNABLES, (128, 128, 32, 3, 4), strict=True)
    )
    single, tf32 = table["dtype"] == "float32", table["tf32"].astype(bool)
    size = np.where(single, 4.0, 2.0)
    peak = np.where(single & ~tf32, card.flops / 16, np.where(single, card.flops / 2, card.flops))
    compulsory = (m * k + k * n + m * n) * size
    roofline = np.maximum(2 * m * n * k / peak, compulsory / card.bandwidth)
    blocks, trips = np.ceil(m / tile_m) * np.ceil(n / tile_n), np.ceil(k / tile_k)
    staged = (tile_m + tile_n) * tile_k * size * np.maximum(stages - 1, 1)
    registers = np.minimum(tile_m * tile_n / (warps * 32) + 40, 255)
    limits = np.floor(card.shared_bytes / staged), np.floor(65536 / (registers * warps * 32)), 64 / warps
    resident = np.minimum.reduce([np.maximum(limit, 1) for limit in limits])
    waves, waves_alone = blocks / (card.sms * resident), blocks / card.sms
    compute = np.ceil(waves_alone) * 2 * tile_m * tile_n * tile_k * trips / (peak / card.sms)
    traffic = blocks * (tile_m + tile_n) * tile_k * trips * size / (3 * card.bandwidth)
    in_flight = np.minimum(blocks, card.sms) * np.minimum(resident, np.maximum(1, waves_alone)) * staged
    padded = np.ceil(m / tile_m) * tile_m * np.ceil(n / tile_n) * tile_n * trips * tile_k
    logs = [m, n, k, tile_m, tile_n, tile_k, warps, waves, waves_alone, trips, padded / (m * n * k), blocks, staged]
    logs += [resident, in_flight, 2 * m * n * k / compulsory, compute / roofline, traffic / roofline]
    logs += [np.maximum(np.maximum(compute, traffic), trips * 1e-6) / roofline]
    plain = [vendor, stages, single & ~tf32, tf32, size, np.ceil(waves) / waves, np.ceil(waves_alone) / waves_alone]
    plain += [registers, resident * warps, table["a_stride_0"] == 1, table["b_stride_0"] == 1, m % 8 == 0, n % 8 == 0]
    plain += [k % 8 == 0, k % tile_k == 0, np.minimum(m / tile_m, 1), np.minimum(n / tile_n, 1)]
    columns = [np.log2(value) for value in logs] + [np.asarray(value, dtype=float) for value in plain]
    return np.column_stack(columns), np.log(roofline)


def fitted(recording: Recording, rows: Array, inputs: Array) -> Predicted:
    """The predictions for features `at` (N, F + 1, the last one the log of the roofline) by a model of some rows."""
    import xgboost

    above = recording.above_best()[rows]
    weight = np.exp(-2.0 * above) + 0.05  # ranking the fast ones is the job
    settings = {
        "max_depth": 6, "eta": 0.15, "subsample": 0.7, "colsample_bytree": 0.5, "min_child_weight": 5,
        "max_bin": 64, "nthread": 1,
    }  # fmt: skip
    predictions, features = [], xgboost.DMatrix(inputs[:, :-1])
    for wanted in (np.minimum(above, 1.5), (recording.log_s - recording.roofline)[rows]):
        data = xgboost.DMatrix(recording.features[rows], wanted, weight=weight)
        models = [xgboost.train(settings | {"seed": seed}, data, _ROUNDS) for seed in range(_MODELS)]
        predictions.append(np.mean([model.predict(features) for model in models], axis=0))
    return Predicted(predictions[0], predictions[1] + inputs[:, -1])


def transferred(source: Recording, target: Recording, leave_out: bool) -> tuple[Predicted, Array, Array]:
    """(what the model of one GPU says of another's rows, its `errors` on its own GPU, its `errors` there)."""
    allowed = ~np.isin(source.shape, target.shape) if leave_out else np.ones(len(source.log_s), dtype=bool)
    inputs = np.column_stack((target.features, target.roofline))
    predicted = fitted(source, np.flatnonzero(allowed), inputs)
    own = np.column_stack((source.features, source.roofline))
    held_out = np.full((2, len(source.log_s)), np.nan)
    for fold in range(_FOLDS):
        inside = np.flatnonzero(allowed & (source.shape % _FOLDS == fold))
        outside = np.flatnonzero(allowed & (source.shape % _FOLDS != fold))
        part = fitted(source, outside, own[inside])
        held_out[:, inside] = part.above_best, part.log_s
    return (
        predicted,
        errors(source, Predicted(*held_out), np.flatnonzero(allowed)),
        errors(target, predicted, np.arange(len(target.log_s))),
    )


def errors(recording: Recording, predicted: Predicted, rows: Array) -> Array:
    """What is stated of the errors of predictions relative to the problem's: by `_GAPS`, and last of whole kernels.

    There are two kernels, Triton's and the vendor's. Errors have long tails. What is stated is the standard deviation
    of the Student's t with their median.
    """
    gaps, residuals, of_vendor = [], [], []
    for members in grouped(recording.problem[rows]):
        chosen = rows[members][np.argsort(predicted.above_best[rows[members]])[:MOST]]
        above = predicted.above_best[chosen]
        weight = np.exp(-5.0 * (above - above.min()))
        residual = recording.log_s[chosen] - above
        vendor = recording.vendor[chosen]
        residual -= np.average(residual[~vendor], weights=weight[~vendor])
        gaps.append((above - above.min())[~vendor])
        residuals.append(residual[~vendor])
        of_vendor += residual[vendor].tolist()
    gap, residual = np.concatenate(gaps), np.concatenate(residuals)
    parts = [residual[(gap >= low) & (gap < high)] for low, high in pairwise((*_GAPS, np.inf))]
    # The difference of two kernels is wider than the error of each.
    parts.append(np.array(of_vendor) / np.sqrt(2.0))
    return np.array([np.median(np.abs(part)) for part in parts]) / _MEDIAN * np.sqrt(DEGREES / (DEGREES - 2.0))


def grouped(numbers: Array, least: int = 10) -> list[Array]:
    """The positions of each number that occurs at least so often."""
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    return [part for part in np.split(order, starts[1:]) if len(part) >= least]


@dataclass(frozen=True)
class Problem:
    """One problem to refine."""

    contenders: Contenders
    rows: Array
    """Row of each contender."""
    best_log_s: float
    """Of all recorded configs."""


def problems_of(recording: Recording, predicted: Predicted, error: Array, count: int, seed: int) -> list[Problem]:
    """A random sample of the recorded problems; error: as of `errors`."""
    table = recording.columns
    tunables = np.column_stack([recording.vendor, *(table[name] for name in _TUNABLES)]).astype(float)
    one_hot = np.column_stack([column == value for column in tunables.T for value in np.unique(column)]).astype(float)
    sizes = np.column_stack([np.log2(table[name].astype(float)) for name in "mnk"])
    context = np.column_stack((np.ones(len(sizes)), (sizes - sizes.mean(axis=0)) / (2.0 * sizes.std(axis=0))))
    of_kernel = np.column_stack((recording.vendor, ~recording.vendor)).astype(float)
    shared, of_kernel = (
        (columns[:, :, None] * context[:, None, :]).reshape(len(sizes), -1)
        / np.sqrt(2.0 * columns.sum(axis=1)[:, None])
        for columns in (one_hot, of_kernel)
    )
    points = np.log2(1.0 + tunables)
    points = (points - points.mean(axis=0)) / points.std(axis=0) / np.sqrt(points.shape[1])
    groups = grouped(recording.problem)
    result = []
    for number in np.random.default_rng(seed).permutation(len(groups))[:count]:
        members = groups[number]
        above = predicted.above_best[members]
        level = np.average(predicted.log_s[members] - above, weights=np.exp(-5.0 * (above - above.min())))
        order = np.argsort(above)[:MOST]
        rows = members[order]
        deviation = np.interp(above[order] - above.min(), _GAPS, error[:-1])
        features = np.column_stack((deviation[:, None] * shared[rows], error[-1] * of_kernel[rows]))
        contenders = Contenders(
            above[order] + level, deviation, features, points[rows], recording.vendor[rows].astype(int),
            float(error[-1]), inputs=recording.features[rows],
        )  # fmt: skip
        result.append(Problem(contenders, rows, float(recording.log_s[members].min())))
    return result


@dataclass
class Curve:
    """Means over problems after each budget."""

    efficiency: list[float]
    regret: list[float]
    stated: list[float]
    decision_s: float = 0.0
    """Processor time of a decision."""


def run(recording: Recording, problems: list[Problem], seed: int, evenly: bool, until: float | None = None) -> Curve:
    """Refine; until: stop once the bound on the regret is below it, instead of after each budget."""
    draw = np.random.default_rng(seed)
    posterior = JointPosterior([problem.contenders for problem in problems], seed)
    policy = Refinement(posterior, Costs(0.0, 1.0), NOISE)
    curve, measured, spent_s = Curve([], [], []), 0, 0.0
    for budget in BUDGETS if until is None else (100,):
        while measured < budget * len(problems):
            if until is not None and measured % 25 == 0:
                posterior.rescale()
                if posterior.regret_bound() <= until:
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


def evaluate(title: str, recording: Recording, predicted: Predicted, error: Array, arguments: Any) -> None:
    """Print the table of one GPU."""
    count, seeds = arguments.problems, arguments.seeds
    samples = [problems_of(recording, predicted, error, count, seed) for seed in range(seeds)]
    refined, even = (
        [run(recording, sample, seed, evenly) for seed, sample in enumerate(samples)] for evenly in (False, True)
    )
    print(f"\n{title}: {len(samples[0])} problems, {seeds} seeds; measurements a problem")
    print(f"  {'':34}" + "".join(f"{budget:>9}" for budget in BUDGETS))
    show("mean efficiency, refine", [curve.efficiency for curve in refined])
    show("mean efficiency, spread evenly", [curve.efficiency for curve in even])
    print(f"  {'aim':34}" + "".join(f"{aim:>9}" for aim in AIMS))
    show("true regret, refine, %", [[100 * value for value in curve.regret] for curve in refined])
    show("true regret, spread evenly, %", [[100 * value for value in curve.regret] for curve in even])
    show("stated regret, refine, %", [[100 * value for value in curve.stated] for curve in refined])
    milliseconds = 1e3 * np.mean([curve.decision_s for curve in refined])
    print(f"  {milliseconds:.1f} ms of processor time a decision (aim 50)")
    few = min(count, STOP_PROBLEMS)
    stopped = []
    for seed in range(100, 100 + arguments.stops):
        sample = problems_of(recording, predicted, error, few, seed)
        stopped.append(run(recording, sample, seed, False, STOP_AT).regret[0])
    kept = sum(regret <= STOP_AT for regret in stopped)
    if stopped:
        print(f"  {few} problems until the bound is {STOP_AT:.0%}: true {np.mean(stopped):.2%}, kept in {kept} runs")


def show(label: str, curves: list[list[float]]) -> None:
    """Print the mean of some curves."""
    print(f"  {label:34}" + "".join(f"{value:>9.4g}" for value in np.mean(curves, axis=0)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
