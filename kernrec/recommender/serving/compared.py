"""Compare an engine's default config with candidate configs, and derive advice on whether a tuned file is worth it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import numpy as np

from kernrec.compile.pool import Processors, processors_of
from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.model.analytical.spread import SPREAD
from kernrec.profile.triton_call import kernel_of_triton
from kernrec.recommender.analyze.kernel import analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions, profiles_with
from kernrec.recommender.request import Objective, Query
from kernrec.recommender.serving.engine_calls import Step, calls, own_kernel
from kernrec.recommender.serving.engine_defaults import Tiles, default_config, launched, listed_candidates
from kernrec.recommender.serving.engines import Deployment, TunedFile
from kernrec.recommender.serving.expert_ranking import configs_array, fitting, ranks, shipped_ranking
from kernrec.store import Database
from kernrec.util.light_dataclass import dataclass
from kernrec.util.normal import DEVIATIONS

BEST_RANKED = 3
"""Number of top-ranked configs of `expert_ranking` to compare with the engine's default config."""
PAIR_SPREAD = 0.16
"""Standard deviation of log(predicted ratio / true ratio), for the ratio of two configs' times.

It is estimated from configs in vLLM's files, each of which vLLM's tuner measured to be the best of hundreds. So the
model is wrong if it predicts such a config to be slow. The value is the root mean square of this error over eight pairs
of configs on an A100 and an H100 with 1,024 tokens (`tools/evidence expert-files`).
"""
OTHER_SPREAD = math.log(SPREAD.ratio) / DEVIATIONS
"""Standard deviation as in `PAIR_SPREAD` for kernels other than matmuls: the analytical model's error."""


@dataclass(frozen=True)
class Cost:
    """Total seconds of all kernel launches that a tuned file configures, with a 90 % interval."""

    latency_s: float
    low_s: float
    high_s: float
    measured: bool


@dataclass(frozen=True)
class Comparison:
    """Comparison of an engine's default config with candidate configs, for one number of tokens per step."""

    tokens: int
    own: Tiles
    own_cost: Cost | None
    """Cost of the engine's default config; None if the GPU cannot run this config."""
    ranked: tuple[tuple[Tiles, Cost], ...]
    """Candidates and default config with their costs: measured configs first, then the others, each best first."""
    compared: tuple[Tiles, ...]
    """All compared configs, the default config first. The GPU may be unable to run some of them."""
    spread: float = PAIR_SPREAD
    analyzed: bool = True
    """Whether costs come from an analysis of the kernel's code, not from the formula of `expert_ranking`."""

    @property
    def best(self) -> Tiles:
        """Best config, which may be the engine's default config."""
        return self.ranked[0][0]

    @property
    def best_cost(self) -> Cost:
        return self.ranked[0][1]

    @property
    def ratio(self) -> float:
        """Ratio of the default config's time to the best config's time; infinite if the default config cannot run."""
        return math.inf if self.own_cost is None else self.own_cost.latency_s / self.best_cost.latency_s

    @property
    def interval(self) -> tuple[float, float]:
        """90 % interval of `ratio`.

        If the default config is predicted to be the best, the interval extends from 1 to the largest gain that the
        second-best config may have.
        """
        if self.own_cost is not None and self.own_cost.measured and self.best_cost.measured:
            return self.ratio, self.ratio
        factor = math.exp(DEVIATIONS * self.spread)
        if self.own_cost is not None and self.best == self.own:
            others = [cost for _, cost in self.ranked[1:]]
            return 1.0, max(1.0, factor * self.own_cost.latency_s / others[0].latency_s) if others else 1.0
        return self.ratio / factor, self.ratio * factor


def candidates(file: TunedFile, tokens: int, gpu: GPU) -> list[Tiles]:
    """Return candidate configs that fit in the GPU's shared memory.

    They are the highest-ranked configs, or a short list if `expert_ranking` does not support the file.
    """
    if ranks(file, gpu):
        return shipped_ranking().ranked(file, tokens, gpu, BEST_RANKED)
    return listed_candidates(file, tokens, gpu)


def ranked_by_formula(file: TunedFile, tokens: int, gpu: GPU, configs: Sequence[Tiles]) -> list[tuple[Tiles, Cost]]:
    """Return configs that fit in shared memory, with predicted costs, in the order of `expert_ranking`."""
    ranking, array = shipped_ranking(), configs_array(configs)
    usable = np.flatnonzero(fitting(file, array, gpu))
    times_s = ranking.times_s(file, tokens, gpu, array[usable])
    order = np.argsort(-ranking.scores(file, tokens, gpu, array[usable]), kind="stable").tolist()
    return [
        (configs[usable[i]], Cost(s, s / ranking.factor, s * ranking.factor, measured=False))
        for i, s in ((place, float(times_s[place])) for place in order)
    ]


class Comparer:
    """Estimator of the costs of configs, with worker processes that `comparer` starts and ends."""

    def __init__(self, database: Path, processors: Processors) -> None:
        self._database, self._processors = database, processors

    def compare(self, file: TunedFile, served: Deployment, tokens: int) -> Comparison:
        """Compare the engine's default config with candidate configs.

        Raises:
            KernrecError: Triton is not installed, or no config could be compiled.
        """
        own = default_config(served.engine, file, tokens, served.gpu)
        tried = distinct(served.engine, file, [own, *candidates(file, tokens, served.gpu)])
        spread = PAIR_SPREAD if file.products else OTHER_SPREAD
        if analyzed := not ranks(file, served.gpu) or self._measured(file, served):
            costs = self.costs(file, served, tokens, tried)
            ranked = sorted(costs, key=lambda pair: (not pair[1].measured, pair[1].latency_s))
        else:
            ranked, spread = ranked_by_formula(file, tokens, served.gpu, tried), shipped_ranking().pair_spread
        mine = launched(served.engine, file, own)
        own_cost = next((cost for config, cost in ranked if launched(served.engine, file, config) == mine), None)
        return Comparison(tokens, own, own_cost, tuple(ranked), tuple(tried), spread, analyzed)

    def _measured(self, file: TunedFile, served: Deployment) -> bool:
        if not self._database.exists():
            return False
        kernel = (own_kernel(served, file) or "grouped_experts").rpartition(":")[2]
        with Database.open(self._database) as database:
            return bool(database.session_rows(served.gpu.name, kernel, ""))

    def costs(
        self, file: TunedFile, served: Deployment, tokens: int, configs: Sequence[Tiles]
    ) -> list[tuple[Tiles, Cost]]:
        """Return the configs that can run, with their costs. Leave out configs that the engine launches identically."""
        unique = {_key(served.engine, file, config): config for config in distinct(served.engine, file, configs)}
        parts = [self._product(Step(file, served, tokens, p), list(unique.values())) for p in range(file.launches)]
        both = [key for key in unique if all(key in part for part in parts)]
        if not both:
            raise KernrecError(f"{file.name}: no config can run {tokens} tokens on {served.gpu.title}")
        return [(unique[key], _sum([part[key] for part in parts])) for key in both]

    def _product(self, step: Step, configs: Sequence[Tiles]) -> Mapping[tuple[tuple[str, int], ...], Cost]:
        """Return the cost of one matmul with each config, keyed by the constants and options of the engine's launch."""
        costs: dict[tuple[tuple[str, int], ...], Cost] = {}
        gpu, engine, file = step.served.gpu, step.served.engine, step.file
        for call, group in calls(step, configs):
            kernel, _ = kernel_of_triton(call)
            query = Query(Objective.LATENCY, top=len(group), each_config=True)
            options = ProfilingOptions(folder=call.path.parent, profiles=profiles_with(self._processors))
            try:
                answer = analyze(kernel, kernel.definition.problem(), gpu, self._database, query, options)
            except KernrecError:
                if len(calls(step, configs)) == 1:
                    raise
                continue  # Skip a config that cannot run, such as one with too much shared memory.
            for recommendation in answer.answer.recommendations:
                for config in group:
                    key = _key(engine, file, config)
                    if all(recommendation.config.get(name.lower()) == value for name, value in key):
                        estimate = recommendation.latency_s
                        costs[key] = Cost(estimate.value, estimate.low, estimate.high, estimate.source == "measured")
        return costs


def _key(engine: str, file: TunedFile, config: Tiles) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(launched(engine, file, config).items()))


def distinct(engine: str, file: TunedFile, configs: Sequence[Tiles]) -> list[Tiles]:
    """Return the configs without duplicates. Configs are duplicates if the engine launches them identically."""
    unique: dict[tuple[tuple[str, int], ...], Tiles] = {}
    for config in configs:
        unique.setdefault(_key(engine, file, config), config)
    return list(unique.values())


def _sum(costs: Sequence[Cost]) -> Cost:
    return Cost(
        sum(cost.latency_s for cost in costs),
        sum(cost.low_s for cost in costs),
        sum(cost.high_s for cost in costs),
        all(cost.measured for cost in costs),
    )


@contextmanager
def comparer(database: Path, processes: int = 2) -> Iterator[Comparer]:
    """Yield a `Comparer` whose worker processes end when the `with` block ends."""
    with processors_of(processes) as processors:
        yield Comparer(database, processors)


NOTHING = 1.03
"""Maximum of default config's time / best config's time at which tuning gains nothing. Measured times of the
same config differ by up to 3 % (vLLM's issue 44688)."""
LITTLE = 1.05
"""Ratio as in `NOTHING`. If the ratio's interval ends below this value, the advice is not to create the file."""


class Verdict(StrEnum):
    """Advice on whether to create a tuned file."""

    SHIPPED = "shipped"
    NOT_USED = "another kernel"
    WRITE = "worth it"
    MEASURE = "perhaps: measure"
    LEAVE = "nothing: leave it"
    UNKNOWN = "not predicted"


def worth(made: Comparison) -> Verdict:
    """Return the advice for one number of tokens, based on the interval of the ratio of times."""
    low, high = made.interval
    if low > 1.0 and made.ratio > NOTHING:
        return Verdict.WRITE
    return Verdict.LEAVE if high < LITTLE else Verdict.MEASURE


def verdict_of(missing: bool, taken: str, made: Sequence[Comparison]) -> Verdict:
    """Return the advice on a tuned file.

    Args:
        missing: whether the engine has no such file.
        taken: kernel that the engine runs instead of the tuned kernel; empty if it runs the tuned kernel.
        made: comparisons of configs, one per number of tokens.
    """
    if not missing:
        return Verdict.SHIPPED
    if taken:
        return Verdict.NOT_USED
    verdicts = {worth(comparison) for comparison in made}
    order = (Verdict.WRITE, Verdict.MEASURE, Verdict.LEAVE)
    return next((verdict for verdict in order if verdict in verdicts), Verdict.UNKNOWN)
