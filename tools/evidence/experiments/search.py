"""Measure how soon searches find the best config of recorded spaces, and how many energy measurements they need.

    cold     without predictions: the search of `collect`, a genetic search, and random order
    warm     `collect` with predictions of the analytical model from `--configs` profiles of each space (`--sources`)
    energy   searches for the lowest energy. `every energy` measures the energy of each config, `guide` only of configs
             that may be the best, and `genetic` only of configs with the lowest predicted energies.

The tables show (lowest cost of the first k configs) / (lowest cost of all configs), averaged over seeds. Measurements
have the noise of the recording.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import numpy as np
from front import DATA, Data, Sources, Table

from evidence.cases import Array
from evidence.predicted import SETS, Rows, Sample, Space, read_rows, read_space, sampled_space
from evidence.recordings.files import present
from kernrec.errors import KernrecError
from kernrec.kernel import config_text
from kernrec.model.search.energy_guide import EnergyGuide
from kernrec.model.search.expected_improvement import ExpectedImprovement, ObjectiveSearch
from kernrec.model.search.gaussian_process import SearchSpace, completed_predictions
from kernrec.model.search.genetic_search import GeneticSearch

COUNTS = (20, 50, 100, 200)
_SAMPLES, _MOST_NOISE = 10, 0.02
"""Number of timed launches of a measurement, and maximum noise. The maximum is needed because some recorders stored
only the range of times, which a single slow launch widens."""
Trace = list[tuple[int, bool]]
"""(Index of a config, whether its energy was measured) pairs, in the order of measuring."""
Searches = Mapping[str, Callable[[int], Trace]]
"""Functions from a seed to the trace of a search, keyed by the search's name."""


def run(
    data: Data = DATA, sources: Sources = None, part: Literal["cold", "warm", "energy"] = "cold", seeds: int = 20,
    spaces: str = "", configs: int = 200,
) -> None:  # fmt: skip
    """Print a table for each space whose file name contains one of the comma-separated texts in `spaces`."""
    folder = present(data / "spaces")
    paths = [path for path in sorted(folder.iterdir()) if any(each in path.name for each in spaces.split(","))]
    for path in paths if part != "warm" else ():
        if part == "cold" and "static" not in path.name:
            space = read_space(path).distinct()
            genetic, shuffled = partial(_genetic, space, (1.0, 0.0)), partial(_shuffled, len(space))
            searches = {"kernrec": partial(guided, space), "genetic": genetic, "random": shuffled}
            show(space, times(space), searches, seeds)
        elif part == "energy" and "energy" in path.name:
            space = read_space(path)
            space = space.take(np.flatnonzero(space.measured["nvml_energy"] > 0))
            show(space, space.measured["nvml_energy"], energy(space), seeds)
    for recorded in SETS.values() if part == "warm" else ():
        for recording in recorded.recordings:
            if folder / recording.file in paths:
                try:
                    sample = sampled_space(recorded, recording, (sources, data), configs)
                    space, completed = predicted_space(sample, read_rows(recording, sample.table.kernel, folder))
                    searches = {"warm": partial(guided, space, predicted=completed), "cold": partial(guided, space)}
                    show(space, times(space), searches, seeds)
                except KernrecError as error:
                    print(f"skipped {recording.file}: {error}")


def _genetic(space: Space, weights: tuple[float, float], seed: int) -> Trace:
    return searched(space, GeneticSearch(SearchSpace(space.matrix, seed=seed), weights, seed), seed)


def energy(space: Space) -> Searches:
    """Return the searches for the lowest energy. `guide` measures the energy of configs only if they may be the
    best."""
    joules, weights = space.measured["nvml_energy"], (0.0, 1.0)

    def guide(seed: int) -> Trace:
        return searched(space, EnergyGuide(ExpectedImprovement(space.matrix, seed=seed), weights, seed), seed)

    every = partial(guided, space, measured=lambda row, _: float(joules[row]))
    genetic = partial(_genetic, space, weights)
    return {"every energy": every, "guide": guide, "genetic": genetic, "random": partial(_shuffled, len(space))}


def predicted_space(sample: Sample, rows: Rows) -> tuple[Space, Array]:
    """Return a recorded space and the predicted times of its configs, extrapolated outside the sample."""
    names = [tunable.name for tunable in sample.table.kernel.tunables]
    columns = {name: np.array([config[name] for config in rows.configs]) for name in names}
    exact = {"latency_s": rows.latency_s, "log_deviation": np.zeros(len(rows.configs))}
    space = Space(sample.title, columns, exact)
    seconds = dict(zip(map(config_text, sample.configs), sample.predicted_s().tolist(), strict=True))
    predicted_s = np.array([seconds.get(config_text(config), np.nan) for config in rows.configs])
    return space, completed_predictions(space.matrix, predicted_s)


def show(space: Space, costs: Array, searches: Searches, seeds: int) -> None:
    """Print the ratio of the best cost found to the space's lowest cost after each number of configs in `COUNTS`."""

    def best_of(trace: Trace, count: int) -> float:
        first = set(list(dict.fromkeys(config for config, _ in trace))[:count])
        chosen = [config for config, with_energy in trace if with_energy and config in first]
        return float(costs[chosen].min() / costs.min()) if chosen else float("inf")

    table = Table(f"\n{space.title}: {len(space)} configs; best / optimum after so many measured (seeds within 2 %)")
    for label, search in searches.items():
        traces = [search(seed) for seed in range(seeds)]
        best = np.array([[best_of(trace, count) for count in COUNTS] for trace in traces])
        cells = {str(k): f"{b.mean():.4f} ({(b <= 1.02).sum()})" for k, b in zip(COUNTS, best.T, strict=True)}
        energies = np.mean([sum(with_energy for _, with_energy in trace) for trace in traces])
        table.row({"": label, **cells, "energies": f"{energies:.0f}"})


def times(space: Space) -> Array:
    return np.asarray(space.measured.get("mean_s", space.measured["latency_s"]))


def measuring(space: Space) -> Callable[[int, np.random.Generator], float]:
    """Return a function that simulates a measurement of a config's time with the noise of the recording."""
    if "log_deviation" in space.measured:
        noise = space.measured["log_deviation"] / np.sqrt(_SAMPLES)
    else:
        noise = np.log(space.measured["latency_high_s"] / space.measured["latency_low_s"]) / _SAMPLES
    seconds = times(space)
    return lambda row, draw: float(seconds[row] * np.exp(min(noise[row], _MOST_NOISE) * draw.standard_normal()))


def _shuffled(count: int, seed: int) -> Trace:
    return [(row, True) for row in np.random.default_rng(seed).permutation(count)[: max(COUNTS)].tolist()]


def guided(
    space: Space, seed: int, predicted: Array | None = None,
    measured: Callable[[int, np.random.Generator], float] | None = None,
) -> Trace:  # fmt: skip
    """Return the trace of a search by expected improvement. `measured` simulates a measurement of a config."""
    draw, search = np.random.default_rng(seed), ExpectedImprovement(space.matrix, predicted, seed)
    measured = measured or measuring(space)
    seen: list[int] = []
    values: list[float] = []
    while len(seen) < min(max(COUNTS), len(space)):
        order = search.order(np.array(seen, dtype=np.int64), np.array(values))
        for row in order[: search.batch(len(seen))].tolist():
            seen.append(row)
            values.append(measured(row, draw))
    return [(row, True) for row in seen]


def searched(space: Space, search: ObjectiveSearch, seed: int) -> Trace:
    """Return the trace of a search that itself decides which energies to measure."""
    draw, measured, trace = np.random.default_rng(seed), measuring(space), Trace()
    while len(search.latency_s) < max(COUNTS) and (configs := search.latency_round()):
        for row in configs:
            search.tell_latency(row, measured(row, draw))
        trace += [(row, not search.with_energy) for row in configs]
        for row in search.energy_round() if search.with_energy else ():
            search.tell_energy(row, float(space.measured["nvml_energy"][row]))
            trace.append((row, True))
    return trace
