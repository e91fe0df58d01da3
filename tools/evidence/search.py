"""How soon searches find the config of least energy, and how many energy measurements they need, on recorded spaces.

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
values have one energy for each config; latency is drawn from its recorded interval.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
from front import DATA, Data, Table

from kernrec.model.search.energy_guide import EnergyGuide
from kernrec.model.search.expected_improvement import ExpectedImprovement
from kernrec.model.search.genetic_search import GeneticSearch
from kernrec.model.search.objective_search import ObjectiveSearch
from kernrec.model.search.search_space import SearchSpace

from .kernel_tuner import COUNTS
from .recorded_spaces import Space, read_space
from .simulated_tuner import STRATEGIES, simulate

Array = np.ndarray
FILES = {"hotspot": "hotspot-a4000-energy.parquet", "expdist": "expdist-a4000-energy.parquet"}
WEIGHTS = {"latency": (1.0, 0.0), "energy": (0.0, 1.0), "edp": (1.0, 1.0)}
Trace = list[tuple[int, bool]]
"""(config, whether its energy was measured), in order; a config can come again for its energy."""


def run(
    data: Data = DATA, seeds: int = 20, objective: Literal["latency", "energy", "edp"] = "energy",
    strategies: str = ",".join(STRATEGIES),
) -> None:  # fmt: skip
    """Print a table for each space; `strategies` are Kernel Tuner's."""
    for name, file in FILES.items():
        space = read_space(data / "spaces" / file)
        space = space.take(np.flatnonzero(space.measured["nvml_energy"] > 0))
        costs = _cost(space.measured["latency_s"], space.measured["nvml_energy"], objective)
        table = Table(f"\n{name}, {objective}: {len(costs)} configs, {seeds} seeds; best / optimum after so many")
        bound = np.inf
        for label, search in _searches(space, objective).items():
            begin_s = time.process_time()
            traces = [search(seed) for seed in range(seeds)]
            seconds = (time.process_time() - begin_s) / seeds
            if label == "guide, full":
                bound = 1.01 * float(np.mean([curve(costs, trace)[-1] for trace in traces]))
            _row(table, label, costs, traces, bound, seconds)
        for simulated in simulate(space.tunables, costs, strategies.split(","), max(COUNTS), seeds):
            traces = [[(config, True) for config in configs] for configs in simulated.runs]
            _row(table, f"Kernel Tuner, {simulated.strategy}", costs, traces, bound, simulated.cpu_s)


def _row(table: Table, label: str, costs: Array, traces: list[Trace], bound: float, seconds: float) -> None:
    curves = np.mean([curve(costs, trace) for trace in traces], axis=0)
    energy = np.mean([sum(with_energy for _, with_energy in trace) for trace in traces])
    reached = [count for trace in traces if (count := energy_to(costs, trace, bound)) is not None]
    to_bound = f"{np.mean(reached):.0f} ({len(reached)})" if reached and np.isfinite(bound) else "-"
    best = {str(count): f"{value:.3f}" for count, value in zip(COUNTS, curves, strict=True)}
    table.row({"": label, **best, "energy": f"{energy:.0f}", "to 1 %": to_bound, "CPU s": f"{seconds:.1f}"})


def _cost(latency_s: Array | float, energy_j: Array | float, objective: str) -> Array:
    of_latency, of_energy = WEIGHTS[objective]
    return np.asarray(latency_s**of_latency * energy_j**of_energy)


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


def _searches(space: Space, objective: str) -> dict[str, Callable[[int], Trace]]:
    weights, tunables = WEIGHTS[objective], space.tunables

    def at_random(seed: int) -> Trace:
        order = np.random.default_rng(seed).permutation(len(tunables))[: max(COUNTS)]
        return [(config, True) for config in order.tolist()]

    def guided(seed: int) -> Trace:
        def cost(config: int, latency_s: float) -> float:
            return float(_cost(latency_s, space.measured["nvml_energy"][config], objective))

        return [(config, True) for config in _guided(space, seed, cost)[0]]

    def collected(seed: int) -> Trace:
        seen, latency_s = _guided(space, seed, lambda config, seconds: seconds)
        rule = EnergyGuide(ExpectedImprovement(tunables, seed=seed), None)
        for config, seconds in zip(seen, latency_s, strict=True):
            rule.tell_latency(config, seconds)
        trace = [(config, False) for config in seen]
        while configs := rule.energy_round():
            for config in configs:
                rule.tell_energy(config, float(space.measured["nvml_energy"][config]))
            trace += [(config, True) for config in configs]
        return trace

    def guide(seed: int) -> Trace:
        return _searched(space, EnergyGuide(ExpectedImprovement(tunables, seed=seed), weights, seed), seed, False)

    def genetic(seed: int, full: bool) -> Trace:
        return _searched(space, GeneticSearch(SearchSpace(tunables, seed=seed), weights, seed), seed, full)

    return {
        "random": at_random, "guide, full": guided, "guide": guide, "collect": collected,
        "genetic, full": partial(genetic, full=True), "genetic": partial(genetic, full=False),
    }  # fmt: skip


def _drawn_s(space: Space, config: int, draw: np.random.Generator) -> float:
    """One measured latency."""
    return float(draw.uniform(space.measured["latency_low_s"][config], space.measured["latency_high_s"][config]))


def _guided(space: Space, seed: int, value: Callable[[int, float], float]) -> tuple[list[int], list[float]]:
    """(configs in the order of the guide, the value of each by its measured latency)."""
    draw, search = np.random.default_rng(seed), ExpectedImprovement(space.tunables, seed=seed)
    seen: list[int] = []
    values: list[float] = []
    while len(seen) < max(COUNTS):
        order = search.order(np.array(seen, dtype=np.int64), np.array(values))
        for config in order[: search.batch(len(seen))].tolist():
            seen.append(config)
            values.append(value(config, _drawn_s(space, config, draw)))
    return seen[: max(COUNTS)], values[: max(COUNTS)]


def _searched(space: Space, search: ObjectiveSearch, seed: int, full: bool) -> Trace:
    """The trace of a search; full: energy of every config, whatever it asks for."""
    draw = np.random.default_rng(seed)
    trace: Trace = []
    while len(search.latency_s) < max(COUNTS) and (configs := search.latency_round()):
        for config in configs:
            search.tell_latency(config, _drawn_s(space, config, draw))
        trace += [(config, not search.with_energy) for config in configs]
        for config in (configs if full else search.energy_round()) if search.with_energy else ():
            search.tell_energy(config, float(space.measured["nvml_energy"][config]))
            trace.append((config, True))
    return trace
