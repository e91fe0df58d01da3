"""Analyzing a user's kernel on a problem and a GPU: every config is profiled, then the recommender answers.

Profiles are stored in the user's database and reused: by a second analysis, after an interruption, and by
`kernrec recommend --kernel`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.compile.cache import CompileCache
from kernrec.compile.compiled import CompileError
from kernrec.compile.nvrtc import compile_job
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU
from kernrec.kernel import Config, Kernel, Space, bind_launches
from kernrec.kernel.expression import Expression
from kernrec.kernel.spec import config_text
from kernrec.op import Problem
from kernrec.profile.kernel_code import compile_job_for, unused_macros
from kernrec.profile.profile_library import VariantFailure, profile_variants, variants_of
from kernrec.profile.profile_user_kernel import ProfileFailure, profile_configs
from kernrec.profile.sample_profile import BLOCK_BUDGET, ProfileTarget, argument_mismatch, entry_name
from kernrec.ptx import parse
from kernrec.recommender.infeasible import empty_constraint, refusing_constraint
from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import Query
from kernrec.recommender.result import Recommendation
from kernrec.store import Database, ProfileRow
from kernrec.store.kernel_rows import remember
from kernrec.util.light_dataclass import dataclass

_SAVE_S = 10.0
_SAVE_ROWS = 500
_HOPELESS = 24
"""So many configs failed, and none did not: the source is wrong, not the configs."""

Progress = Callable[[int, int], None]
"""Called with how many configs are done, of how many."""


@dataclass(frozen=True)
class Analysis:
    """The recommendation, and what it took."""

    recommendation: Recommendation
    profiled: int
    """Configs that were compiled and emulated now."""
    known: int
    """Configs whose profile the database had."""
    failures: tuple[ProfileFailure, ...]
    """Configs that have no profile, with the reason."""
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        return {
            **self.recommendation.as_dict(),
            "profiled": self.profiled,
            "known": self.known,
            "failed": [{"config": dict(f.config), "message": f.message} for f in self.failures],
            "analysis_s": self.seconds,
        }


@dataclass(frozen=True)
class ProfilingOptions:
    """How the configs of a kernel are profiled."""

    folder: Path | None = None
    """Where the spec's files are; None where it names none."""
    processes: int = 2
    budget: int = BLOCK_BUDGET
    """Instructions that a block may execute before it is given up."""
    only: Sequence[Config] | None = None
    """The configs to profile; None for every valid one."""
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.processes < 1 or self.budget < 1:
            raise UsageError(f"processes and budget are {self.processes} and {self.budget}; at least 1 is accepted")


def analyze(
    kernel: Kernel,
    problem: Problem,
    gpu: GPU,
    database: Path,
    query: Query | None = None,
    options: ProfilingOptions | None = None,
) -> Analysis:
    """Profiles the configs that are not profiled yet, and recommends. What was done before an interruption is kept.

    Raises:
        UsageError: no config can run the problem, or the spec does not fit the source.
        KernrecError: no config could be profiled; the message is the first reason.
    """
    start = time.monotonic()
    query, options = query or Query(), options or ProfilingOptions()
    check_tunables_used(kernel)
    space = Space(kernel, gpu.sm, gpu.limits, problem.dtype, problem.layout)
    rows = space.at(problem).rows if len(space) else np.zeros(0, np.int64)
    if not len(rows):
        raise UsageError(_why_empty(kernel, problem, gpu))
    with Database.open(database, read_only=False, create=True) as opened:
        tables = opened.profiles(kernel.name, kernel.hash, gpu.sm).values()
    profiled = {key for table in tables for key in table.variant_keys}
    variants = space.configs_on(problem) if kernel.sampled else space.variants
    only = None if options.only is None else {frozenset(config.items()) for config in options.only}
    wanted = [row for row in rows.tolist() if only is None or frozenset(space.config(row).items()) in only]
    missing = [space.config(row) for row in wanted if variants.keys[variants.index[row]] not in profiled]
    # A config that has a profile has not failed: with one, the source is not wrong.
    hopeless = min(_HOPELESS, len(missing)) if len(missing) == len(wanted) else 0
    target = ProfileTarget(problem, gpu.sm, options.folder, options.budget)
    failures = _profile(kernel, missing, target, database, options, hopeless)
    if len(failures) < len(wanted):  # without a compiler, or with a source that is wrong, nothing is left behind
        with Database.open(database, read_only=False) as opened:
            remember(opened, kernel, problem)
    recommender = Recommender([database])
    if not recommender.context.find_profiles(kernel, problem, gpu):
        raise _why_none(kernel, problem, gpu.sm, failures[0])
    recommendation = recommender.answer_kernel(kernel, problem, gpu, query)
    seconds = time.monotonic() - start
    return Analysis(recommendation, len(missing) - len(failures), len(wanted) - len(missing), tuple(failures), seconds)


def _profile(
    kernel: Kernel,
    configs: Sequence[Config],
    target: ProfileTarget,
    database: Path,
    options: ProfilingOptions,
    hopeless: int,
) -> list[ProfileFailure]:
    """Profiles these configs into the database, some at a time; those that have no profile, with the reason.

    Raises:
        KernrecError: the first `hopeless` configs all failed, where that is not 0.
    """
    failures: list[ProfileFailure] = []
    pending: list[ProfileRow] = []
    done, saved = 0, time.monotonic()

    def save() -> None:
        if pending:
            with Database.open(database, read_only=False) as opened:
                opened.add_profiles(pending)
            pending.clear()

    try:
        for result in _profiles(kernel, configs, target, options.processes):
            if isinstance(result, ProfileFailure):
                failures.append(result)
                if len(failures) == hopeless == done + 1:
                    raise _why_none(kernel, target.problem, target.sm, result)
                done += 1
            else:
                pending += result[1]
                done += len(result[0])
            if options.progress:
                options.progress(done, len(configs))
            if len(pending) > _SAVE_ROWS or time.monotonic() - saved > _SAVE_S:
                save()
                saved = time.monotonic()
    finally:
        save()
    return failures


def _why_none(kernel: Kernel, problem: Problem, sm: int, failure: ProfileFailure) -> KernrecError:
    """What to raise where no config has a profile: `CompileError` for the source, `UsageError` for wrong arguments."""
    try:
        job = compile_job_for(kernel, failure.config, problem, sm)
        if job.triton is not None:  # which runs the user's code: in worker processes only
            return KernrecError(f"{config_text(failure.config)}: {failure.message}")
        module = parse(compile_job(job, CompileCache.default()).ptx)
        bound = bind_launches(kernel, failure.config, problem, sm)
        misfit = [argument_mismatch(module, entry_name(module.functions, launch.entry), launch) for launch in bound]
    except CompileError as error:
        return CompileError(failure.message, error.log)
    except KernrecError:
        misfit = []
    return UsageError(failure.message) if any(misfit) else KernrecError(failure.message)


def _profiles(
    kernel: Kernel, configs: Sequence[Config], target: ProfileTarget, processes: int
) -> Iterator[tuple[list[Config], list[ProfileRow]] | ProfileFailure]:
    """Configs with the rows to store of them: from samples of blocks, or from probes where the spec has them."""
    if kernel.sampled or not configs:
        yield from profile_configs(kernel, configs, target, processes) if configs else ()
        return
    problem = target.problem
    members: dict[str, list[Config]] = {}
    for config in configs:
        members.setdefault(kernel.variant_key(config, problem.dtype, problem.layout), []).append(config)
    variants = [variant for variant in variants_of(kernel, [target.sm]) if variant.key in members]
    for result in profile_variants(kernel, variants, processes=processes):
        if isinstance(result, VariantFailure):
            failed = next(variant for variant in variants if variant.fixed == result.fixed)
            yield from (ProfileFailure(config, result.message) for config in members[failed.key])
        else:
            yield members[result[0].variant_key], result


def check_tunables_used(kernel: Kernel) -> None:
    """Raises `UsageError` for a tunable that nothing depends on: its name in the source is likely another."""
    unused = unused_macros(kernel)
    named: set[str] = set()
    for expression in _expressions(kernel):
        named |= expression.names
    for tunable in kernel.tunables:
        if tunable.macro in unused and tunable.name not in named and len(tunable.values) > 1:
            raise UsageError(
                f"{kernel.name}: tunable {tunable.name} changes nothing: {kernel.source_name} does not mention"
                f" {tunable.macro}, and no expression of the spec mentions {tunable.name}"
            )


def _expressions(kernel: Kernel) -> Sequence[Expression]:
    expressions = [*kernel.lets.values(), *kernel.constraints]
    for launch in kernel.launches:
        expressions += [*launch.grid, *launch.block, launch.shared, *([launch.when] if launch.when else [])]
        expressions += [argument.value for argument in launch.arguments if hasattr(argument, "value")]
    return expressions


def _why_empty(kernel: Kernel, problem: Problem, gpu: GPU) -> str:
    if constraint := refusing_constraint(kernel, problem, gpu) or empty_constraint(kernel, problem, gpu):
        return f"{kernel.name}: no config is left on {gpu.name} for {problem.key} by {constraint!r}"
    return f"{kernel.name}: its constraints together leave no config on {gpu.name} for {problem.key}"
