"""Measure the time of training and the coverage of the intervals, on simulated rows.

The rows are simulated and say nothing about real devices: random candidates, and a device that takes 1.4 times the
prior's latency, a fifth more for each stage, a random factor (10 %) for each problem, GPU and kernel, and 5 % of noise.
Prints the time of `train` with its cross-validation (aim: 2 minutes for 200,000 rows on 2 cores); then, for fewer
problems, coverage and mean width of the 90 % interval on new problems, on a new GPU and on a new kernel (aim for
problems: 88 to 93 %). Exits 1 when an aim is missed.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from front import Table

from benchmarks.simulated_groups import by_stages, simulated_groups
from kernrec.model.learn.features import ModelInputs
from kernrec.model.learn.model import Model
from kernrec.recommender.estimate.correction import interval_of
from kernrec.training import scores
from kernrec.training.boosting import TrainingSettings
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.train_model import train

from .timing import spent

AIM_S = 120.0
"""Most seconds that training may take."""
COVERAGE_AIM = 0.88, 0.93
"""Range of the coverage on new problems."""
ROWS_PER_PROBLEM = 500
SPREAD = 0.1
"""Standard deviation of the log factors of problems, GPUs and kernels."""
GPUS, KERNELS = ("rtx4090", "a100-sxm4-80gb"), ("first", "second")
TRAININGS = 6
"""Trainings to average coverage over."""


def run(rows: int = 200_000, threads: int = 2) -> int:
    """Print the figures."""
    problems = max(rows // ROWS_PER_PROBLEM // (len(GPUS) * len(KERNELS)), 10)
    data = Dataset(tuple(simulated(problems, ROWS_PER_PROBLEM, 0)))
    print(
        f"simulated: {len(data)} rows of {problems} problems, {len(GPUS)} GPUs and {len(KERNELS)} kernels,"
        f" {data.matrix.shape[1]} features"
    )
    trained: list[Model] = []
    took = spent(lambda: trained.append(train(data, TrainingSettings(threads=threads))))
    trees = {head: forest.trees for head, forest in trained[0].forests.items()}
    print(f"train: {took.clock:.1f} s ({took.cpu:.1f} s of CPU time) with {threads} threads; trees {trees}")
    missed = took.clock > AIM_S
    table = Table(f"90 % interval of latency, mean over {TRAININGS} trainings of 20 rows per problem, GPU and kernel")
    for count in (12, 24):
        cells: dict[str, object] = {"problems": f"{count} in training"}
        results = [coverage_and_width(count, seed) for seed in range(TRAININGS)]
        for unseen in results[0]:
            covered, width = np.mean([result[unseen] for result in results], axis=0)
            cells |= {f"{unseen}: coverage": f"{covered:.3f}", f"width of {unseen}": float(np.exp(width))}
            missed |= unseen == "new problems" and not COVERAGE_AIM[0] <= covered <= COVERAGE_AIM[1]
        table.row(cells)
    return int(missed)


def coverage_and_width(count: int, seed: int) -> dict[str, tuple[float, float]]:
    """(coverage, log width) of a model of `count` problems on unseen problems, GPUs and kernels."""
    model = train(Dataset(tuple(simulated(count, 20, seed))), TrainingSettings(threads=1))
    return {
        "new problems": judged(model, simulated(40, 20, seed, first=count)),
        "a new GPU": judged(model, simulated(20, 20, seed, gpus=("h200-sxm",), first=count)),
        "a new kernel": judged(model, simulated(20, 20, seed, kernels=("third",), first=count)),
    }


def judged(model: Model, groups: Iterator[RowGroup]) -> tuple[float, float]:
    """(coverage, log width) of the interval that a query would state; means over groups."""
    inside, widths = [], []
    for group in groups:
        ratios, distance = model.log_ratio(model.rows(group.inputs))
        gpu = group.gpu if group.gpu in model.gpus else None
        interval = interval_of(model, "latency", gpu, group.dtype, group.kernel in model.kernels)
        low, high = interval.around(group.inputs.latency_s * np.exp(ratios["latency"]), distance)
        inside.append(scores.coverage(group.latency_s, low, high))
        widths.append(np.log(scores.mean_width(low, high)))
    return float(np.mean(inside)), float(np.mean(widths))


def simulated(
    problems: int,
    rows: int,
    seed: int,
    gpus: tuple[str, ...] = GPUS,
    kernels: tuple[str, ...] = KERNELS,
    first: int = 0,
) -> Iterator[RowGroup]:
    """Row groups of each problem, GPU and kernel, each with its own random factor; small groups have no energy."""
    for gpu in gpus:
        for kernel in kernels:
            draw = np.random.default_rng([seed, *map(ord, gpu + kernel)])
            groups = simulated_groups(
                problems, rows, device(gpu, kernel, seed, first), 0.05, gpu, int(draw.integers(1_000_000))
            )
            for number, group in enumerate(groups):
                power = group.energy_j if rows >= ROWS_PER_PROBLEM else np.full(rows, np.nan)
                yield replace(group, kernel=kernel, problem=f"problem {first + number}", energy_j=power)


def device(gpu: str, kernel: str, seed: int, first: int) -> Callable[[ModelInputs], np.ndarray]:
    """A simulated device; called for one problem after the other, from number `first` on."""

    def factor(*what: object) -> float:
        return float(np.exp(np.random.default_rng([seed, *map(ord, str(what))]).normal(0.0, SPREAD)))

    problems = iter(range(first, first + 1_000_000))
    fixed = factor("gpu", gpu) * factor("kernel", kernel)
    return lambda inputs: by_stages(inputs) * fixed * factor("problem", next(problems))
