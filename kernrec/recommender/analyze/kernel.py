"""Analyze a user's kernel for a problem and a GPU: profile its configs, then recommend the best ones."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.gpu import GPU
from kernrec.kernel import Kernel, Space
from kernrec.kernel.expression import Expression
from kernrec.op import Problem
from kernrec.profile.kernel_code import unused_macros
from kernrec.profile.launch_profile import ProfileFailure, ProfileTarget
from kernrec.recommender.analyze.profile_configs import ConfigProfiler, ProfilingOptions
from kernrec.recommender.infeasible import empty_space
from kernrec.recommender.json_form import FormerNames
from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import Query
from kernrec.recommender.result import Answer
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

LARGE = 10_000
"""Number of configs above which kernrec profiles only the most promising configs."""


def _profile_promising(
    profiler: ConfigProfiler, gpu: GPU, query: Query, space: Space, rows: Array, variants: Array, profiled: Array
) -> tuple[list[ProfileFailure], int]:
    """Profile the most promising configs of a large space. Return the failures and the number of skipped configs.

    Args:
        rows: indices in `space` of the C configs that can run the problem, ascending, (C,).
        variants: index of the compiled variant of each config, (C,).
        profiled: whether each config already has a profile, bool (C,).

    Raises:
        KernrecError: scikit-learn is missing, or no config of the first batch could be profiled.
    """
    from kernrec.model.search.partial_space import PartialSearch

    options = profiler.options
    search = PartialSearch(np.stack([column[rows] for column in space.columns.values()], axis=1))
    tried, shown = profiled.copy(), options.first_front is None
    failures: list[ProfileFailure] = []
    while True:
        costs = _costs(profiler, gpu, query, rows) if tried.any() else np.full((len(tried), 2), np.nan)
        ran, done = np.isfinite(costs).all(axis=1), np.flatnonzero(tried)
        if options.first_front is not None and not shown and len(done) >= search.first and ran.any():
            shown = True
            on_gpu = Recommender([profiler.database]).on(gpu, query.conditions)
            answer = on_gpu.answer_kernel(profiler.kernel, profiler.target.problem, query)
            options.first_front(answer, len(done))
        proposal = search.propose(done, costs[done])
        if not len(proposal.rows):
            return failures, int((~tried).sum())
        most = 0 if len(done) < search.first else len(done) + max(proposal.promising, len(proposal.rows))
        configs = [space.config(row) for row in rows[proposal.rows].tolist()]
        failures += profiler.profile(configs, not ran.any(), options.report_of(most, len(done)))
        tried |= np.isin(variants, variants[proposal.rows])


def _costs(profiler: ConfigProfiler, gpu: GPU, query: Query, rows: Array) -> Array:
    """Return predicted latency (s) and energy (J) of each config, or NaN, as an array of shape (configs, 2)."""
    kernel, problem = profiler.kernel, profiler.target.problem
    costs = np.full((len(rows), 2), np.nan)
    on_gpu = Recommender([profiler.database]).on(gpu, query.conditions)
    if on_gpu.context.find_profiles(kernel, problem):
        for candidates in on_gpu.kernel_candidates(kernel, problem, query).kernels:
            places = np.searchsorted(rows, candidates.rows)
            there = (places < len(rows)) & (rows[np.minimum(places, len(rows) - 1)] == candidates.rows)
            latency, energy, _ = candidates.costs.values[:, 0]
            costs[places[there]] = np.column_stack((latency, energy))[there]
    return costs


@dataclass(frozen=True)
class Analysis(FormerNames):
    """Answer for a user's kernel, with the numbers of profiled, cached, failed and skipped configs."""

    answer: Answer
    profiled: int
    """Number of configs that were profiled now."""
    cached: int
    """Number of configs whose profile was already in the database."""
    failed: tuple[ProfileFailure, ...]
    left_out: int
    """Number of configs of a large space that kernrec chose not to profile."""
    analysis_s: float
    """Duration of the analysis in seconds."""

    def __repr__(self) -> str:
        return f"<Analysis, {self.profiled} profiled, {self.cached} before: {self.answer!r}>"

    def __str__(self) -> str:
        return str(self.answer)

    def _repr_html_(self) -> str:
        return self.answer._repr_html_()

    def to_arrow(self) -> Any:
        return self.answer.to_arrow()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. Keys contain units."""
        return {
            **self.answer.as_dict(),
            "profiled": self.profiled,
            "cached": self.cached,
            "failed": [{"config": dict(f.config), "message": f.message} for f in self.failed],
            "left_out": self.left_out,
            "analysis_s": self.analysis_s,
        }


def analyze(
    kernel: Kernel,
    problem: Problem,
    gpu: GPU,
    database: Path,
    query: Query | None = None,
    options: ProfilingOptions | None = None,
) -> Analysis:
    """Profile the configs of a kernel that have no profile yet, then recommend the best configs.

    Args:
        database: database in which to store the profiles. The function creates it if it does not exist.

    Raises:
        UsageError: no config can run the problem, or the kernel's description does not match its source.
        KernrecError: no config could be profiled. The message gives the first reason.
    """
    start = time.monotonic()
    query, options = query or Query(), options or ProfilingOptions()
    check_tunables_used(kernel)
    space = Space.of(kernel, problem, gpu)
    rows = space.at(problem).rows if len(space) else np.zeros(0, np.int64)
    if not len(rows):
        raise empty_space(kernel, problem, gpu)
    target = ProfileTarget(problem, gpu.sm, options.folder, options.budget)
    profiler = ConfigProfiler(kernel, target, database, options)
    if options.only is not None:
        chosen = space.find(options.only)
        rows = chosen[np.isin(chosen, rows)]
        if not len(rows):
            raise UsageError(f"none of the {len(chosen)} configs can run {problem.key} on {gpu.name}")
    variants = space.configs_on(problem) if kernel.sampled else space.variants
    keys = [variants.keys[number] for number in variants.index[rows].tolist()]
    stored = profiler.stored_variants({*keys})
    profiled = np.array([key in stored for key in keys], dtype=bool)
    if options.whole or options.only is not None or len(rows) <= LARGE:
        missing = [space.config(row) for row in rows[~profiled].tolist()]
        # If any config was profiled before, the source compiles. Then continue even if the first configs fail.
        failures = profiler.profile(missing, not profiled.any(), options.report_of(len(missing)))
        left_out = 0
    else:
        from kernrec.compile.pool import processors_of

        with processors_of(options.processes) as processors:
            lasting = replace(profiler, options=replace(options, processes=processors))
            failures, left_out = _profile_promising(lasting, gpu, query, space, rows, variants.index[rows], profiled)
    before = int(profiled.sum())
    made = len(rows) - before - len(failures) - left_out
    # `Recommender(None)` reads the user's database, and also the measurements that other people shared.
    is_own = database.absolute() == paths.user_database().absolute()
    on_gpu = Recommender(None if is_own else [database]).on(gpu, query.conditions)
    if not on_gpu.context.find_profiles(kernel, problem):
        raise profiler.why_none(failures[0])
    answer = on_gpu.answer_kernel(kernel, problem, query)
    return Analysis(answer, made, before, tuple(failures), left_out, time.monotonic() - start)


def check_tunables_used(kernel: Kernel) -> None:
    """Raise `UsageError` if the source does not use one of the kernel's tunables."""
    mentioned = {name for expression in _expressions(kernel) for name in expression.names}
    unused = unused_macros(kernel)
    for tunable in kernel.tunables:
        if tunable.macro in unused and tunable.name not in mentioned and len(tunable.values) > 1:
            raise UsageError(
                f"{kernel.name}: tunable {tunable.name} changes nothing: {kernel.source_name} does not mention"
                f" {tunable.macro}, and no expression of the spec mentions {tunable.name}"
            )


def _expressions(kernel: Kernel) -> Iterator[Expression]:
    yield from (*kernel.lets.values(), *kernel.constraints)
    for launch in kernel.launches:
        yield from (*launch.grid, *launch.block, launch.shared, *([launch.when] if launch.when else []))
        yield from (argument.value for argument in launch.arguments if hasattr(argument, "value"))
