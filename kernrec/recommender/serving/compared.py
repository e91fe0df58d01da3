"""Compare an engine's default config with candidates, and advise whether a tuned file is worth it."""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.compile.pool import Processors
from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.model.analytical.spread import SPREAD, Estimate, Source
from kernrec.profile.triton_call import kernel_of_triton
from kernrec.recommender.analyze.kernel import analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from kernrec.recommender.request import Objective, Query
from kernrec.recommender.result import sum_of
from kernrec.recommender.serving.engine_calls import Step, calls, own_kernel
from kernrec.recommender.serving.engine_defaults import Tiles, default_config, launched, listed_candidates
from kernrec.recommender.serving.engines import Deployment, TunedFile
from kernrec.recommender.serving.expert_ranking import configs_array, fitting, ranks, shipped_ranking
from kernrec.store import Database
from kernrec.util.light_dataclass import dataclass
from kernrec.util.normal import DEVIATIONS

BEST_RANKED = 3
"""Number of configs of `expert_ranking` to compare."""
PAIR_SPREAD = 0.16
"""Standard deviation of log(predicted ratio / true ratio), for the ratio of two configs' times.

The value comes from eight pairs of configs on an A100 and an H100 with 1,024 tokens (`tools/evidence expert-files`).
vLLM's tuner measured hundreds of configs and chose the first of each pair, but the model predicts that the second is
faster. The value is the root mean square of log(predicted ratio), as if both configs took equal times.
"""
OTHER_SPREAD = math.log(SPREAD.ratio) / DEVIATIONS
"""Standard deviation as in `PAIR_SPREAD` for kernels other than matmuls."""

_Launch = tuple[tuple[str, int], ...]
"""Constants and options of a launch, in sorted order."""
NOTHING = 1.03
"""Ratio of the default config's time to the best time, up to which tuning gains nothing.

Repeated measurements of one config differ by up to 3 % (vLLM's issue 44688).
"""
LITTLE = 1.05
"""Ratio of the default config's time to the best time, below which tuning is not worth it."""


class Verdict(StrEnum):
    """Advice on whether to create a tuned file."""

    SHIPPED = "shipped"
    NOT_USED = "another kernel"
    WRITE = "worth it"
    MEASURE = "perhaps: measure"
    LEAVE = "nothing: leave it"
    UNKNOWN = "not predicted"


@dataclass(frozen=True)
class Comparison:
    """Comparison of an engine's default config with candidates, for one number of tokens."""

    tokens: int
    own: Tiles
    own_cost: Estimate | None
    """Seconds of all launches with the engine's default config, or None if the GPU cannot run it."""
    ranked: tuple[tuple[Tiles, Estimate], ...]
    """Candidates and default config with their costs, measured configs first."""
    compared: tuple[Tiles, ...]
    """All compared configs, the default config first. The GPU may be unable to run some of them."""
    spread: float = PAIR_SPREAD
    analyzed: bool = True
    """Whether costs come from an analysis of the kernel's code."""

    @property
    def best(self) -> Tiles:
        """Best config of all compared configs."""
        return self.ranked[0][0]

    @property
    def best_cost(self) -> Estimate:
        return self.ranked[0][1]

    @property
    def ratio(self) -> float:
        """Ratio of the default config's time to the best time. Infinite if the default config cannot run."""
        return math.inf if self.own_cost is None else self.own_cost / self.best_cost

    @property
    def interval(self) -> tuple[float, float]:
        """90 % interval of `ratio`.

        If the default config is predicted to be the best, the interval starts at 1.
        """
        if self.own_cost is not None and self.own_cost.source == self.best_cost.source == Source.MEASURED:
            return self.ratio, self.ratio
        factor = math.exp(DEVIATIONS * self.spread)
        if self.own_cost is not None and self.best == self.own:
            others = [cost for _, cost in self.ranked[1:]]
            return 1.0, max(1.0, factor * self.own_cost / others[0]) if others else 1.0
        return self.ratio / factor, self.ratio * factor

    @property
    def verdict(self) -> Verdict:
        """Advice for this number of tokens."""
        low, high = self.interval
        if low > 1.0 and self.ratio > NOTHING:
            return Verdict.WRITE
        return Verdict.LEAVE if high < LITTLE else Verdict.MEASURE

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. Infinite ratios become None."""
        best, ratios = self.best_cost, (self.ratio, *self.interval)
        names = ("default_over_best", "default_over_best_low", "default_over_best_high")
        return {
            "tokens": self.tokens,
            "default": dict(self.own),
            "default_latency_s": self.own_cost.value if self.own_cost is not None else None,
            "best": dict(self.best),
            "best_latency_s": best.value,
            "best_latency_low_s": best.low,
            "best_latency_high_s": best.high,
            "source": "measured" if best.source == Source.MEASURED else "predicted",
            **{name: ratio if math.isfinite(ratio) else None for name, ratio in zip(names, ratios, strict=True)},
            "next": [dict(config) for config, _ in self.ranked[1:3]],
        }


def candidates(file: TunedFile, tokens: int, gpu: GPU) -> list[Tiles]:
    """Return candidate configs that fit in the GPU's shared memory."""
    if ranks(file, gpu):
        return shipped_ranking().ranked(file, tokens, gpu, BEST_RANKED)
    return listed_candidates(file, tokens, gpu)


def ranked_by_formula(file: TunedFile, tokens: int, gpu: GPU, configs: Sequence[Tiles]) -> list[tuple[Tiles, Estimate]]:
    """Return configs that fit in shared memory, with their predicted costs, best first."""
    ranking, array = shipped_ranking(), configs_array(configs)
    usable = np.flatnonzero(fitting(file, array, gpu))
    times_s = ranking.times_s(file, tokens, gpu, array[usable])
    order = np.argsort(-ranking.scores(file, tokens, gpu, array[usable]), kind="stable").tolist()
    return [
        (configs[usable[i]], Estimate(s, s / ranking.factor, s * ranking.factor, Source.PREDICTED))
        for i, s in ((place, float(times_s[place])) for place in order)
    ]


@dataclass(frozen=True)
class Comparer:
    """Estimator of the costs of configs."""

    database: Path
    processors: Processors | int
    """Pool of processes, or number of processes to start for each analysis."""

    def compare(self, file: TunedFile, served: Deployment, tokens: int) -> Comparison:
        """Compare the engine's default config with candidates.

        Raise `KernrecError` if Triton is not installed, or if no config could be compiled.
        """
        own = default_config(served.engine, file, tokens, served.gpu)
        tried = list(distinct(served.engine, file, [own, *candidates(file, tokens, served.gpu)]).values())
        spread = PAIR_SPREAD if file.products else OTHER_SPREAD
        if analyzed := not ranks(file, served.gpu) or self._measured(file, served):
            costs = self.costs(file, served, tokens, tried)
            ranked = sorted(costs, key=lambda pair: (pair[1].source != Source.MEASURED, pair[1].value))
        else:
            ranked, spread = ranked_by_formula(file, tokens, served.gpu, tried), shipped_ranking().pair_spread
        mine = launched(served.engine, file, own)
        own_cost = next((cost for config, cost in ranked if launched(served.engine, file, config) == mine), None)
        return Comparison(tokens, own, own_cost, tuple(ranked), tuple(tried), spread, analyzed)

    def _measured(self, file: TunedFile, served: Deployment) -> bool:
        if not self.database.exists():
            return False
        kernel = (own_kernel(served, file) or "grouped_experts").rpartition(":")[2]
        with Database.open(self.database) as database:
            return bool(database.session_rows(served.gpu.name, kernel, ""))

    def costs(
        self, file: TunedFile, served: Deployment, tokens: int, configs: Sequence[Tiles]
    ) -> list[tuple[Tiles, Estimate]]:
        """Return the costs of the configs that can run. Omit a config if another config leads to the same launch."""
        unique = distinct(served.engine, file, configs)
        parts = [self._product(Step(file, served, tokens, p), list(unique.values())) for p in range(file.launches)]
        both = [key for key in unique if all(key in part for part in parts)]
        if not both:
            raise KernrecError(f"{file.name}: no config can run {tokens} tokens on {served.gpu.title}")
        return [(unique[key], sum_of([part[key] for part in parts])) for key in both]

    def _product(self, step: Step, configs: Sequence[Tiles]) -> Mapping[_Launch, Estimate]:
        costs: dict[_Launch, Estimate] = {}
        gpu, launches = step.served.gpu, calls(step, configs)
        for call, group in launches:
            kernel, _ = kernel_of_triton(call)
            query = Query(Objective.LATENCY, top=len(group), each_config=True)
            options = ProfilingOptions(folder=call.path.parent, processes=self.processors)
            try:
                analysis = analyze(kernel, kernel.definition.problem(), gpu, self.database, query, options)
            except KernrecError:
                if len(launches) == 1:
                    raise
                continue  # Skip a config that cannot run, such as one with too much shared memory.
            for recommendation in analysis.answer.recommendations:
                for config in group:
                    key = _launch(step.served.engine, step.file, config)
                    if all(recommendation.config.get(name.lower()) == value for name, value in key):
                        costs[key] = recommendation.latency_s
        return costs


def _launch(engine: str, file: TunedFile, config: Tiles) -> _Launch:
    return tuple(sorted(launched(engine, file, config).items()))


def distinct(engine: str, file: TunedFile, configs: Sequence[Tiles]) -> dict[_Launch, Tiles]:
    """Return one config for each launch, keyed by the launch's constants and options."""
    unique: dict[_Launch, Tiles] = {}
    for config in configs:
        unique.setdefault(_launch(engine, file, config), config)
    return unique
