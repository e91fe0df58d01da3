"""Profile every config of a user's kernel on one problem and architecture, from samples of its blocks.

Configs with equal code are compiled once. If their launches and arguments are equal, too, they are emulated once. Each
profile is yielded immediately, so that an interrupted run can be continued.
"""

import os
from collections.abc import Collection, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, cast

from kernrec.compile.compiled import Compiled, CompileError, CompileJob, Result, reads_machine_code
from kernrec.compile.pool import Processors, processors_of
from kernrec.compile.together import launched_only
from kernrec.errors import KernrecError
from kernrec.kernel import Config, Kernel, bind_launches
from kernrec.profile.emulation_cache import Emulated, EmulationCache
from kernrec.profile.kernel_code import CodeKey, code_key, compile_job_for
from kernrec.profile.launch_profile import ProfileFailure, ProfileTarget
from kernrec.store import ProfileRow
from kernrec.util.process import collect_rarely

if TYPE_CHECKING:
    from kernrec.profile.tensor_values import Tensors

_MOST_WAITING = 16  # Maximum number of waiting tasks per process, to limit memory
Outcome = tuple[list[Config], list[ProfileRow]] | ProfileFailure
"""Result for configs with equal code and launch: either (configs, database rows of profiles), or a failure."""


def profile_configs(
    kernel: Kernel, configs: Iterable[Config], target: ProfileTarget, processors: Processors | int = 2
) -> Iterator[Outcome]:
    """Yield equivalent configs with the database rows of their profiles, or a failure, in order of completion."""
    by_code: dict[CodeKey, tuple[CompileJob, list[Config]]] = {}
    for config in configs:
        job = compile_job_for(kernel, config, target.problem, target.sm, target.folder)
        job = replace(job, machine_code=False)
        by_code.setdefault(code_key(job), (job, []))[1].append(config)
    configs_of = dict(by_code.values())
    with processors_of(processors) as opened, closing(_EmulationTasks(kernel, target, opened)) as tasks:
        for job, result in _compile(list(configs_of), {launch.entry for launch in kernel.launches}, opened):
            equal = configs_of[job]
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


_TaskKey = tuple[str, ...]


def _form(compiled: Compiled) -> int:
    """Return a hash that is equal for most configs whose PTX differs only in literals."""
    code = compiled.code or {}
    return hash(tuple(each.lines for each in code.values()) or compiled.ptx_hash)


class _EmulationTasks:
    """Tasks that emulate configs. Configs with equal code, launch and arguments share a task."""

    def __init__(self, kernel: Kernel, target: ProfileTarget, processors: Processors) -> None:
        self._kernel = kernel
        self._target = target
        self._processors = processors
        self._cache = EmulationCache(kernel, target.problem, target.budget)
        self._waiting: dict[int, list[tuple[_TaskKey, Config, Compiled]]] = {}
        self._running: dict[Future[tuple[int, Emulated]], _TaskKey] = {}
        # Configs of each waiting or running task.
        self._configs: dict[_TaskKey, list[Config]] = {}
        self._done: dict[_TaskKey, Emulated] = {}
        # Process that emulated each form last. It has cached analyses of the form (see `cached_by_form`).
        self._last: dict[int, int] = {}
        self._idle = [0] * processors.count
        self._lock = RLock()  # Protects the waiting tasks and idle processes.

    def __len__(self) -> int:
        return len(self._configs)

    def add(self, config: Config, compiled: Compiled) -> Iterator[Outcome]:
        """Add a task for a config unless an equal task exists. Yield the result if it is available."""
        kernel, target = self._kernel, self._target
        try:
            launches = bind_launches(kernel, config, target.problem, target.sm)
        except KernrecError as error:
            yield ProfileFailure(config, str(error))
            return
        machine = (compiled.compiler, f"sm_{target.sm}", sha256(compiled.cubin).hexdigest())
        key = (compiled.ptx_hash, *(machine if reads_machine_code() else ()), *map(repr, launches))
        if key not in self._done and key not in self._configs:
            cached = self._cache.get(key, compiled)
            if cached is not None:
                self._done[key] = cached
        if key in self._done:
            yield from self._outcomes([config], self._done[key])
        elif key in self._configs:
            self._configs[key].append(config)
        else:
            self._configs[key] = [config]
            with self._lock:
                self._waiting.setdefault(_form(compiled), []).append((key, config, replace(compiled, log="")))
                if self._idle:
                    self._start(self._idle.pop())

    def _start(self, process: int) -> None:
        """Start a waiting task for an idle process. Prefer forms that the process emulated last, then new forms.

        Args:
            process: ID of the idle process, or 0 if unknown, such as before its first task.
        """
        last, target = self._last, self._target
        form = max(self._waiting, key=lambda form: (last.get(form) == process, form not in last))
        last[form] = process or -1
        key, config, compiled = self._waiting[form].pop()
        if not self._waiting[form]:
            del self._waiting[form]
        dims, plain = dict(target.problem.dim), (target.sm, target.folder, target.budget)
        try:
            task = self._processors.submit(
                _sample, self._kernel, config, target.problem.dtype, target.problem.layout, dims, plain, compiled
            )
        except Exception as error:  # `collect` raises the error, because only the main thread can report it.
            task = Future()
            task.set_exception(error)
        self._running[task] = key
        task.add_done_callback(lambda done: self._next(form, done))

    def _next(self, form: int, done: "Future[tuple[int, Emulated]]") -> None:
        """Start the next task. The executor's thread calls this, because the main thread may wait for the compiler."""
        # Do not wait for a lock if the executor is broken, because it holds its own lock, which `submit` needs.
        if done.cancelled() or not isinstance(done.exception(), MemoryError | None):
            return
        with self._lock:
            process = 0 if done.exception() else done.result()[0]
            self._last[form] = process
            if self._waiting:
                self._start(process)
            else:
                self._idle.append(process)

    def close(self) -> None:
        """Drop waiting tasks, so that none starts after a running task ends."""
        with self._lock:
            self._waiting.clear()

    def collect(self) -> Iterator[Outcome]:
        """Wait for a task. Yield the results of finished tasks."""
        try:
            done = wait(self._running, return_when=FIRST_COMPLETED).done
            for future in sorted(done, key=lambda future: future.exception() is not None):  # Keep results first.
                yield from self._finish(self._running.pop(future), future)
        except BrokenProcessPool:
            raise KernrecError(
                "an emulation process died, perhaps because of too little memory; finished profiles are kept"
            ) from None

    def _finish(self, key: _TaskKey, future: "Future[tuple[int, Emulated]]") -> Iterator[Outcome]:
        result: Emulated
        try:
            _, result = future.result()
            self._cache.put(key, result)
        except MemoryError:
            result = f"{self._kernel.name}: not enough memory to emulate {self._target.problem.key}"
        self._done[key] = result
        yield from self._outcomes(self._configs.pop(key), result)

    def _outcomes(self, configs: list[Config], result: Emulated) -> Iterator[Outcome]:
        if isinstance(result, str):
            yield from (ProfileFailure(config, result) for config in configs)
            return
        kernel, target = self._kernel, self._target
        keys = kernel.sample_keys(([c[t.name] for t in kernel.tunables] for c in configs), target.problem.key)
        yield (
            configs,
            [
                profile.row(kernel, target.sm, key, {**config, "problem": target.problem.key})
                for config, key in zip(configs, keys, strict=True)
                for profile in result
            ],
        )


def _compile(
    jobs: list[CompileJob], entries: Collection[str], processors: Processors
) -> Iterator[tuple[CompileJob, Result]]:
    """Yield each job with its result. All jobs compile the same source, after kernels outside `entries` are removed."""
    source = jobs[0].source if jobs else ""
    if jobs and jobs[0].name.endswith(".ptx"):
        from kernrec.compile.assemble import assemble

        yield from ((job, assemble(source, job.sm, job.name)) for job in jobs)
        return
    waiting = dict.fromkeys(jobs)
    reduced = source if jobs and jobs[0].triton is not None else launched_only(source, entries)
    if reduced != source:
        whole = {replace(job, source=reduced): job for job in jobs}
        with closing(cast("Generator[tuple[CompileJob, Result]]", processors.compile(list(whole)))) as results:
            for job, result in results:
                if isinstance(result, CompileError) and result.reason == "compile":
                    break
                del waiting[whole[job]]
                yield whole[job], result
    yield from processors.compile(list(waiting))


def _sample(
    kernel: Kernel,
    config: Config,
    dtype: str,
    layout: str,
    dims: dict[str, int],
    plain: tuple[int, Path | None, int],
    compiled: Compiled,
) -> tuple[int, Emulated]:
    """Profile a config in a worker process. Return the process's ID and the profiles or an error message.

    A problem cannot be pickled, so its parts are passed instead.
    """
    # Import late, because only worker processes need the emulator.
    from kernrec.profile.sample_profile import profile_by_sampling

    collect_rarely()
    sm, folder, budget = plain
    target = ProfileTarget(kernel.definition.problem(dtype, layout, **dims), sm, folder, budget)
    try:
        return os.getpid(), profile_by_sampling(kernel, config, target, compiled, _tensors(kernel, target))
    except KernrecError as error:
        return os.getpid(), str(error)


_last_tensors: "dict[tuple[object, ...], Tensors]" = {}  # Tensors of the problem that this process emulated last.


def _tensors(kernel: Kernel, target: ProfileTarget) -> "Tensors":
    """Return the tensors of a problem. All configs in a process share them."""
    from kernrec.profile.tensor_values import Tensors

    key = (kernel.hash, target.problem.key, target.folder)
    if key not in _last_tensors:
        _last_tensors.clear()
        _last_tensors[key] = Tensors(kernel, target.problem, target.folder)
    return _last_tensors[key]
