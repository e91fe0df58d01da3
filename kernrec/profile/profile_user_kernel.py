"""Profiles of every config of a user's kernel on one problem and architecture, from samples of its blocks.

Configs that cannot differ are worked on once: those whose defines the source does not mention compile to the same code,
and those with the same code, launch and arguments are emulated once. Each result is given as soon as it is there, so
that an interrupted run goes on where it stopped. What the compiler and the emulator made of a config, or why they
refused it, is cached: another architecture with the same PTX is not emulated.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from kernrec.compile.assemble import assemble
from kernrec.compile.compiled import Compiled, CompileError, CompileJob
from kernrec.compile.pool import Processors, ProcessorsLostError, processors_of
from kernrec.errors import KernrecError
from kernrec.kernel import Config, Kernel, bind_launches
from kernrec.profile.emulation_cache import Emulated, EmulationCache
from kernrec.profile.kernel_code import CodeKey, code_key, compile_job_for
from kernrec.profile.probe_profile import LaunchProfile
from kernrec.profile.sample_profile import ProfileTarget, profile_by_sampling
from kernrec.profile.tensor_values import Tensors
from kernrec.store import ProfileRow

_MOST_WAITING = 4  # tasks to be emulated, per process: bounds memory while compilation runs ahead


@dataclass(frozen=True)
class ProfileFailure:
    """A config that cannot be profiled, and why."""

    config: Config
    """The config."""

    message: str
    """Why, in one line."""

    stopped: bool = False
    """Whether the limits of time and memory ended the compiler: the source may do so with every config."""


Outcome = tuple[list[Config], list[ProfileRow]] | ProfileFailure
"""Configs with the rows to store of all of them, or a config that cannot be profiled."""


def profile_configs(
    kernel: Kernel, configs: Iterable[Config], target: ProfileTarget, processors: Processors | int = 2
) -> Iterator[Outcome]:
    """Profiles configs, in order of completion; a config that fails costs only itself and its equals.

    Args:
        kernel: a kernel that is profiled by sampling.
        configs: its configs.
        target: problem and architecture.
        processors: to compile and to emulate with; a number: so many processes of this machine.

    Yields:
        Configs that are the same to the compiler and the emulator, with the rows to store of all of them; failures.
    """
    by_code: dict[CodeKey, list[Config]] = {}
    for config in configs:
        by_code.setdefault(code_key(kernel, config, target.problem, target.sm), []).append(config)
    configs_of: dict[CompileJob, list[Config]] = {}

    def jobs() -> Iterator[CompileJob]:
        for equal in by_code.values():
            job = compile_job_for(kernel, equal[0], target.problem, target.sm, target.folder)
            configs_of[job] = equal
            yield job

    with processors_of(processors) as opened:
        tasks = _EmulationTasks(kernel, target, opened)
        for job, result in _compile(jobs(), opened):
            equal = configs_of.pop(job)
            if isinstance(result, CompileError):
                stopped = result.reason != "compile"
                yield from (ProfileFailure(config, str(result), stopped) for config in equal)
                continue
            for config in equal:
                yield from tasks.add(config, result)
            while len(tasks) >= _MOST_WAITING * opened.count:
                yield from tasks.collect()
        while len(tasks):
            yield from tasks.collect()


class _EmulationTasks:
    """Configs that are being emulated; those with the same code, launch and arguments as one task."""

    def __init__(self, kernel: Kernel, target: ProfileTarget, processors: Processors) -> None:
        self._kernel = kernel
        self._target = target
        self._processors = processors
        self._cache = EmulationCache(kernel, target.problem, target.budget)
        self._running: dict[Future[list[LaunchProfile]], tuple[str, ...]] = {}
        self._configs: dict[tuple[str, ...], list[Config]] = {}  # of the running tasks
        self._done: dict[tuple[str, ...], Emulated] = {}

    def __len__(self) -> int:
        return len(self._running)

    def add(self, config: Config, compiled: Compiled) -> Iterator[Outcome]:
        """Starts to emulate a config, where no equal one is or was; its outcome if that is known already."""
        try:
            key = (compiled.ptx_hash, *_launches(self._kernel, config, self._target))
        except KernrecError as error:
            yield ProfileFailure(config, str(error))
            return
        if key not in self._done and key not in self._configs:
            known = self._cache.get(key, compiled)
            if known is not None:
                self._done[key] = known
        if key in self._done:
            yield from self._outcomes([config], self._done[key])
        elif key in self._configs:
            self._configs[key].append(config)
        else:
            self._configs[key] = [config]
            slim = replace(compiled, cubin=b"", log="")
            plain = _PlainTarget.of(self._target)
            self._running[self._processors.submit(_sample, self._kernel, config, plain, slim)] = key

    def collect(self) -> Iterator[Outcome]:
        """The outcomes of the tasks that are done; waits for one at least."""
        for future in wait(self._running, return_when=FIRST_COMPLETED).done:
            key = self._running.pop(future)
            result: Emulated
            try:
                result = future.result()
                self._cache.put(key, result)
            except ProcessorsLostError:
                raise
            except KernrecError as error:
                result = str(error)
                self._cache.put(key, result)
            except MemoryError:
                result = f"{self._kernel.name}: not enough memory to emulate {self._target.problem.key}"
            except BrokenProcessPool:
                raise KernrecError(
                    "an emulating process died, perhaps for lack of memory; the profiles made so far are kept"
                ) from None
            self._done[key] = result
            yield from self._outcomes(self._configs.pop(key), result)

    def _outcomes(self, configs: list[Config], result: Emulated) -> Iterator[Outcome]:
        if isinstance(result, str):
            yield from (ProfileFailure(config, result) for config in configs)
        else:
            yield configs, [row for config in configs for row in _rows(self._kernel, config, self._target, result)]


def _compile(
    jobs: Iterable[CompileJob], processors: Processors
) -> Iterator[tuple[CompileJob, Compiled | CompileError]]:
    """Jobs with their results: from the compiler, or of PTX from the assembler."""
    jobs = iter(jobs)
    first = next(jobs, None)
    if first is None:
        return
    if not first.name.endswith(".ptx"):
        yield from processors.compile(chain([first], jobs))
        return
    for job in chain([first], jobs):
        yield job, assemble(job.source, job.sm, job.name)


def _launches(kernel: Kernel, config: Config, target: ProfileTarget) -> tuple[str, ...]:
    """All that the emulator gets of a config beside its code."""
    return tuple(repr(bound) for bound in bind_launches(kernel, config, target.problem, target.sm))


@dataclass(frozen=True)
class _PlainTarget:
    """A `ProfileTarget` that can be sent to another process: the problem by its dimensions."""

    dims: Mapping[str, int]
    """Of the problem."""

    dtype: str
    """Of the problem."""

    layout: str
    """Of the problem."""

    sm: int
    """`ProfileTarget.sm`."""

    folder: Path | None
    """`ProfileTarget.folder`."""

    budget: int
    """`ProfileTarget.budget`."""

    @classmethod
    def of(cls, target: ProfileTarget) -> "_PlainTarget":
        problem = target.problem
        return cls(dict(problem.dim), problem.dtype, problem.layout, target.sm, target.folder, target.budget)

    def restore(self, kernel: Kernel) -> ProfileTarget:
        problem = kernel.definition.problem(self.dtype, self.layout, **self.dims)
        return ProfileTarget(problem, self.sm, self.folder, self.budget)


def _sample(kernel: Kernel, config: Config, plain: _PlainTarget, compiled: Compiled) -> list[LaunchProfile]:
    """The task of a worker process."""
    target = plain.restore(kernel)
    return profile_by_sampling(kernel, config, target, compiled, _tensors(kernel, target))


_last_tensors: dict[tuple[object, ...], Tensors] = {}  # of the problem that this process emulated last


def _tensors(kernel: Kernel, target: ProfileTarget) -> Tensors:
    """The problem's tensors, made once in a process; what one config leaves in its outputs the next may read there."""
    key = (kernel.hash, target.problem.key, target.folder)
    if key not in _last_tensors:
        _last_tensors.clear()
        _last_tensors[key] = Tensors(kernel, target.problem, target.folder)
    return _last_tensors[key]


def _rows(kernel: Kernel, config: Config, target: ProfileTarget, profiles: list[LaunchProfile]) -> Iterator[ProfileRow]:
    key = kernel.sample_keys([[config[t.name] for t in kernel.tunables]], target.problem.key)[0]
    for profile in profiles:
        yield profile.row(kernel, target.sm, key, {**config, "problem": target.problem.key})
