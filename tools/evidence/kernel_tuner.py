"""How soon kernrec's search and Kernel Tuner find the best config, on completely measured spaces.

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
many configs a second each got through (`throughput.py`).
"""

import importlib.util
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import numpy as np
import typer
from front import DATA, Data, Table

from evidence.recordings.convolution import GPUS, Recorded, load
from evidence.recordings.files import present
from kernrec.model.search import expected_improvement
from kernrec.model.search.genetic_search import GeneticSearch
from kernrec.model.search.search_space import SearchSpace
from kernrec.training.boosting import TrainingSettings
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.train_model import train
from kernrec.util.atomic_write import write_whole

from .recorded_spaces import Space, read_space
from .simulated_tuner import STRATEGIES, simulate

Array = np.ndarray
COUNTS = (20, 50, 100, 200)
SAMPLES = 10  # run times that a screening takes at least
INSTALLED = importlib.util.find_spec("kernel_tuner") is not None
_MOST_NOISE = 0.02  # some recorders kept a range that one slow launch has widened


def run(
    data: Data = DATA, repeats: int = 20, spaces: str = "", predictions: bool = False, throughput: int = 0,
    keeping: Annotated[Path | None, typer.Option("--kept")] = None,
) -> int:  # fmt: skip
    """Print a table for each space.

    Args:
        data: folder of recordings.
        repeats: searches to average over.
        spaces: parts of names, with commas; without it all.
        keeping: folder that keeps what each search measured.
        predictions: begin with predictions, on the two convolutions.
        throughput: measure so many configs with both on a GPU.
    """
    if throughput:
        from .throughput import compare

        return compare(throughput)
    folder = present(data / "spaces")
    if predictions:
        with_predictions(folder, repeats)
        return 0
    if not INSTALLED:
        print("Kernel Tuner is not installed (pip install kernel-tuner): only earlier results of it are printed")
    for path in sorted(folder.iterdir()):
        if any(part in path.name for part in spaces.split(",")) and "static" not in path.name:
            cold(read_space(path).distinct(), repeats, keeping)
    return 0


def cold(space: Space, repeats: int, keeping: Path | None) -> None:
    """Print the table of a space that nobody predicted."""
    table = heading(space)
    searches: dict[str, Callable[[], list[list[int]]]] = {
        "kernrec": lambda: [search(space, None, seed) for seed in range(repeats)],
        "kernrec, genetic": lambda: [genetic(space, seed) for seed in range(repeats)],
    }
    for strategy in STRATEGIES if INSTALLED or keeping else ():
        searches[f"Kernel Tuner, {strategy}"] = partial(_simulated, space, strategy, repeats)
    for label, searched in searches.items():
        file = None if keeping is None else keeping / f"{space.title}.{label.replace(', ', '.')}.{repeats}.json"
        begin_s = time.process_time()
        if file is not None and file.exists():
            runs, seconds = json.loads(file.read_text())
        elif "Kernel Tuner" in label and not INSTALLED:
            continue
        else:
            runs = searched()
            seconds = (time.process_time() - begin_s) / repeats
            if file is not None and runs:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(file, json.dumps((runs, seconds)).encode())
        if runs:
            curve_row(table, label, space, runs, seconds)


def _simulated(space: Space, strategy: str, repeats: int) -> list[list[int]]:
    simulated = simulate(space.tunables, space.measured["latency_s"], [strategy], max(COUNTS), repeats)
    return [measured for searched in simulated for measured in searched.runs]


def with_predictions(folder: Path, repeats: int) -> None:
    """Print tables of searches that begin with predictions."""
    recorded = load(folder)
    for name in GPUS:
        space = read_space(folder / f"convolution-{name}.t4.json.gz").distinct()
        table = heading(space)
        prior, trained = predicted(space, recorded, name)
        # Where it scores offspring of measured configs only, as in a space too large to score whole.
        bred = patch.object(expected_improvement, "SCORED", 0)
        for label, predicted_s in {"prior only": prior, "trained on the other GPU": trained}.items():
            searched_row(table, label, space, predicted_s, repeats)
        with bred:
            searched_row(table, "  scoring offspring only", space, trained, repeats)


def predicted(space: Space, recorded: dict[str, Recorded], name: str) -> tuple[Array, Array]:
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
    there = position >= 0
    return np.where(there, prior[position], np.nan), np.where(there, trained[position], np.nan)


def searched_row(table: Table, label: str, space: Space, predicted_s: Array, repeats: int) -> None:
    """Add the row of kernrec's search with predictions."""
    begin_s = time.process_time()
    runs = [search(space, predicted_s, seed) for seed in range(repeats)]
    curve_row(table, label, space, runs, (time.process_time() - begin_s) / repeats)


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
    measured = space.measured
    if (spread := measured.get("log_deviation")) is not None:
        noise = spread[config] / np.sqrt(SAMPLES)
    else:
        noise = np.log(measured["latency_high_s"][config] / measured["latency_low_s"][config]) / SAMPLES
    return float(measured["latency_s"][config] * np.exp(np.minimum(noise, _MOST_NOISE) * draw.standard_normal()))


def best_after(space: Space, runs: list[list[int]]) -> Array:
    """The best of the first k over the optimum, (runs, `COUNTS`); an early end keeps the last value."""
    time_s = space.measured["latency_s"]
    best = [np.minimum.accumulate(time_s[measured]) / time_s.min() for measured in runs]
    return np.array([[curve[min(count, len(curve)) - 1] for count in COUNTS] for curve in best])


def heading(space: Space) -> Table:
    """The table of a space."""
    return Table(f"\n{space.title}: {len(space.tunables)} configs; best / optimum after so many measured")


def curve_row(table: Table, label: str, space: Space, runs: list[list[int]], seconds: float) -> None:
    """Add a search to its table."""
    curve = best_after(space, runs).mean(axis=0).tolist()
    table.row({"": label, **dict(zip(map(str, COUNTS), curve, strict=True)), "s of CPU": seconds})
