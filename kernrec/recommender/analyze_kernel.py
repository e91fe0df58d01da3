"""A user's kernel on a problem and a GPU: every config profiled, estimated under a range of power limits, and ranked.

Profiles go to the user's database, so that what was done is not done again: not by a second analysis, not after an
interruption, and not by `kernrec recommend --kernel`.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.compile.compiled import CompileError
from kernrec.compile.nvrtc import compile_source
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU
from kernrec.kernel import Config, Kernel, Space, bind_launches
from kernrec.kernel.expression import Expression
from kernrec.op import Problem
from kernrec.profile.profile_library import VariantFailure, profile_variants, variants_of
from kernrec.profile.profile_user_kernel import (
    ProfileFailure,
    compile_job_for,
    profile_configs,
    unused_macros,
)
from kernrec.profile.sample_profile import BLOCK_BUDGET, ProfileTarget, argument_mismatch, entry_name
from kernrec.ptx import parse
from kernrec.recommender.estimate.model_store import Trained
from kernrec.recommender.infeasible import empty_constraint, refusing_constraint
from kernrec.recommender.kernel_advice import Advice, advise, check_asked, on_problem
from kernrec.store import Database, ProfileRow, Stack

_SAVE_S = 10.0
_SAVE_ROWS = 500
_HOPELESS = 24
"""So many configs failed, and none did not: the source is wrong, not the configs."""

Progress = Callable[[int, int], None]
"""Called with how many configs are done, of how many."""


@dataclass(frozen=True)
class Analysis:
    """The answer: advice, and what it took. failures: configs that have no profile, with the reason.

    profiled: configs that were compiled and emulated now; known: those whose profile the database had.
    """

    advice: Advice
    profiled: int
    known: int
    failures: tuple[ProfileFailure, ...]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        return {
            **self.advice.as_dict(),
            "profiled": self.profiled,
            "known": self.known,
            "failed": [{"config": dict(f.config), "message": f.message} for f in self.failures],
            "analysis_s": self.seconds,
        }


def analyze(
    kernel: Kernel,
    problem: Problem,
    gpu: GPU,
    database: Path,
    *,
    objective: str = "pareto",
    top: int = 5,
    folder: Path | None = None,
    processes: int = 2,
    budget: int = BLOCK_BUDGET,
    only: Sequence[Config] | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Profiles what is not profiled yet, and advises. Interrupted, it keeps in `database` what was done.

    only: the configs to look at; None: every valid one. Raises `UsageError` where no config can run, `KernrecError`
    with the first reason where none could be profiled.
    """
    start = time.monotonic()
    check_asked(objective, top)
    if processes < 1 or budget < 1:
        raise UsageError(f"processes and budget are {processes} and {budget}; at least 1 is accepted")
    space = Space(kernel, gpu.sm, gpu.limits, problem.dtype, problem.layout)
    check_used(kernel)
    rows = space.at(problem).rows if len(space) else np.zeros(0, np.int64)
    if not len(rows):
        raise UsageError(_why_empty(kernel, problem, gpu))
    with Database.open(database, read_only=False, create=True) as opened:
        remember(opened, kernel, problem)
        tables = opened.profiles(kernel.name, kernel.hash, gpu.sm).values()
    have = {key for table in tables for key in table.variant_keys}
    codes = space.configs_on(problem) if kernel.sampled else space.variants
    picked = None if only is None else {frozenset(config.items()) for config in only}
    wanted = [row for row in rows.tolist() if picked is None or frozenset(space.config(row).items()) in picked]
    todo = [space.config(row) for row in wanted if codes.keys[codes.index[row]] not in have]
    hopeless = min(_HOPELESS, len(todo)) if len(todo) == len(wanted) else None  # a config that is known has not failed
    failures: list[ProfileFailure] = []
    pending: list[ProfileRow] = []
    done, saved = 0, time.monotonic()

    def save() -> None:
        if pending:
            with Database.open(database, read_only=False) as opened:
                opened.add_profiles(pending)
            pending.clear()

    try:
        for result in _profiles(kernel, todo, ProfileTarget(problem, gpu.sm, folder, budget), processes):
            if isinstance(result, ProfileFailure):
                failures.append(result)
                if len(failures) == hopeless == done + 1:
                    raise _why_none(kernel, problem, gpu, result)
                done += 1
            else:
                pending += result[1]
                done += len(result[0])
            if progress:
                progress(done, len(todo))
            if len(pending) > _SAVE_ROWS or time.monotonic() - saved > _SAVE_S:
                save()
                saved = time.monotonic()
    finally:
        save()
    with Database.open(database) as opened:
        profiles = on_problem(kernel, problem, gpu, opened.profiles(kernel.name, kernel.hash, gpu.sm))
    if not profiles:
        raise _why_none(kernel, problem, gpu, failures[0])
    evidence = Stack([database]).evidence(gpu.name, problem.op, [kernel.name], problem.key)
    trained = Trained.beside([database])
    advice = advise(kernel, problem, gpu, profiles, objective=objective, top=top, evidence=evidence, trained=trained)
    seconds = time.monotonic() - start
    return Analysis(advice, len(todo) - len(failures), len(wanted) - len(todo), tuple(failures), seconds)


def _why_none(kernel: Kernel, problem: Problem, gpu: GPU, failure: ProfileFailure) -> KernrecError:
    """What to raise where no config has a profile: `CompileError` for the source, `UsageError` for wrong arguments."""
    try:
        job = compile_job_for(kernel, failure.config, problem, gpu.sm)
        module = parse(compile_source(job.source, job.sm, job.defines, job.name).ptx)
        bound = bind_launches(kernel, failure.config, problem, gpu.sm)
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


def remember(database: Database, kernel: Kernel, problem: Problem) -> None:
    """Adds a kernel and a problem to a database, from which `own.find_own_kernel` makes them again."""
    row = {
        "name": kernel.name,
        "kernel_hash": kernel.hash,
        "op": kernel.op,
        "spec": json.dumps(kernel.spec),  # not in canonical form: the order of tunables and dimensions counts
        "source": kernel.source,
    }
    database.add("kernel", [row])
    database.add("problem", [problem.as_dict()])


def check_used(kernel: Kernel) -> None:
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
    found = [*kernel.lets.values()]
    for launch in kernel.launches:
        found += [*launch.grid, *launch.block, launch.shared, *([launch.when] if launch.when else [])]
        found += [argument.value for argument in launch.arguments if hasattr(argument, "value")]
    return found


def _why_empty(kernel: Kernel, problem: Problem, gpu: GPU) -> str:
    if constraint := refusing_constraint(kernel, problem, gpu) or empty_constraint(kernel, problem, gpu):
        return f"{kernel.name}: no config is left on {gpu.name} for {problem.key} by {constraint!r}"
    return f"{kernel.name}: its constraints together leave no config on {gpu.name} for {problem.key}"
