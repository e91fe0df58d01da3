"""How long training takes, and how well the intervals hold, on simulated rows.

    python tools/bench_training.py [--rows 200000] [--threads 2]

The rows are simulated, and stand for nothing but their number and their columns: random inputs of candidates, and a
device that takes 1.4 times the prior's latency, a fifth more for each stage, a factor of its own (10 %) for each
problem, GPU and kernel, with 5 % of noise. Prints the time of `train` with all that it holds out (aim: 2 minutes for
200,000 rows on 2 cores); then, for fewer problems, coverage and mean width of the 90 % interval on fresh problems, on a
fresh GPU and on a fresh kernel (aim on problems: 88 to 93 %). Exits 1 when an aim is missed.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from kernrec.model.learn.features import ModelInputs
from kernrec.model.learn.model import Model
from kernrec.recommender.estimate.correction import interval_of
from kernrec.training import scores
from kernrec.training.boosting import TrainingSettings
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.train_model import train
from tests.helpers.groups import by_stages, simulated_groups

AIM_S = 120.0
COVERED = 0.88, 0.93
ROWS_A_PROBLEM = 500
SPREAD = 0.1
GPUS, KERNELS = ("rtx4090", "a100-sxm4-80gb"), ("one", "two")
TRAININGS = 6


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    problems = max(given.rows // ROWS_A_PROBLEM // (len(GPUS) * len(KERNELS)), 10)
    data = Dataset(tuple(simulated(problems, ROWS_A_PROBLEM, 0)))
    print(
        f"simulated: {len(data)} rows of {problems} problems, {len(GPUS)} GPUs and {len(KERNELS)} kernels,"
        f" {data.matrix.shape[1]} features"
    )
    start, busy = time.perf_counter(), time.process_time()
    model = train(data, TrainingSettings(threads=given.threads))
    seconds, processor_s = time.perf_counter() - start, time.process_time() - busy
    trees = {head: forest.trees for head, forest in model.forests.items()}
    print(f"train: {seconds:.1f} s ({processor_s:.1f} s of processor) with {given.threads} threads; trees {trees}")
    missed = seconds > AIM_S
    print(f"90 % interval of latency, mean over {TRAININGS} trainings of 20 rows a problem, GPU and kernel")
    for count in (12, 24):
        cells = []
        found = [stated(count, seed) for seed in range(TRAININGS)]
        for what in found[0]:
            covered, width = np.mean([one[what] for one in found], axis=0)
            cells.append(f"{what}: coverage {covered:.3f}, width {np.exp(width):.2f}")
            missed |= what == "fresh problems" and not COVERED[0] <= covered <= COVERED[1]
        print(f"  {count} problems   " + "   ".join(cells))
    return int(missed)


def stated(count: int, seed: int) -> dict[str, tuple[float, float]]:
    """(coverage, log width) of a model of `count` problems on what it has not seen."""
    model = train(Dataset(tuple(simulated(count, 20, seed))), TrainingSettings(threads=1))
    return {
        "fresh problems": judged(model, simulated(40, 20, seed, first=count)),
        "a fresh GPU": judged(model, simulated(20, 20, seed, gpus=("h200-sxm",), first=count)),
        "a fresh kernel": judged(model, simulated(20, 20, seed, kernels=("three",), first=count)),
    }


def judged(model: Model, groups: Iterator[RowGroup]) -> tuple[float, float]:
    """(coverage, log width) of the interval that a query states; means over groups."""
    inside, widths = [], []
    for group in groups:
        ratios, distance = model.log_ratio(model.rows(group.inputs))
        gpu = group.gpu if group.gpu in model.gpus else None
        interval = interval_of(model, "latency", gpu, group.kernel in model.kernels)
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
    """Groups of each problem, GPU and kernel, each of which has a factor of its own; latency alone in small ones."""
    for gpu in gpus:
        for kernel in kernels:
            draw = np.random.default_rng([seed, *map(ord, gpu + kernel)])
            some = simulated_groups(
                problems, rows, device(gpu, kernel, seed, first), 0.05, gpu, int(draw.integers(1_000_000))
            )
            for number, group in enumerate(some):
                power = group.energy_j if rows >= ROWS_A_PROBLEM else np.full(rows, np.nan)
                yield replace(group, kernel=kernel, problem=f"problem {first + number}", energy_j=power)


def device(gpu: str, kernel: str, seed: int, first: int) -> Callable[[ModelInputs], np.ndarray]:
    """A simulated device; asked about one problem after the other, from number `first` on."""

    def own(*what: object) -> float:
        return float(np.exp(np.random.default_rng([seed, *map(ord, str(what))]).normal(0.0, SPREAD)))

    asked = iter(range(first, first + 1_000_000))
    fixed = own("gpu", gpu) * own("kernel", kernel)
    return lambda inputs: by_stages(inputs) * fixed * own("problem", next(asked))


if __name__ == "__main__":
    sys.exit(main())
