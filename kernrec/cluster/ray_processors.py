"""Provide the CPU cores of a Ray cluster as `Processors`, which compile and emulate configs.

Ray repeats a task on another node if its node dies. Results are cached on this machine. If a node has another version
of kernrec or of the compiler, the work ends with a one-line error.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import cache
from typing import Any, ParamSpec, TypeVar

from kernrec.cluster.gpu_actor import sources_hash
from kernrec.cluster.ray_cluster import connect
from kernrec.compile.compiled import CompileCache, Compiled, CompileError, CompileJob, Reason, Result
from kernrec.compile.nvrtc import cache_key, compiler
from kernrec.compile.pool import CompilingProcesses, ProcessorsLostError

P = ParamSpec("P")
R = TypeVar("R")

_LOOK_S = 2.0
"""Seconds between two checks whether any node is alive."""
_NO_NODE_S = 60.0
"""Seconds without any live node after which all work is abandoned."""
_RETRIES = 2
"""Number of times that Ray repeats a task whose process died."""
_AHEAD = 2
"""Number of compile jobs to submit per core, so that no core waits for the next job."""


def _here() -> dict[str, str]:
    return {"kernrec": sources_hash(), "compiler": compiler()}


def _run(expected: dict[str, str], task: Callable[..., R], arguments: Sequence[Any], named: Mapping[str, Any]) -> R:
    """Run a task on a node.

    Raise `ProcessorsLostError` if the node's version of kernrec or of the compiler is not the expected one.
    """
    for what, there in _here().items():
        if there != expected[what]:
            raise ProcessorsLostError(
                f"the {what} of {socket.gethostname()} is {there}, here it is {expected[what]}; update that node, or"
                " stop Ray on it"
            )
    return task(*arguments, **named)


@cache
def _compiling() -> CompilingProcesses:
    return CompilingProcesses(1)


def compiled_there(job: CompileJob, timeout_s: float) -> Compiled | tuple[str, str, Reason]:
    """Compile a job on this node, and return the compiled code.

    If the job does not compile, return (message, log, reason) of the `CompileError`.
    """
    ((_, result),) = _compiling().compile([job], timeout_s, CompileCache(None))
    return result if isinstance(result, Compiled) else (str(result), result.log, result.reason)


class RayProcessors:
    """CPU cores of a Ray cluster, available during a `with` block."""

    def __init__(self, address: str) -> None:
        """Connect to the cluster at an address. Raises the errors of `kernrec.cluster.ray_cluster.connect`."""
        self._ray = connect(address)
        self._expected = _here()
        self._task = self._ray.remote(_run).options(num_cpus=1, max_retries=_RETRIES)
        self._running: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._lost: str | None = None
        self._ended = threading.Event()
        self._cores = self._count_cores()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def __enter__(self) -> "RayProcessors":
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(_LOOK_S)
        self._ray.shutdown()

    @property
    def count(self) -> int:
        """Return the number of cores that the cluster has now."""
        return max(1, self._cores)

    def submit(self, task: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        future: Future[R] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._lost is not None:
                future.set_exception(_given_up(self._lost))
                return future
            self._running.add(future)
        remote = self._task.remote(self._expected, task, args, kwargs).future()
        remote.add_done_callback(lambda done: self._take(done, future))
        return future

    def compile(self, jobs: Iterable[CompileJob], timeout_s: float = 120.0) -> Iterator[tuple[CompileJob, Result]]:
        own, remaining = CompileCache.default(), iter(jobs)
        running: dict[Future[Compiled | tuple[str, str, Reason]], CompileJob] = {}
        while True:
            while len(running) < _AHEAD * self.count and (job := next(remaining, None)) is not None:
                if (cached := own.get(cache_key(job))) is not None:
                    yield job, cached
                else:
                    running[self.submit(compiled_there, job, timeout_s)] = job
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                try:
                    value = future.result()
                    result = value if isinstance(value, Compiled) else CompileError(*value)
                except MemoryError:
                    result = CompileError(f"{job.name}: the compiling process died", reason="crash")
                if isinstance(result, Compiled) or result.reason == "compile":
                    own.put(cache_key(job), result)
                yield job, result

    def _take(self, done: "Future[Any]", future: "Future[Any]") -> None:
        """Copy the result of Ray's future `done` to `future`, unless `_watch` has abandoned the task."""
        with self._lock:
            if future not in self._running:
                return
            self._running.remove(future)
        error = done.exception()
        if error is None:
            future.set_result(done.result())
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            future.set_exception(error.cause if isinstance(error.cause, Exception) else MemoryError())
        else:  # The process that ran the task died.
            future.set_exception(MemoryError())

    def _watch(self) -> None:
        """Abandon all tasks if no node is alive for `_NO_NODE_S` seconds, because Ray would wait forever."""
        alive_s = time.monotonic()
        while self._lost is None and not self._ended.wait(_LOOK_S):
            try:
                self._cores = self._count_cores()
            except Exception as error:  # The cluster's head node is gone.
                self._give_up(f"the cluster is lost: {' '.join(str(error).split())[:160]}")
            if self._cores:
                alive_s = time.monotonic()
            elif time.monotonic() - alive_s > _NO_NODE_S:
                self._give_up(f"no node of the cluster answers for {_NO_NODE_S:g} s")

    def _give_up(self, why: str) -> None:
        with self._lock:
            self._lost = why
            running, self._running = self._running, set()
        for future in running:
            future.set_exception(_given_up(why))

    def _count_cores(self) -> int:
        return sum(int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"])


def _given_up(why: str) -> ProcessorsLostError:
    return ProcessorsLostError(f"{why}; finished work is kept. Run the same command to resume")
