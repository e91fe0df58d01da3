"""Compare how soon kernrec's search and Kernel Tuner find the best config, on completely measured spaces.

    python tools/compare_kernel_tuner.py [--data ../shared/data] [--repeats 20] [--spaces pnpoly,gemm-rtx3090]
                                         [--kept FOLDER] [--predictions] [--throughput 100]

Every recorded space is searched cold: nobody predicted anything. Without Kernel Tuner (`pip install kernel-tuner`) only
kernrec's results are printed. Kernel Tuner runs in simulation mode on the recordings, kernrec's searches on the same,
each measurement drawn with the noise of a median of ten recorded run times: Bayesian optimization
(`kernrec.model.search.expected_improvement`, which `kernrec collect` uses) and the genetic search
(`kernrec.model.search.genetic_search`). A figure is the best of the first k configs that ran over the optimum, both by
their recorded mean, the mean over repeats; configs that failed cost Kernel Tuner nothing here, and a search that ended
early keeps its last value. `--spaces` takes parts of names. `--kept` keeps what each search measured, so that the table
can be made in slices: what is there is not searched again.

`--predictions` begins with the prior instead, and with a model that was trained on the other GPU, on the two
convolutions. On a machine with an NVIDIA GPU, `--throughput N` measures N configs of one kernel with both and says how
many configs a second each got through (`tools/tuner_throughput.py`). Exits 0 without the recordings.
"""

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import recorded_clock
from kernel_tuner_simulation import STRATEGIES, simulate
from recorded_convolution import GPUS, Recorded, load

from kernrec.interop.read_results import read_results
from kernrec.model.search import expected_improvement
from kernrec.model.search.genetic_search import GeneticSearch
from kernrec.model.search.search_space import SearchSpace
from kernrec.store.connection import parquet_rows
from kernrec.training.boosting import TrainingSettings
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.train_model import train
from kernrec.util.atomic_write import write_whole

Array = np.ndarray
COUNTS = (20, 50, 100, 200)
SAMPLES = 10  # run times that a screening takes at least
INSTALLED = importlib.util.find_spec("kernel_tuner") is not None
_MOST_NOISE = 0.02  # some recorders kept a range that one slow launch has widened
_NO_TUNABLES = {
    "outcome", "latency_s", "latency_low_s", "latency_high_s", "runs", "nvml_energy", "core_freq", "mem_freq",
    "temperature", "num_regs",
}  # fmt: skip


@dataclass(frozen=True)
class Space:
    """One recording: the C configs that ran."""

    title: str
    names: tuple[str, ...]
    """The T tunables that vary."""
    tunables: Array
    """Their values, (C, T)."""
    time_s: Array
    """Mean time of each config, (C,)."""
    noise: Array
    """Standard deviation of the logarithm of a measurement of each, (C,)."""


def main() -> int:
    """Print a table for each space."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--repeats", type=int, default=20, help="searches to average over")
    parser.add_argument("--spaces", default="", help="parts of names, with commas; without it all")
    parser.add_argument("--kept", type=Path, help="folder that keeps what each search measured")
    parser.add_argument("--predictions", action="store_true", help="begin with predictions, on the two convolutions")
    parser.add_argument("--throughput", type=int, default=0, metavar="N", help="measure N configs with both on a GPU")
    arguments = parser.parse_args()
    if arguments.throughput:
        from tuner_throughput import compare

        return compare(arguments.throughput)
    folder = arguments.data / "spaces"
    if not folder.is_dir():
        print(f"no {folder}: nothing compared (--data names the folder of recorded data)")
        return 0
    if arguments.predictions:
        with_predictions(folder, arguments.repeats)
        return 0
    if not INSTALLED:
        print("Kernel Tuner is not installed (pip install kernel-tuner): only what is kept of it is printed")
    wanted = arguments.spaces.split(",")
    for path in sorted(folder.iterdir()):
        if any(part in path.name for part in wanted) and "static" not in path.name:
            cold(read(path), arguments.repeats, arguments.kept)
    return 0


def cold(space: Space, repeats: int, kept: Path | None) -> None:
    """Print the table of a space that nobody predicted."""
    header(space)
    seeds = range(repeats)
    searches: dict[str, Callable[[], list[list[int]]]] = {
        "kernrec": lambda: [search(space, None, seed) for seed in seeds],
        "kernrec, genetic": lambda: [genetic(space, seed) for seed in seeds],
    }
    for strategy in STRATEGIES if INSTALLED or kept else ():
        searches[f"Kernel Tuner, {strategy}"] = lambda strategy=strategy: [  # type: ignore[misc]
            run for it in simulate(space.tunables, space.time_s, [strategy], max(COUNTS), repeats) for run in it.runs
        ]
    for label, made in searches.items():
        file = None if kept is None else kept / f"{space.title}.{label.replace(', ', '.')}.{repeats}.json"
        begin_s = time.process_time()
        if file is not None and file.exists():
            runs, seconds = json.loads(file.read_text())
        elif "Kernel Tuner" in label and not INSTALLED:
            continue
        else:
            runs = made()
            seconds = (time.process_time() - begin_s) / repeats
            if file is not None and runs:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(file, json.dumps((runs, seconds)).encode())
        if runs:
            line(label, np.mean([_curve(space, run) for run in runs], axis=0), seconds)


def with_predictions(folder: Path, repeats: int) -> None:
    """Print tables of searches that begin with predictions."""
    recorded = load(folder)
    for name in GPUS:
        space = read(folder / f"convolution-{name}.t4.json.gz")
        header(space)
        prior, trained = predictions(space, recorded, name)
        line("prior only", *searched(space, prior, repeats))
        line("trained on the other GPU", *searched(space, trained, repeats))
        line("  the same, scoring offspring only", *searched(space, trained, repeats, bred=True))


def read(path: Path) -> Space:
    """The configs of a file that ran; of a recording whose card changed its clock, those at one clock."""
    table = _parquet(path) if path.suffix == ".parquet" else _results(path)
    varied = {name: column for name, column in table[0].items() if len(np.unique(column)) > 1}
    tunables = np.column_stack(list(varied.values()))
    _, first = np.unique(tunables, axis=0, return_index=True)
    order = np.sort(first)
    return Space(path.name.split(".")[0], tuple(varied), tunables[order], table[1][order], table[2][order])


_Table = tuple[dict[str, Array], Array, Array]
"""(columns of tunables, mean times, noise)."""


def _results(path: Path) -> _Table:
    ran = [result for result in read_results(path).results if result.samples_s]
    if path.name.startswith("convolution-a100"):
        recording = recorded_clock.read(path)
        raised = {
            frozenset(config.items())
            for config, is_raised in zip(recording.configs, recorded_clock.raised(recording), strict=True)
            if is_raised
        }
        ran = [result for result in ran if frozenset(result.config.items()) not in raised]
    columns = {name: np.array([float(result.config[name]) for result in ran]) for name in ran[0].config}
    noise = np.array([np.std(np.log(result.samples_s)) for result in ran]) / np.sqrt(SAMPLES)
    return columns, np.array([np.mean(result.samples_s) for result in ran]), np.minimum(noise, _MOST_NOISE)


def _parquet(path: Path) -> _Table:
    with parquet_rows(path) as (connection, source):
        rows = connection.execute(f"FROM {source} WHERE latency_s > 0").fetchnumpy()
    table = {name: np.ma.filled(column, 0) for name, column in rows.items()}
    ran = table["outcome"] == "ok" if "outcome" in table else np.ones(len(table["latency_s"]), dtype=bool)
    columns = {
        name: np.unique(column[ran], return_inverse=True)[1].astype(float)
        if column.dtype.kind == "O"
        else column[ran].astype(float)
        for name, column in table.items()
        if name not in _NO_TUNABLES
    }
    spread = np.log(table["latency_high_s"][ran] / table["latency_low_s"][ran]) / SAMPLES
    return columns, table["latency_s"][ran], np.minimum(spread, _MOST_NOISE)


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
    while len(seen) < min(max(COUNTS), len(space.tunables)):
        order = next_configs.order(np.array(seen, dtype=np.int64), np.array(measured_s))
        for i in order[: next_configs.batch(len(seen))].tolist():
            seen.append(i)
            measured_s.append(drawn_s(space, i, draw))
    return seen[: max(COUNTS)]


def genetic(space: Space, seed: int) -> list[int]:
    """The configs that the genetic search measures, in order."""
    draw, steps = np.random.default_rng(seed), GeneticSearch(SearchSpace(space.tunables, seed=seed), (1.0, 0.0), seed)
    while len(steps.latency_s) < max(COUNTS) and (configs := steps.latency_round()):
        for config in configs:
            steps.tell_latency(config, drawn_s(space, config, draw))
    return list(steps.latency_s)[: max(COUNTS)]


def drawn_s(space: Space, config: int, draw: np.random.Generator) -> float:
    """One measurement."""
    return float(space.time_s[config] * np.exp(space.noise[config] * draw.standard_normal()))


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
