"""The cores of a Ray cluster as `Processors`: they compile and emulate the configs of `analyze` and of the database.

Every piece of work is a task of Ray's, which places it on a free core, and on another one where its node dies. Results
are kept in the cache of this machine, so the same code is done once in the cluster. A node whose
kernrec or compiler differs is left out: its first answer says so, and then an actor holds all its cores. Tasks are
functions of kernrec with plain values, sent by Ray's own channel between nodes that are yours.
"""

import pickle
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, ParamSpec, TypeVar

from kernrec.cluster.ray_cluster import connect, on_node
from kernrec.cluster.versions import sources_hash
from kernrec.compile.cache import CompileCache
from kernrec.compile.compiled import Compiled, CompileError, CompileJob, Reason, Result
from kernrec.compile.nvrtc import cache_key, compiler
from kernrec.compile.pool import CompilingProcesses, ProcessorsLostError
from kernrec.errors import KernrecError

P = ParamSpec("P")
R = TypeVar("R")

_LOOK_S = 2.0
"""How often it is seen whether nodes live."""
_NO_NODE_S = 60.0
"""How long no node may answer."""
_RETRIES = 2
"""How often Ray gives a task to another process when one dies."""
_AHEAD = 2
"""Sources that wait to be compiled, for each core."""


@dataclass(frozen=True)
class _Differs:
    """The answer of a node that has another kernrec or compiler."""

    node: str
    name: str
    reason: str


def _here() -> dict[str, str]:
    return {"kernrec": sources_hash(), "compiler": compiler()}


def _run(expected: dict[str, str], call: bytes) -> Any:
    """A task on a node, a pickled function with its arguments: its value, or a `KernrecError` or `_Differs`."""
    for what, there in _here().items():
        if there != expected[what]:
            import ray

            reason = f"its {what} is {there}, here it is {expected[what]}"
            return _Differs(ray.get_runtime_context().get_node_id(), socket.gethostname(), reason)
    task, arguments, named = pickle.loads(call)
    try:
        return task(*arguments, **named)
    except KernrecError as error:
        return KernrecError(str(error))


@cache
def _compiling() -> CompilingProcesses:
    return CompilingProcesses(1)


def compiled_there(job: CompileJob, timeout_s: float) -> Compiled | tuple[str, str, Reason]:
    """The task that compiles a job on a node: its code, or message, log and reason of a `CompileError`."""
    ((_, result),) = _compiling().compile([job], timeout_s, CompileCache(None))
    return result if isinstance(result, Compiled) else (str(result), result.log, result.reason)


class _Nothing:
    """An actor that holds the cores of a node that is left out."""


class RayProcessors:
    """The cores of a cluster, until the end of a `with` block."""

    def __init__(self, address: str, note: Callable[[str], None]) -> None:
        """Join a cluster.

        Args:
            address: as of `connect`.
            note: called with a line for the user.

        Raises:
            KernrecError: as of `connect`.
        """
        self._ray = connect(address)
        self._note = note
        self._expected = _here()
        self._submitted: queue.SimpleQueue[tuple[bytes, Future[Any]]] = queue.SimpleQueue()
        self._left_out: dict[str, Any] = {}  # by node: what holds its cores
        self._cores = 0
        self._lost: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def __enter__(self) -> "RayProcessors":
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(_LOOK_S)
        self._ray.shutdown()

    @property
    def count(self) -> int:
        """Cores that take part now."""
        return max(1, self._cores)

    def submit(self, task: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        future: Future[R] = Future()
        self._submitted.put((pickle.dumps((task, args, kwargs)), future))
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

    def _work(self) -> None:
        """The thread that gives tasks to Ray and takes their answers."""
        running: dict[Any, tuple[bytes, Future[Any]]] = {}
        try:
            self._serve(running)
        except Exception as error:  # of Ray, whose head is gone: nobody may wait for an answer for ever
            self._lost = f"the cluster is lost: {' '.join(str(error).split())[:160]}"
        for _, future in running.values():
            self._give_up(future)
        while not self._ended.is_set():
            with suppress(queue.Empty):
                self._begin(self._submitted.get(timeout=0.1), {})

    def _serve(self, running: "dict[Any, tuple[bytes, Future[Any]]]") -> None:
        looked_s, alone_s = -_LOOK_S, time.monotonic()
        while not self._ended.is_set():
            with suppress(queue.Empty):
                while True:
                    self._begin(self._submitted.get(timeout=0.01 if running else 0.1), running)
            if running:
                for reference in self._ray.wait(list(running), num_returns=len(running), timeout=0.05)[0]:
                    self._take(reference, *running.pop(reference))
            now_s = time.monotonic()
            if now_s - looked_s >= _LOOK_S:
                looked_s, self._cores = now_s, self._count_cores()
            if self._cores:
                alone_s = now_s
            elif now_s - alone_s > _NO_NODE_S:
                self._lost = f"no node of the cluster answers for {_NO_NODE_S:g} s"
                while running:
                    self._give_up(running.popitem()[1][1])

    def _begin(self, task: "tuple[bytes, Future[Any]]", running: "dict[Any, tuple[bytes, Future[Any]]]") -> None:
        call, future = task
        if self._lost is not None:
            self._give_up(future)
        elif future.running() or future.set_running_or_notify_cancel():
            remote = self._ray.remote(_run).options(num_cpus=1, max_retries=_RETRIES)
            running[remote.remote(self._expected, call)] = task

    def _give_up(self, future: "Future[Any]") -> None:
        why = f"{self._lost}; what is done is kept, the same command goes on"
        future.set_exception(ProcessorsLostError(why))

    def _take(self, reference: Any, call: bytes, future: "Future[Any]") -> None:
        """Pass the answer to a task on."""
        try:
            value = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:  # what is no `KernrecError`: memory, or a mistake of ours
            future.set_exception(error.cause if isinstance(error.cause, Exception) else MemoryError())
        except self._ray.exceptions.RayError:  # its processes died
            future.set_exception(MemoryError())
        else:
            if isinstance(value, _Differs):
                self._leave_out(value)
                self._submitted.put((call, future))
            elif isinstance(value, KernrecError):
                future.set_exception(value)
            else:
                future.set_result(value)

    def _leave_out(self, node: _Differs) -> None:
        if node.node in self._left_out:
            return
        self._note(f"{node.name} is left out: {node.reason}")
        cores = next((each["Resources"].get("CPU", 0) for each in self._ray.nodes() if each["NodeID"] == node.node), 0)
        options = {"num_cpus": cores, "scheduling_strategy": on_node(node.node)}
        self._left_out[node.node] = self._ray.remote(_Nothing).options(**options).remote()

    def _count_cores(self) -> int:
        nodes = self._ray.nodes()
        taking_part = [node for node in nodes if node["Alive"] and node["NodeID"] not in self._left_out]
        return sum(int(node["Resources"].get("CPU", 0)) for node in taking_part)
