"""How soon searches find the config of least energy, and how many energy measurements they need, on recorded spaces.

    python tools/evaluate_search.py [--data ../shared/data] [--seeds 20] [--objective energy] [--strategies pso,mls]

The spaces are those recorded with energy (hotspot, expdist; RTX A4000). All searches begin cold, without predictions:

    random              every config with energy, in random order
    guide, full         the search of `collect` (`expected_improvement`), every config with energy, guided by the cost
    collect             the same guided by latency; then energy of those that may be on the front, by the guide's rule
    genetic, full       that of arXiv 2411.18873 (`kernrec.model.search.genetic_search`), energy of every config
    genetic             the same with as much energy as its models' signal-to-noise ratio asks for
    guide               `kernrec.model.search.energy_guide`: energy where its interval reaches below the best
    Kernel Tuner        each of `--strategies` in simulation mode, energy of every config (`pip install kernel-tuner`)

A figure is the best cost with measured energy over the optimum, the mean over seeds, after so many configs; `energy` is
how many of them had their energy measured at the last count, and `to 1 %` how many energy measurements were made when
the cost came within 1 % of what the full guide ends with (the mean over the seeds that did, and how many did). Recorded
values have one energy for each config; latency is drawn from its recorded interval. Exits 0 without the recordings.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kernel_tuner_simulation import STRATEGIES, simulate

from kernrec.model.search.energy_guide import EnergyGuide
from kernrec.model.search.expected_improvement import ExpectedImprovement
from kernrec.model.search.genetic_search import GeneticSearch
from kernrec.model.search.objective_search import ObjectiveSearch
from kernrec.model.search.search_space import SearchSpace
from kernrec.store.connection import parquet_rows

Array = np.ndarray
COUNTS = (20, 50, 100, 200)
FILES = {"hotspot": "hotspot-a4000-energy.parquet", "expdist": "expdist-a4000-energy.parquet"}
WEIGHTS = {"latency": (1.0, 0.0), "energy": (0.0, 1.0), "edp": (1.0, 1.0)}
_NO_TUNABLES = {
    "outcome", "latency_s", "latency_low_s", "latency_high_s", "runs", "nvml_energy", "core_freq", "mem_freq",
    "temperature", "num_regs",
}  # fmt: skip


@dataclass(frozen=True)
class Space:
    """The C configs that ran."""

    tunables: Array
    """(C, T)."""
    latency_s: Array
    energy_j: Array
    low_s: Array
    high_s: Array

    def cost(self, objective: str) -> Array:
        """What is minimized, (C,)."""
        of_latency, of_energy = WEIGHTS[objective]
        return np.asarray(self.latency_s**of_latency * self.energy_j**of_energy)

    def drawn_s(self, config: int, draw: np.random.Generator) -> float:
        """One measured latency."""
        return float(draw.uniform(self.low_s[config], self.high_s[config]))


Trace = list[tuple[int, bool]]
"""(config, whether its energy was measured), in order; a config can come again for its energy."""
Search = Callable[[Space, str, int], Trace]


@dataclass(frozen=True)
class Searched:
    """The searches of one kind, one for each seed."""

    label: str
    traces: list[Trace]
    cpu_s: float
    """Processor time of a search."""


def main() -> int:
    """Print a table for each space."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--objective", choices=WEIGHTS, default="energy")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="of Kernel Tuner")
    arguments = parser.parse_args()
    folder = arguments.data / "spaces"
    if not folder.is_dir():
        print(f"no {folder}: nothing evaluated (--data names the folder of recorded data)")
        return 0
    for name, file in FILES.items():
        space = read(folder / file)
        print(f"\n{name}, {arguments.objective}: {len(space.tunables)} configs, {arguments.seeds} seeds")
        print(
            f"  {'best / optimum after':31}" + "".join(f"{count:>8}" for count in COUNTS) + "  energy    to 1 %    CPU"
        )
        bound = np.inf
        costs = space.cost(arguments.objective)
        for label, search in SEARCHES.items():
            begin_s = time.process_time()
            traces = [search(space, arguments.objective, seed) for seed in range(arguments.seeds)]
            it = Searched(label, traces, (time.process_time() - begin_s) / len(traces))
            if label == "guide, full":
                bound = 1.01 * float(np.mean([curve(costs, trace)[-1] for trace in traces]))
            show(it, costs, bound)
        for it in kernel_tuner(space, arguments.objective, arguments.strategies.split(","), arguments.seeds):
            show(it, costs, bound)
    return 0


def show(searched: Searched, costs: Array, bound: float) -> None:
    """Print a line of the table."""
    traces = searched.traces
    curves = np.mean([curve(costs, trace) for trace in traces], axis=0)
    energy = np.mean([sum(with_energy for _, with_energy in trace) for trace in traces])
    reached = [count for trace in traces if (count := energy_to(costs, trace, bound)) is not None]
    to_bound = f"{np.mean(reached):.0f} ({len(reached)})" if reached and np.isfinite(bound) else "-"
    print(
        f"  {searched.label:31}" + "".join(f"{value:>8.3f}" for value in curves)
        + f"{energy:>8.0f}{to_bound:>10}{searched.cpu_s:>5.1f} s",
        flush=True,
    )  # fmt: skip


def read(path: Path) -> Space:
    """The configs of a file that ran and have energy."""
    with parquet_rows(path) as (connection, source):
        query = f"FROM {source} WHERE outcome = 'ok' AND nvml_energy > 0 AND latency_s > 0"
        columns = connection.execute(query).fetchnumpy()
    table = {name: np.ma.filled(column, 0) for name, column in columns.items()}
    names = [name for name in table if name not in _NO_TUNABLES and len(np.unique(table[name])) > 1]
    tunables = np.column_stack([table[name].astype(float) for name in names])
    return Space(tunables, table["latency_s"], table["nvml_energy"], table["latency_low_s"], table["latency_high_s"])


def curve(costs: Array, trace: Trace) -> list[float]:
    """The best cost with measured energy over the optimum after each of `COUNTS` distinct configs."""
    best, seen = np.inf, set[int]()
    result: list[float] = []
    for config, with_energy in trace:
        if config not in seen and len(seen) in COUNTS and len(result) < COUNTS.index(len(seen)) + 1:
            result.append(best)
        seen.add(config)
        if with_energy:
            best = min(best, costs[config])
    result += [best] * (len(COUNTS) - len(result))
    return [float(value / costs.min()) for value in result]


def energy_to(costs: Array, trace: Trace, bound: float) -> int | None:
    """Energy measurements until the best cost is at most `bound` times the optimum; None where it never is."""
    count = 0
    for config, with_energy in trace:
        count += with_energy
        if with_energy and costs[config] <= bound * costs.min():
            return count
    return None


def at_random(space: Space, objective: str, seed: int) -> Trace:
    """Every config with energy, in random order."""
    order = np.random.default_rng(seed).permutation(len(space.tunables))[: max(COUNTS)]
    return [(config, True) for config in order.tolist()]


def guided(space: Space, objective: str, seed: int) -> Trace:
    """Expected improvement of the cost."""
    of_latency, of_energy = WEIGHTS[objective]

    def measured(config: int, draw: np.random.Generator) -> float:
        return float(space.drawn_s(config, draw) ** of_latency * space.energy_j[config] ** of_energy)

    return [(config, True) for config in _guided(space, seed, measured)[0]]


def collected(space: Space, objective: str, seed: int) -> Trace:
    """As `kernrec collect`: expected improvement of latency, and then energy where the guide asks for it."""
    seen, latency_s = _guided(space, seed, space.drawn_s)
    rule = EnergyGuide(ExpectedImprovement(space.tunables, seed=seed), None)
    for config, seconds in zip(seen, latency_s, strict=True):
        rule.tell_latency(config, seconds)
    trace = [(config, False) for config in seen]
    while configs := rule.energy_round():
        for config in configs:
            rule.tell_energy(config, float(space.energy_j[config]))
        trace += [(config, True) for config in configs]
    return trace


def _guided(
    space: Space, seed: int, measure: Callable[[int, np.random.Generator], float]
) -> tuple[list[int], list[float]]:
    """(configs in the order of the guide, what was measured of each)."""
    draw, search = np.random.default_rng(seed), ExpectedImprovement(space.tunables, seed=seed)
    seen: list[int] = []
    values: list[float] = []
    while len(seen) < max(COUNTS):
        order = search.order(np.array(seen, dtype=np.int64), np.array(values))
        for config in order[: search.batch(len(seen))].tolist():
            seen.append(config)
            values.append(measure(config, draw))
    return seen[: max(COUNTS)], values[: max(COUNTS)]


def guide(space: Space, objective: str, seed: int) -> Trace:
    """`kernrec search --strategy guide`."""
    return _searched(
        space, EnergyGuide(ExpectedImprovement(space.tunables, seed=seed), WEIGHTS[objective], seed), seed, False
    )


def genetic(space: Space, objective: str, seed: int, full: bool = False) -> Trace:
    """`kernrec search --strategy genetic`; full: energy of every config."""
    search_space = SearchSpace(space.tunables, seed=seed)
    return _searched(space, GeneticSearch(search_space, WEIGHTS[objective], seed), seed, full)


def genetic_full(space: Space, objective: str, seed: int) -> Trace:
    """The genetic search with energy of every config."""
    return genetic(space, objective, seed, full=True)


def _searched(space: Space, search: ObjectiveSearch, seed: int, full: bool) -> Trace:
    """What a search measures; full: energy of every config, whatever it asks for."""
    draw = np.random.default_rng(seed)
    trace: Trace = []
    while len(search.latency_s) < max(COUNTS) and (configs := search.latency_round()):
        for config in configs:
            search.tell_latency(config, space.drawn_s(config, draw))
        trace += [(config, not search.with_energy) for config in configs]
        for config in (configs if full else search.energy_round()) if search.with_energy else ():
            search.tell_energy(config, float(space.energy_j[config]))
            trace.append((config, True))
    return trace


def kernel_tuner(space: Space, objective: str, strategies: Sequence[str], seeds: int) -> list[Searched]:
    """What Kernel Tuner's strategies measure in simulation mode, energy of every config; nothing without it."""
    simulated = simulate(space.tunables, space.cost(objective), strategies, max(COUNTS), seeds)
    return [
        Searched(f"Kernel Tuner, {it.strategy}", [[(config, True) for config in run] for run in it.runs], it.cpu_s)
        for it in simulated
    ]


SEARCHES: dict[str, Search] = {
    "random": at_random, "guide, full": guided, "guide": guide, "collect": collected,
    "genetic, full": genetic_full, "genetic": genetic,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
