"""Compare how soon kernrec's search and Kernel Tuner find the best config, on completely measured spaces.

    python tools/compare_kernel_tuner.py [--data ../shared/data] [--repeats 10] [--throughput 100]

Without Kernel Tuner (`pip install kernel-tuner`) only kernrec's results are printed. Kernel Tuner runs in simulation
mode on the recordings, kernrec's search (`kernrec.model.search.expected_improvement`, which `kernrec collect` uses)
on the same, each measurement the median of ten of the recorded run times. A figure is the best of the first k configs
that ran over the optimum, both by their recorded mean, the mean over repeats; configs that failed cost Kernel Tuner
nothing here.

On a machine with an NVIDIA GPU, `--throughput N` measures N configs of one kernel with both and says how many configs a
second each got through (`tools/tuner_throughput.py`). Exits 0 without the recordings.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kernel_tuner_simulation import STRATEGIES, simulate
from recorded_convolution import GPUS, Recorded, load

from kernrec.interop.read_results import read_results
from kernrec.model.search import expected_improvement
from kernrec.training.boosting import TrainingSettings
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.train_model import train

Array = np.ndarray
COUNTS = (20, 50, 100, 200)
SAMPLES = 10  # run times that a screening takes at least


@dataclass(frozen=True)
class Space:
    """One recording: the C configs that ran, in the order of the file."""

    title: str
    """Name of the GPU, or of the problem and the GPU."""
    names: tuple[str, ...]
    """The T tunables that vary."""
    tunables: Array
    """Their values, (C, T)."""
    samples_s: Array
    """Recorded run times, (C, S)."""

    @property
    def time_s(self) -> Array:
        """Mean time of each config, (C,)."""
        return self.samples_s.mean(axis=1)


def main() -> int:
    """Print a table for each space."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--repeats", type=int, default=10, help="searches to average over")
    parser.add_argument("--throughput", type=int, default=0, metavar="N", help="measure N configs with both on a GPU")
    arguments = parser.parse_args()
    if arguments.throughput:
        from tuner_throughput import compare

        return compare(arguments.throughput)
    folder = arguments.data / "spaces"
    if not folder.is_dir():
        print(f"no {folder}: nothing compared (--data names the folder of recorded data)")
        return 0
    recorded = load(folder)
    spaces = {name: read(folder / f"convolution-{name}.t4.json.gz", recorded[name].gpu.title) for name in GPUS}
    for name, space in spaces.items():
        header(space)
        theirs(space, arguments.repeats)
        prior, trained = predictions(space, recorded, name)
        line("kernrec, without predictions", *searched(space, None, arguments.repeats))
        line("kernrec, prior only", *searched(space, prior, arguments.repeats))
        line("kernrec, trained on the other GPU", *searched(space, trained, arguments.repeats))
        line("  the same, scoring offspring only", *searched(space, trained, arguments.repeats, bred=True))
    gemm = read(folder / "gemm-rtx3090.kernel_tuner.json.gz", "matmul, RTX 3090")
    header(gemm)
    theirs(gemm, arguments.repeats)
    line("kernrec, without predictions", *searched(gemm, None, arguments.repeats))
    return 0


def read(path: Path, title: str) -> Space:
    """The configs of a file that ran successfully."""
    ran = [result for result in read_results(path).results if result.samples_s]
    names = [name for name in ran[0].config if len({result.config[name] for result in ran}) > 1]
    return Space(
        title,
        tuple(names),
        np.array([[float(result.config[name]) for name in names] for result in ran]),
        np.array([result.samples_s for result in ran]),
    )


def predictions(space: Space, recorded: dict[str, Recorded], name: str) -> tuple[Array, Array]:
    """(the prior's times, those of a model trained on the other GPU's space), each (C,); NaN where unknown."""
    here, (other,) = recorded[name], [recorded[key] for key in recorded if key != name]
    unknown = np.full(len(other), np.nan)
    group = RowGroup("other", "recorded", "convolution", "kernel_tuner", "", other.inputs, other.time_s, unknown)
    model = train(Dataset((group,)), TrainingSettings(threads=1))
    prior = here.limited.latency_s
    trained = prior * np.exp(model.log_ratio(model.rows(here.inputs))[0]["latency"])
    rows = zip(*(here.inputs.tunables[key].tolist() for key in space.names), strict=True)
    place = {row: i for i, row in enumerate(rows)}
    position = np.array([place.get(tuple(row), -1) for row in space.tunables.tolist()])
    return tuple(np.where(position < 0, np.nan, values[position]) for values in (prior, trained))  # type: ignore[return-value]


def searched(space: Space, predicted_s: Array | None, repeats: int, bred: bool = False) -> tuple[Array, float]:
    """(best over optimum after each of `COUNTS`, CPU seconds per search) of kernrec's search.

    bred: it scores offspring of measured configs only, as in a space too large to score whole.
    """
    before, start = expected_improvement.SCORED, time.process_time()
    expected_improvement.SCORED = 0 if bred else before
    try:
        curves = [_curve(space, search(space, predicted_s, seed)) for seed in range(repeats)]
    finally:
        expected_improvement.SCORED = before
    return np.mean(curves, axis=0), (time.process_time() - start) / repeats


def search(space: Space, predicted_s: Array | None, seed: int) -> list[int]:
    """The configs that one search measures, in order."""
    draw = np.random.default_rng(seed)
    next_configs = expected_improvement.ExpectedImprovement(space.tunables, predicted_s, seed)
    seen: list[int] = []
    measured_s: list[float] = []
    while len(seen) < max(COUNTS):
        order = next_configs.order(np.array(seen, dtype=np.int64), np.array(measured_s))
        for i in order[: next_configs.batch(len(seen))].tolist():
            seen.append(i)
            measured_s.append(float(np.median(draw.choice(space.samples_s[i], SAMPLES))))
    return seen


def theirs(space: Space, repeats: int) -> None:
    """Print a line for each of Kernel Tuner's strategies."""
    for it in simulate(space.tunables, space.time_s, STRATEGIES, max(COUNTS), repeats):
        line(f"Kernel Tuner, {it.strategy}", np.mean([_curve(space, run) for run in it.runs], axis=0), it.cpu_s)


def _curve(space: Space, seen: list[int]) -> list[float]:
    """The best of the first k over the optimum, for each of `COUNTS`; an early end keeps the last value."""
    best = np.minimum.accumulate(space.time_s[seen]) / space.time_s.min()
    return [float(best[min(count, len(best)) - 1]) for count in COUNTS]


def header(space: Space) -> None:
    """Print the head of a table."""
    print(f"\n{space.title}: {len(space.tunables)} configs; best / optimum after", *COUNTS, "measured")


def line(label: str, curve: Array, seconds: float) -> None:
    """Print one line of a table."""
    print(f"  {label:36}{'  '.join(f'{value:.2f}' for value in curve)}   {seconds:6.2f} s of CPU", flush=True)


if __name__ == "__main__":
    sys.exit(main())
