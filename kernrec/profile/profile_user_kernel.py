"""Profiles of every config of a user's kernel on one problem and architecture, from samples of its blocks.

Configs that cannot differ are worked on once: those whose defines the source does not mention compile to the same code,
and those with the same code, launch and arguments are emulated once. Whatever is done is given at once, so that an
interrupted run goes on where it stopped. What the compiler or the emulator refused is remembered as well.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path

from kernrec.compile.assemble import assemble
from kernrec.compile.compiled import Compiled, CompileError, CompileJob
from kernrec.compile.pool import compile_many, processes_for, submit
from kernrec.errors import KernrecError
from kernrec.kernel import Config, Kernel, bind_launches
from kernrec.op import Problem
from kernrec.profile.failure_cache import Refused
from kernrec.profile.probe_profile import LaunchProfile
from kernrec.profile.sample_profile import BLOCK_BUDGET, code_hash, sample_config
from kernrec.profile.tensor_values import Tensors
from kernrec.store import ProfileRow

_AHEAD = 4  # tasks waiting to be emulated, per process: keeps memory bounded while compilation runs ahead
_MACRO = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class ProfileFailure:
    """A config that cannot be analysed, and why."""

    config: Config
    message: str


@dataclass(frozen=True)
class ProfileTarget:
    """What configs are analysed for: a problem, an architecture, and how far the emulator goes for a block.

    folder: where the spec's `.npy` files are.
    """

    problem: Problem
    sm: int
    folder: Path | None = None
    budget: int = BLOCK_BUDGET


@lru_cache(maxsize=16)
def unused_macros(kernel: Kernel) -> frozenset[str]:
    """The tunables' macros that the source does not mention: they reach the kernel by its launch alone."""
    if kernel.source_name.endswith(".ptx"):
        return frozenset(tunable.macro for tunable in kernel.tunables)
    words = set(_MACRO.findall(kernel.source))
    return frozenset(tunable.macro for tunable in kernel.tunables if tunable.macro not in words)


def compile_job_for(kernel: Kernel, config: Config, problem: Problem, sm: int) -> CompileJob:
    """How the code of a config is compiled; configs that differ in macros the source does not mention share a code."""
    defines, unused = kernel.defines(config, problem.dtype, problem.layout), unused_macros(kernel)
    used = {name: value for name, value in defines.items() if name not in unused}
    return CompileJob(kernel.source, sm, used, kernel.source_name)


def profile_configs(
    kernel: Kernel, configs: Iterable[Config], target: ProfileTarget, processes: int = 2
) -> Iterator[tuple[list[Config], list[ProfileRow]] | ProfileFailure]:
    """For configs that are one to the compiler and the emulator: the configs, and the rows to store of all of them.

    In order of completion; a config that fails costs only itself and its equals.
    """
    unused = unused_macros(kernel)
    by_defines: dict[tuple[tuple[str, str], ...], list[Config]] = {}
    for config in configs:
        defines = kernel.defines(config, target.problem.dtype, target.problem.layout)
        macros = tuple(sorted((name, value) for name, value in defines.items() if name not in unused))
        by_defines.setdefault(macros, []).append(config)
    members: dict[CompileJob, list[Config]] = {}

    def jobs() -> Iterator[CompileJob]:
        for defines, equal in by_defines.items():
            job = CompileJob(kernel.source, target.sm, dict(defines), kernel.source_name)
            members[job] = equal
            yield job

    waiting: dict[Future[list[LaunchProfile]], tuple[str, ...]] = {}
    done: dict[tuple[str, ...], list[LaunchProfile] | str] = {}
    asked: dict[tuple[str, ...], list[Config]] = {}
    refused = Refused(kernel, target.problem, target.budget)

    def collect() -> Iterator[tuple[list[Config], list[ProfileRow]] | ProfileFailure]:
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            key = waiting.pop(future)
            try:
                done[key] = future.result()
            except KernrecError as error:
                done[key] = str(error)
                refused.put(key, str(error))
            except MemoryError:
                done[key] = f"{kernel.name}: not enough memory to emulate {target.problem.key}"
            except BrokenProcessPool:
                raise KernrecError(
                    "a process that emulates died, perhaps for lack of memory; what is done is kept"
                ) from None
            yield from give(asked.pop(key), done[key])

    def give(
        equal: list[Config], found: list[LaunchProfile] | str
    ) -> Iterator[tuple[list[Config], list[ProfileRow]] | ProfileFailure]:
        if isinstance(found, str):
            yield from (ProfileFailure(config, found) for config in equal)
        else:
            yield equal, [row for config in equal for row in _rows(kernel, config, target, found)]

    with processes_for(processes) as pool:
        for job, result in _results(jobs(), processes):
            equal = members.pop(job)
            if isinstance(result, CompileError):
                yield from (ProfileFailure(config, str(result)) for config in equal)
                continue
            slim = replace(result, cubin=b"", log="")
            for config in equal:
                try:
                    key = (code_hash(result.ptx), *_launched(kernel, config, target))
                except KernrecError as error:
                    yield ProfileFailure(config, str(error))
                    continue
                if key not in done and key not in asked and (why := refused.get(key)):
                    done[key] = why
                if key in done:
                    yield from give([config], done[key])
                elif key in asked:
                    asked[key].append(config)
                else:
                    asked[key] = [config]
                    waiting[submit(pool, _sample, kernel, config, *_plain(target), slim)] = key
            while len(waiting) >= _AHEAD * processes:
                yield from collect()
        while waiting:
            yield from collect()


def _results(jobs: Iterable[CompileJob], processes: int) -> Iterator[tuple[CompileJob, Compiled | CompileError]]:
    """Jobs with what the compiler makes of them; of PTX, the assembler."""
    jobs = iter(jobs)
    first = next(jobs, None)
    if first is None:
        return
    if not first.name.endswith(".ptx"):
        yield from compile_many(chain([first], jobs), processes)
        return
    for job in chain([first], jobs):
        yield job, assemble(job.source, job.sm, job.name)


def _launched(kernel: Kernel, config: Config, target: ProfileTarget) -> tuple[str, ...]:
    """All that the emulator is given of a config beside its code."""
    return tuple(repr(bound) for bound in bind_launches(kernel, config, target.problem, target.sm))


def _plain(target: ProfileTarget) -> tuple[Mapping[str, int], str, str, int, Path | None, int]:
    problem = target.problem
    return problem.dim, problem.dtype, problem.layout, target.sm, target.folder, target.budget


def _sample(
    kernel: Kernel,
    config: Config,
    dims: Mapping[str, int],
    dtype: str,
    layout: str,
    sm: int,
    folder: Path | None,
    budget: int,
    compiled: Compiled,
) -> list[LaunchProfile]:
    """What a worker process does: everything goes by value, and a problem by its dimensions."""
    tensors = _tensors(kernel.hash, tuple(dims.items()), dtype, layout, folder, _Box(kernel))
    problem = kernel.definition.problem(dtype, layout, **dims)
    return sample_config(kernel, config, problem, sm, compiled, tensors, budget)


class _Box:
    """A kernel as an argument that does not count: two made from one spec are equal."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Box)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=1)
def _tensors(
    kernel_hash: str, dims: tuple[tuple[str, int], ...], dtype: str, layout: str, folder: Path | None, box: _Box
) -> Tensors:
    """The problem's tensors, made once in a process; what one config leaves in its outputs the next may find there."""
    problem = box.kernel.definition.problem(dtype, layout, **dict(dims))
    return Tensors(box.kernel, problem, folder)


def _rows(kernel: Kernel, config: Config, target: ProfileTarget, found: list[LaunchProfile]) -> Iterator[ProfileRow]:
    key = kernel.sample_keys([[config[t.name] for t in kernel.tunables]], target.problem.key)[0]
    for launch in found:
        yield launch.row(kernel, target.sm, key, {**config, "problem": target.problem.key})
