"""Compile many sources in parallel, in worker processes. A process that hangs or dies does not affect other jobs.

NVRTC holds Python's interpreter lock, so threads would not compile in parallel (NVIDIA/cuda-python#624). The standard
library's process pools cannot kill a slow job, and do not survive a worker that dies.
"""

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing, contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from kernrec.compile.compiled import CompileCache, Compiled, CompileError, CompileJob, Reason, Result
from kernrec.compile.nvrtc import cached_result, compiler
from kernrec.compile.together import MOST_TOGETHER, Together, can_be_together, together_key
from kernrec.compile.triton_version import triton_compiler
from kernrec.errors import KernrecError
from kernrec.util.patch import environment
from kernrec.util.process import collect_rarely, keep_freed, limit_resources, not_inherited, settle, start_context

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext, SpawnContext

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE_S = 180.0
"""Additional seconds for a job that imports an installed module, which may import torch."""
_MOST_MEMORY = 8 * 2**30
"""Maximum address space of a compiling process in bytes. CuPy and NVRTC need less than 2 GiB."""
_MOST_WAITING = 5
"""Maximum elapsed time of a job, as a multiple of its processor time limit."""
_changing = threading.RLock()  # Protects environment variables from concurrent changes.
_START_LIMIT_S = 120.0  # Seconds to start an interpreter and load CuPy on a busy machine.


def compile_many(
    jobs: Iterable[CompileJob],
    processes: int | None = None,
    timeout_s: float = 120.0,
    cache: CompileCache | None = None,
) -> Iterator[tuple[CompileJob, Result]]:
    """Compile jobs in parallel. Yield (job, result) in order of completion.

    A script that calls this needs the guard `if __name__ == "__main__":`, because workers are spawned.

    Args:
        jobs: jobs, consumed as workers become free.
        processes: number of worker processes, by default one per CPU. No process starts if all results are cached.
        timeout_s: limit of one job in seconds: processor time on Linux, elapsed time elsewhere.

    Yields:
        Each job with its result, or with a `CompileError` if it fails or takes too long.

    Raises:
        NoCompilerError: CuPy, NVRTC or a needed Triton is missing.
        KernrecError: a worker cannot start.
    """
    with closing(CompilingProcesses(processes or os.cpu_count() or 1)) as compiling:
        yield from compiling.compile(jobs, timeout_s, cache)


class CompilingProcesses:
    """Compiling processes that start on demand and run until `close`."""

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._workers: list[_Worker] = []

    def compile(
        self, jobs: Iterable[CompileJob], timeout_s: float = 120.0, cache: CompileCache | None = None
    ) -> Iterator[tuple[CompileJob, Result]]:
        """Compile jobs like `compile_many`. A new call drops unfinished jobs, so consume all results first."""
        cache = cache if cache is not None else CompileCache.default()
        workers = self._workers
        groups = group_jobs(jobs, cache)
        # Parts of groups that were too large, or during which a process died
        parts: deque[list[CompileJob]] = deque()
        try:
            while True:
                while (free := next((w for w in workers if not w.jobs), None)) or len(workers) < self._limit:
                    group = parts.popleft() if parts else next(groups, None)
                    if group is None:
                        break
                    if isinstance(group, tuple):
                        yield group
                        continue
                    if free is None:
                        of_triton = group[0].triton is not None
                        if of_triton and start_context().get_start_method() == "fork":
                            _import_triton()
                        free = _Worker(cache.folder, of_triton)
                        workers.append(free)
                    free.give(group, timeout_s)
                busy = [worker for worker in workers if worker.jobs]
                if not busy:
                    return
                first_deadline = min(worker.deadline for worker in busy)
                wait([worker.connection for worker in busy], max(0.0, first_deadline - time.monotonic()))
                for worker in busy:
                    yield from worker.poll()
                    parts += worker.returned()
                    if not worker.alive:
                        workers.remove(worker)
        finally:
            self._stop([worker for worker in workers if worker.jobs or not worker.alive])

    def close(self) -> None:
        self._stop(self._workers.copy())

    def _stop(self, workers: "list[_Worker]") -> None:
        for worker in workers:
            worker.stop()
            if worker in self._workers:
                self._workers.remove(worker)


def group_jobs(
    jobs: Iterable[CompileJob], cache: CompileCache
) -> Iterator[tuple[CompileJob, Result] | list[CompileJob]]:
    """Yield (job, result) for each cached job. Also yield lists of jobs to compile together."""
    groups: dict[tuple[str | int, ...], list[CompileJob]] = {}  # Jobs with the same source, by `together_key`.
    for job in jobs:
        if (cached := cached_result(job, cache)) is not None:
            yield job, cached
            continue
        if not can_be_together(job):
            yield [job]
            continue
        if groups and job.source != next(iter(groups.values()))[0].source:
            yield from groups.values()
            groups = {}
        key = together_key(job)
        groups.setdefault(key, []).append(job)
        if len(groups[key]) == MOST_TOGETHER:
            yield groups.pop(key)
    yield from groups.values()


class _Worker:
    def __init__(self, cache_folder: Path | None, of_triton: bool) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        not_inherited(self.connection)
        context = start_context()
        self.process = context.Process(target=_serve, args=(theirs, cache_folder, of_triton), daemon=True)
        with interrupts_blocked(context):
            self.process.start()
        theirs.close()  # Close this copy of the child's end, so that reading returns end-of-file when the process ends.
        self.timeout_s = 0.0
        self.deadline = time.monotonic() + _START_LIMIT_S
        # Start time and time limit of the current job, and CPU seconds of the process at the start
        self._begun = self._limit_s = self._processor_s = 0.0
        self.ready = False
        self.alive = True
        self.jobs: list[CompileJob] = []
        # Maximum number of jobs that the process can compile together, or None if `jobs` are not too many
        self._most: int | None = None
        self._together = False

    def give(self, jobs: list[CompileJob], timeout_s: float) -> None:
        self.jobs, self.timeout_s = jobs, timeout_s
        if self.ready:
            self._send(jobs)

    def poll(self) -> list[tuple[CompileJob, Result]]:
        """Return jobs that have finished since the last call, with results. Stop a process that is late or broken."""
        results: list[tuple[CompileJob, Result]] = []
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if not self.ready:
                    self.ready = True
                    if self.jobs:
                        self._send(self.jobs)
                elif isinstance(message, int):
                    self._most = message
                else:
                    result = message if isinstance(message, Compiled) else CompileError(*message)
                    results.append((self.jobs.pop(0), result))
                    self._begin()
        except (EOFError, OSError):
            self.stop()
            code = self.process.exitcode
            ended = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
            return results + self._lost(f"the compiling process died ({ended})", "crash")
        if results or not self.jobs or not self._is_late():
            return results
        self.stop()
        return self._lost(f"compiling took longer than {self.timeout_s:g} s", "timeout")

    def returned(self) -> list[list[CompileJob]]:
        """Take back unfinished jobs in smaller groups, if the group was too large or if the process died."""
        most = 1 if not self.alive else self._most
        if most is None:
            return []
        jobs, self.jobs, self._most = self.jobs, [], None
        return [jobs[first : first + most] for first in range(0, len(jobs), most)]

    def stop(self) -> None:
        self.alive = False
        self.process.kill()  # Killing needs no cleanup, because the process writes cache files atomically.
        self.process.join()
        self.connection.close()

    def _send(self, jobs: list[CompileJob]) -> None:
        self._together = len(jobs) > 1
        self._begin()
        with suppress(OSError):  # An idle process may have died. The next read reports its end.
            self.connection.send(jobs)

    def _begin(self) -> None:
        packaged = any(job.triton is not None and bool(job.triton.module) for job in self.jobs[:1])
        self._begun, self._processor_s = time.monotonic(), _processor_s(self.process.pid)
        self._limit_s = self.timeout_s + packaged * _PACKAGE_S
        self.deadline = self._begun + self._limit_s

    def _is_late(self) -> bool:
        """Return whether the first job has used its CPU time. Postpone the deadline if the job waited for a CPU."""
        now = time.monotonic()
        if now < self.deadline:
            return False
        left_s = self._limit_s - (_processor_s(self.process.pid) - self._processor_s)
        if not self.ready or left_s <= 0 or now >= self._begun + _MOST_WAITING * self._limit_s:
            return True
        self.deadline = now + left_s
        return False

    def _lost(self, event: str, reason: Reason) -> list[tuple[CompileJob, Result]]:
        """Return the job that ended the process with its error, or nothing if several jobs are possible causes."""
        if not self.ready:
            raise KernrecError(f"a compiling process did not start: {event}")
        if self._together or not self.jobs:
            return []
        job = self.jobs.pop(0)
        return [(job, CompileError(f"{job.name}: {event}", reason=reason))]


def _import_triton() -> None:
    """Import Triton's compiler. Forked processes inherit the import."""
    with suppress(ImportError):
        import triton.compiler.code_generator  # noqa: F401

        import kernrec.compile.triton_cache
        import kernrec.compile.triton_compile  # noqa: F401


def _serve(connection: Connection, cache_folder: Path | None, of_triton: bool) -> None:
    settle()
    together = Together(CompileCache(cache_folder))
    limit_memory()
    if of_triton:
        _import_triton()  # Import before the first job, so that its time limit excludes the import.
    connection.send(triton_compiler() if of_triton else compiler())
    collect_rarely()
    keep_freed()
    while True:
        try:
            jobs: list[CompileJob] = connection.recv()
        except EOFError:
            return
        for result in together.results(jobs):
            if isinstance(result, CompileError):
                connection.send((str(result), result.log, result.reason))
            else:
                connection.send(result)


def _processor_s(pid: int | None) -> float:
    """Return a process's processor time in seconds, or infinity after its end. Outside Linux, return elapsed time."""
    if sys.platform != "linux" or pid is None:
        return time.monotonic()
    try:
        return time.clock_gettime(~pid << 3 | 2)  # The clock id that clock_getcpuclockid(3) returns.
    except OSError:
        return math.inf


def limit_memory() -> None:
    """Limit the memory of this process, because nested macros can make the compiler use all of it."""
    if sys.platform != "darwin":
        # Limit both, because NVRTC raises the soft limit to the hard limit.
        limit_resources(AS=(_MOST_MEMORY, _MOST_MEMORY))


@contextmanager
def interrupts_blocked(context: "ForkContext | SpawnContext") -> Iterator[None]:
    """Within a `with` block, make new processes of `context` ignore Ctrl-C and a closed terminal.

    Their parent handles both signals. The processes import nothing from the working folder.
    """
    with _changing, environment(PYTHONSAFEPATH="1"):
        if not hasattr(signal, "pthread_sigmask"):
            yield
            return
        # The resource tracker ignores SIGINT and SIGTERM, but not SIGHUP.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            if context.get_start_method() == "spawn":
                # Start the tracker before blocking Ctrl-C, because starting it unblocks Ctrl-C.
                resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Processors:
    """Processes that run Python tasks, and processes that compile sources."""

    def __init__(self, count: int, compiling: CompilingProcesses) -> None:
        self.count = count
        self._context: ForkContext | SpawnContext | None = None
        self._pool: ProcessPoolExecutor | None = None
        self._compiling = compiling

    def compile(self, jobs: Iterable[CompileJob], timeout_s: float = 120.0) -> Iterator[tuple[CompileJob, Result]]:
        return self._compiling.compile(jobs, timeout_s)

    def submit(self, task: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run a module-level function in a working process."""
        context = self._context = self._context or start_context()
        with interrupts_blocked(context):
            if self._pool is None:
                self._pool = ProcessPoolExecutor(self.count, mp_context=context, initializer=_end_with_parent)
            return self._pool.submit(task, *args, **kwargs)

    def close(self) -> None:
        """End the processes after their current tasks."""
        if self._pool is not None:
            self._pool.shutdown()

    def kill(self) -> None:
        if self._pool is not None:
            for process in list((self._pool._processes or {}).values()):  # Python 3.14 adds `kill_workers`.
                process.kill()
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


@contextmanager
def processors_of(processors: "Processors | int") -> Iterator[Processors]:
    """Yield `processors` in a `with` block. If `processors` is a number, start as many processes for the block.

    If the block raises an exception, end the started processes without waiting for their tasks.
    """
    if not isinstance(processors, int):
        yield processors
        return
    with closing(CompilingProcesses(processors)) as compiling, closing(Processors(processors, compiling)) as local:
        try:
            yield local
        except BaseException:
            local.kill()
            raise


def _end_with_parent() -> None:
    settle()
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
