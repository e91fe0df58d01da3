"""Profile the configs of a user's kernel, store the profiles in a database, and explain failures."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from kernrec.compile.compiled import CompileError
from kernrec.errors import KernrecError, UsageError
from kernrec.kernel import Config, Kernel, bind_launches
from kernrec.op import Problem
from kernrec.profile.kernel_code import compile_job_for
from kernrec.profile.launch_profile import BLOCK_BUDGET, COUNTS_VERSION, VERSION, ProfileFailure, ProfileTarget
from kernrec.recommender.result import Answer
from kernrec.store import Database, ProfileRow, ProfileTable
from kernrec.util.human import config_text, counted
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.compile.pool import Processors
    from kernrec.profile.profile_user_kernel import Outcome

_SAVE_S = 10.0
_SAVE_ROWS = 500
_HOPELESS = 24
"""Number of failed configs after which profiling stops if no config has succeeded."""
_STOPPED = 2
"""Number of compilation timeouts after which profiling stops if no config has succeeded."""

Progress = Callable[[int, int], None]
"""Callback that receives the number of finished configs and the total. The total may be too high, or 0 if unknown."""


@dataclass(frozen=True)
class ProfilingOptions:
    folder: Path | None = None
    """Folder that contains the files named in the kernel's spec, or None if the spec names no files."""
    processes: "Processors | int" = 2
    """Number of worker processes to start, or a `Processors` object with running processes."""
    budget: int = BLOCK_BUDGET
    """Maximum number of instructions to emulate for each block."""
    only: Sequence[Config] | None = None
    """The only configs to profile, in this order, or None for all valid configs."""
    whole: bool = False
    """Whether to profile every config of a large space."""
    progress: Progress | None = None
    first_front: Callable[[Answer, int], None] | None = None
    """Callback that receives a first answer during profiling, and the number of configs profiled so far."""

    def __post_init__(self) -> None:
        if (isinstance(self.processes, int) and self.processes < 1) or self.budget < 1:
            raise UsageError(f"processes={self.processes}, budget={self.budget}: expected at least 1 each")

    def report_of(self, total: int, before: int = 0) -> Callable[[int], None]:
        """Return a callback for `ConfigProfiler.profile` that reports the progress of several calls together.

        Args:
            total: number of configs to profile in all calls.
            before: number of configs that earlier calls finished.
        """
        return lambda done: None if self.progress is None else self.progress(before + done, total)


@dataclass(frozen=True)
class ConfigProfiler:
    """Profile the configs of one kernel on one problem, and store the profiles in a database."""

    kernel: Kernel
    target: ProfileTarget
    database: Path
    options: ProfilingOptions

    def stored_variants(self, needed: set[str]) -> set[str]:
        """Return the keys of the needed compiled variants that have up-to-date profiles in the user's database.

        If there are any, store the kernel and the problem, too. Create the database if it does not exist.
        """
        if not self.database.exists():
            Database.create(self.database)
            return set()
        with Database.open(self.database, read_only=False) as opened:
            tables = opened.profiles(self.kernel.name, self.kernel.hash, self.target.sm, own=True).values()
            if stored := needed.intersection(key for table in tables for key in self._up_to_date_keys(table)):
                opened.add_kernel(self.kernel, self.target.problem)
        return stored

    def _up_to_date_keys(self, table: ProfileTable) -> Sequence[str]:
        # A new version of the emulator outdates only profiles from a sample of blocks.
        if not self.kernel.sampled:
            return table.variant_keys
        if VERSION not in table.metrics:
            return ()
        versions = table.counts[:, table.metrics.index(VERSION), 0]
        return [key for key, version in zip(table.variant_keys, versions, strict=True) if version == COUNTS_VERSION]

    def profile(self, configs: Sequence[Config], hopeless: bool, report: Callable[[int], None]) -> list[ProfileFailure]:
        """Profile configs, store the profiles in batches, and return the failed configs with their reasons.

        Args:
            hopeless: whether to stop early if all of the first configs fail.
            report: callback that receives the number of finished configs.

        Raises:
            KernrecError: profiling stopped early, after `_HOPELESS` failures or `_STOPPED` timeouts.
        """
        failures: list[ProfileFailure] = []
        pending: list[ProfileRow] = []
        done, stopped, saved = 0, 0, time.monotonic()
        enough = min(_HOPELESS, len(configs))
        processes = self.options.processes
        if isinstance(processes, int):
            processes = min(processes, max(1, len(configs)))  # The first task starts all, even if few are needed.

        def save() -> None:
            if pending:
                with Database.open(self.database, read_only=False) as opened:
                    opened.caches = True  # The recommendation after profiling reads the cache file.
                    opened.add_profiles(pending)
                    opened.add_kernel(self.kernel, self.target.problem)
                pending.clear()

        try:
            outcomes = outcomes_of(self.kernel, configs, self.target, processes)
            for result in outcomes if configs else ():
                if isinstance(result, ProfileFailure):
                    failures.append(result)
                    done += 1
                    stopped += result.stopped
                    if hopeless and done == len(failures) and (done == enough or stopped >= _STOPPED):
                        raise self.why_none(result)
                else:
                    pending += result[1]
                    done += len(result[0])
                report(done)
                if len(pending) > _SAVE_ROWS or time.monotonic() - saved > _SAVE_S:
                    save()
                    saved = time.monotonic()
        finally:
            save()
        return failures

    def why_none(self, failure: ProfileFailure) -> KernrecError:
        """Return the error to raise if all configs failed, given one of the failures."""
        if failure.stopped:
            return KernrecError(failure.message)
        from kernrec.compile.pool import compile_many
        from kernrec.profile.emulated_launch import argument_mismatch
        from kernrec.profile.launch_profile import entry_name
        from kernrec.ptx import parse

        kernel, problem, sm = self.kernel, self.target.problem, self.target.sm
        try:
            job = compile_job_for(kernel, failure.config, problem, sm)
            if job.triton is not None:  # The user's Python code runs only in workers.
                return KernrecError(f"{config_text(failure.config)}: {failure.message}")
            ((_, compiled),) = compile_many([job], processes=1)
            if isinstance(compiled, CompileError):
                raise compiled
            module = parse(compiled.ptx)
            bound = bind_launches(kernel, failure.config, problem, sm)
            misfit = [argument_mismatch(module, entry_name(module.functions, launch.entry), launch) for launch in bound]
        except CompileError as error:
            return CompileError(failure.message, error.log)
        except KernrecError:
            misfit = []
        return UsageError(failure.message) if any(misfit) else KernrecError(failure.message)


def outcomes_of(
    kernel: Kernel, configs: Sequence[Config], target: ProfileTarget, processors: "Processors | int"
) -> "Iterator[Outcome]":
    """Profile configs in worker processes, and yield each profile or failure."""
    if kernel.sampled:
        import kernrec.profile.sample_profile  # noqa: F401 - Forked processes inherit the import.
        from kernrec.profile.profile_user_kernel import profile_configs

        yield from profile_configs(kernel, configs, target, processors)
        return
    from kernrec.profile.profile_library import VariantFailure, profile_variants, variants_of

    members: dict[str, list[Config]] = {}
    problem = kernel.form(target.problem)
    for config in configs:
        key = kernel.variant_key(config, problem.dtype, problem.layout)
        members.setdefault(key, []).append(config)
    variants = [variant for variant in variants_of(kernel, [target.sm]) if variant.key in members]
    for result in profile_variants(kernel, variants, processors=processors):
        if isinstance(result, VariantFailure):
            failed = next(variant for variant in variants if variant.fixed == result.fixed)
            yield from (ProfileFailure(config, result.message) for config in members[failed.key])
        else:
            yield members[result[0].variant_key], result


def recorded_configs(database: Path, kernel: Kernel, problem: Problem) -> list[Config]:
    """Return the configs of a kernel that were measured on a problem, on any GPU.

    The order is random but reproducible. Raise `UsageError` if there are none.
    """
    with Database.open(database) as opened:
        problems = {row["problem_id"]: str(row["key"]) for row in opened.rows("problem")}
        tunables = {row["config_id"]: str(row["tunables"]) for row in opened.rows("config")}
        rows = opened.rows("unretracted_rows", kernel=kernel.name)
    same = [row for row in rows if row["kernel_hash"] == kernel.hash]
    texts = sorted({tunables[row["config_id"]] for row in same if problems[row["problem_id"]] == problem.key})
    if not texts:
        elsewhere = sorted({problems[row["problem_id"]] for row in same})
        reason = f"has no rows of kernel {kernel.name}"
        if elsewhere:
            reason = f"has rows of {kernel.name} on {', '.join(elsewhere[:3])}, not on {problem.key}"
        elif rows:
            reason = f"has {counted(len(rows), 'row')} of another source or spec of {kernel.name}, none of this one"
        raise UsageError(f"--effort recorded: {database} {reason}")
    Random(0).shuffle(texts)
    return [json.loads(text) for text in texts]
