"""Kernel Tuner's strategies on a recorded space, in its simulation mode; used by the commands that compare searches."""

import contextlib
import io
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

Array = np.ndarray

STRATEGIES = (
    "random_sample", "genetic_algorithm", "bayes_opt", "simulated_annealing", "pso", "firefly_algorithm", "mls",
    "greedy_ils", "diff_evo", "dual_annealing", "basinhopping",
)  # fmt: skip
"""Those that need nothing beyond Kernel Tuner and scikit-learn."""
_COSTS = ("compile", "verification", "benchmark", "strategy", "framework")


@dataclass(frozen=True)
class Simulated:
    """The searches of one strategy."""

    strategy: str
    runs: list[list[int]]
    """Of each seed, the positions of the configs it measured, in order, each once."""
    cpu_s: float
    """Processor time of a search."""


def simulate(tunables: Array, cost: Array, strategies: Sequence[str], most: int, seeds: int) -> list[Simulated]:
    """Let strategies search a recorded space.

    Args:
        tunables: the configs' values, whole numbers, (C, T).
        cost: what is minimized, (C,), above zero.
        strategies: their names.
        most: distinct configs at most.
        seeds: searches of each.

    Returns:
        One for each strategy; none where Kernel Tuner is not installed, which is said.
    """
    try:
        with _silent():
            import kernel_tuner
    except ImportError:
        print("Kernel Tuner is not installed (pip install kernel-tuner): its results are left out")
        return []
    names = [f"t{i}" for i in range(tunables.shape[1])]
    values = [sorted(set(column)) for column in tunables.astype(np.int64).T.tolist()]
    place = {",".join(str(int(v)) for v in row): i for i, row in enumerate(tunables)}
    scaled = (cost / cost.min()).tolist()
    cache: dict[str, Any] = {
        "device_name": "recorded", "kernel_name": "recorded", "problem_size": [1, 1], "tune_params_keys": names,
        "tune_params": dict(zip(names, values, strict=True)), "objective": "time",
        "cache": {
            key: dict(zip(names, map(int, key.split(",")), strict=True))
            | {"time": scaled[i], "times": [scaled[i]], "timestamp": "2023-01-01 00:00:00"}
            | dict.fromkeys((f"{what}_time" for what in _COSTS), 0)
            for key, i in place.items()
        },
    }  # fmt: skip

    simulated = []
    with _shared(kernel_tuner, cache):
        for strategy in strategies:
            runs, start = [], time.process_time()
            for seed in range(seeds):
                np.random.seed(seed)
                try:
                    with _silent():
                        results, _ = kernel_tuner.tune_kernel(
                            "recorded", "__global__ void recorded() {}", (1, 1), [], cache["tune_params"],
                            strategy=strategy, strategy_options={"max_fevals": most}, simulation_mode=True,
                            cache="recorded.json", quiet=True, lang="CUDA", seed=seed,
                        )  # fmt: skip
                except Exception as error:  # of a strategy that this version lacks or that needs another library
                    print(f"Kernel Tuner, {strategy}: {type(error).__name__}: {error!s:.100}", file=sys.stderr)
                    break
                keys = [",".join(str(result[name]) for name in names) for result in results]
                runs.append(list(dict.fromkeys(place[key] for key in keys)))
            if runs:
                simulated.append(Simulated(strategy, runs, (time.process_time() - start) / len(runs)))
    return simulated


@contextlib.contextmanager
def _shared(kernel_tuner: Any, cache: dict[str, Any]) -> Iterator[None]:
    """Searches take the recording and the configs of its space from memory, in place of a file and of a solver.

    Reading them again took more than half of the time of most strategies in a large space.
    """
    space, interface = kernel_tuner.searchspace.Searchspace, kernel_tuner.interface
    with (
        patch.object(kernel_tuner.util, "process_cache", lambda *_: cache["cache"]),
        patch.object(kernel_tuner.util, "close_cache", lambda *_: None),
        patch.object(interface, "Searchspace", lambda *_, **__: space(None, None, None, from_cache=cache)),
    ):
        yield


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
