"""Profile a large space: use predictions of profiled configs to select further configs.

    some at random -> predicted time and energy -> configs that may be better (`PartialSearch`) -> profile -> ...

The search ends when no other config is expected to beat the best by more than a margin.
"""

import numpy as np

from kernrec.gpu import GPU
from kernrec.kernel import Space
from kernrec.model.search.partial_space import PartialSearch
from kernrec.profile.launch_profile import ProfileFailure
from kernrec.recommender.analyze.profile_configs import ConfigProfiler
from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import Query
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

LARGE = 10_000
"""Minimum number of configs of a large space; all configs of a smaller space are profiled."""


@dataclass(frozen=True)
class PartOfSpace:
    """Configs of a space that can run a problem; C is their number."""

    space: Space
    rows: Array
    """Rows of the space, ascending, (C,)."""
    variants: Array
    """Variant of each config, (C,); configs of one variant are profiled together."""
    profiled: Array
    """Whether each config has a profile, bool (C,)."""


def profile_promising(
    profiler: ConfigProfiler, gpu: GPU, query: Query, part: PartOfSpace
) -> tuple[list[ProfileFailure], int]:
    """Profile promising configs, and return the failures with reasons and the number of configs left out.

    Raises:
        KernrecError: scikit-learn is missing, or the first configs all failed.
    """
    options = profiler.options
    columns = part.space.columns
    search = PartialSearch(np.stack([column[part.rows] for column in columns.values()], axis=1))
    tried, shown = part.profiled.copy(), options.first_front is None
    failures: list[ProfileFailure] = []
    while True:
        costs = _costs(profiler, gpu, query, part.rows) if tried.any() else np.full((len(tried), 2), np.nan)
        ran, done = np.isfinite(costs).all(axis=1), np.flatnonzero(tried)
        if options.first_front is not None and not shown and len(done) >= search.first and ran.any():
            shown = True
            recommender = Recommender([profiler.database])
            answer = recommender.answer_kernel(profiler.kernel, profiler.target.problem, gpu, query)
            options.first_front(answer, len(done))
        proposal = search.propose(done, costs[done])
        if not len(proposal.rows):
            return failures, int((~tried).sum())
        most = 0 if len(done) < search.first else len(done) + max(proposal.promising, len(proposal.rows))
        configs = [part.space.config(row) for row in part.rows[proposal.rows].tolist()]
        failures += profiler.profile(configs, not ran.any(), options.report_of(most, len(done)))
        tried |= np.isin(part.variants, part.variants[proposal.rows])


def _costs(profiler: ConfigProfiler, gpu: GPU, query: Query, rows: Array) -> Array:
    """Return time in s and energy in J of the configs in these rows, (C, 2); NaN without a prediction."""
    kernel, problem = profiler.kernel, profiler.target.problem
    costs = np.full((len(rows), 2), np.nan)
    recommender = Recommender([profiler.database])
    if recommender.context.find_profiles(kernel, problem, gpu):
        for candidates in recommender.kernel_candidates(kernel, problem, gpu, query).kernels:
            places = np.searchsorted(rows, candidates.rows)
            there = (places < len(rows)) & (rows[np.minimum(places, len(rows) - 1)] == candidates.rows)
            latency, energy, _ = candidates.costs.values[:, 0]
            costs[places[there]] = np.column_stack((latency, energy))[there]
    return costs
