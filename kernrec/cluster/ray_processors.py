"""The cores of a Ray cluster as `Processors`: they compile and emulate the configs of `analyze` and of the database.

    compile, submit -> one queue, emulation first -> a thread here for each core <-> an actor there, a task at a time

What was compiled and emulated is kept in the cache of this machine, so the same code is done once in the cluster. A
node that joins takes part; a task whose node dies is given to another. A node whose kernrec or compiler differs is left
out. Tasks are functions of kernrec with plain values, sent by Ray's own channel between nodes that are yours.
"""

import itertools
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from kernrec.cluster.ray_cluster import connect
from kernrec.cluster.versions import sources_hash
from kernrec.compile.cache import CompileCache
from kernrec.compile.compiled import Compiled, CompileError, CompileJob, Result
from kernrec.compile.nvrtc import cache_key, compile_job, compiler
from kernrec.compile.pool import ProcessorsLostError
from kernrec.errors import KernrecError

P = ParamSpec("P")
R = TypeVar("R")

_LOOK_S = 2.0
"""How often it is seen whether nodes have joined."""
_NO_NODE_S = 60.0
"""How long no node may answer."""
_TRIES = 3
"""How often a task is given to a process that dies."""
_AHEAD = 2
"""Sources that wait to be compiled, for each core."""
_EMULATE, _COMPILE = 0, 1


class CoreWorker:
    """An actor: one core of a node."""

    def hello(self) -> str:
        """What has to be the same on all nodes, as JSON text."""
        return json.dumps({"node": socket.gethostname(), "sources": sources_hash(), "compiler": compiler()})

    def run(self, task: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[bool, Any]:
        """(True, what a task returns) or (False, the message of its `KernrecError`)."""
        try:
            return True, task(*arguments, **named)
        except KernrecError as error:
            return False, str(error)


def compiled_there(job: CompileJob) -> Compiled | tuple[str, str, str]:
    """The task that compiles a job on a node: its code, or message, log and reason of a `CompileError`."""
    try:
        return compile_job(job, CompileCache(None))
    except CompileError as error:
        return str(error), error.log, error.reason


@dataclass(order=True)
class _Task:
    priority: int
    number: int
    call: tuple[Any, ...] = field(compare=False)
    future: "Future[Any]" = field(compare=False)
    limit_s: float | None = field(default=None, compare=False)
    tries: int = field(default=0, compare=False)


class RayProcessors:
    """The cores of a cluster, until the end of a `with` block."""

    def __init__(self, address: str, note: Callable[[str], None]) -> None:
        """Join a cluster.

        Args:
            address: as of `connect`.
            note: called with a line for the user.

        Raises:
            KernrecError: as of `connect`, or no node can take part.
        """
        self._ray = connect(address)
        self._note = note
        self._tasks: queue.PriorityQueue[_Task] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._cores: dict[tuple[str, int], bool] = {}
        """By node and slot: whether it works, or was refused."""
        self._ended = threading.Event()
        self._alone_s = time.monotonic()
        self._lost = False
        threading.Thread(target=self._look, daemon=True).start()

    def __enter__(self) -> "RayProcessors":
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._ray.shutdown()

    @property
    def count(self) -> int:
        """Cores that take part now."""
        return max(1, sum(self._cores.copy().values()))

    def submit(self, task: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        """As of `Processors`."""
        return self._put(_EMULATE, (task, args, kwargs))

    def compile(self, jobs: Iterable[CompileJob], timeout_s: float = 120.0) -> Iterator[tuple[CompileJob, Result]]:
        """As of `Processors`; results are kept in the cache of this machine."""
        cache, remaining = CompileCache.default(), iter(jobs)
        running: dict[Future[Any], CompileJob] = {}
        while True:
            while len(running) < _AHEAD * self.count and (job := next(remaining, None)) is not None:
                if (known := cache.get(cache_key(job))) is not None:
                    yield job, known
                else:
                    running[self._put(_COMPILE, (compiled_there, (job,), {}), timeout_s)] = job
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                result = _result(job, future, timeout_s)
                if isinstance(result, Compiled) or result.reason == "compile":
                    cache.put(cache_key(job), result)
                yield job, result

    def _put(self, priority: int, call: tuple[Any, ...], limit_s: float | None = None) -> "Future[Any]":
        task = _Task(priority, next(self._numbers), call, Future(), limit_s)
        self._tasks.put(task)
        if self._lost:
            self._give_up()
        return task.future

    def _look(self) -> None:
        """Start an actor for each core that has none; end what waits where no node answers any more."""
        while not self._ended.is_set():
            with suppress(Exception):  # the cluster may be gone for a while
                for node in self._ray.nodes():
                    for slot in range(int(node["Resources"].get("CPU", 0)) if node["Alive"] else 0):
                        if (place := (node["NodeID"], slot)) not in self._cores:
                            self._cores[place] = False
                            threading.Thread(target=self._serve, args=(place,), daemon=True).start()
            if any(self._cores.copy().values()):
                self._alone_s = time.monotonic()
            elif time.monotonic() - self._alone_s > _NO_NODE_S:
                self._lost = True
                self._give_up()
            self._ended.wait(_LOOK_S)

    def _give_up(self) -> None:
        why = f"no node of the cluster answers for {_NO_NODE_S:g} s; what is done is kept, the same command goes on"
        with suppress(queue.Empty):
            while True:
                self._tasks.get_nowait().future.set_exception(ProcessorsLostError(why))

    def _serve(self, place: tuple[str, int]) -> None:
        """The thread of one core."""
        try:
            actor = self._started(place)
            while actor is not None and not self._ended.is_set():
                with suppress(queue.Empty):
                    task = self._tasks.get(timeout=0.2)
                    if not self._done(actor, task):
                        actor = self._started(place)
        except Exception:  # its node is gone, or the cluster: `_look` sees what is left
            pass
        self._cores.pop(place, None)

    def _started(self, place: tuple[str, int]) -> Any:
        """The actor of a core; None: it is left out, for good."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._cores[place] = False
        there = NodeAffinitySchedulingStrategy(place[0], soft=False)
        actor = self._ray.remote(CoreWorker).options(num_cpus=1, scheduling_strategy=there).remote()
        identity = json.loads(self._ray.get(actor.hello.remote(), timeout=_NO_NODE_S))
        own = {"sources": sources_hash(), "compiler": compiler()}
        for name, value in own.items():
            if identity[name] != value:
                if place[1] == 0:
                    what = "kernrec" if name == "sources" else "compiler"
                    self._note(f"{identity['node']} is left out: its {what} is {identity[name]}, here it is {value}")
                self._ended.wait()
                return None
        self._cores[place] = True
        return actor

    def _done(self, actor: Any, task: _Task) -> bool:
        """Run a task; False where the actor has ended."""
        exceptions = self._ray.exceptions
        try:
            fine, value = self._ray.get(actor.run.remote(*task.call), timeout=task.limit_s)
        except exceptions.GetTimeoutError:
            self._ray.kill(actor)
            task.future.set_exception(TimeoutError())
            return False
        except exceptions.RayTaskError as error:  # what is no `KernrecError`: memory, or a mistake of ours
            cause = error.cause
            task.future.set_exception(cause if isinstance(cause, Exception) else MemoryError())
            return True
        except Exception:
            task.tries += 1
            if task.tries < _TRIES:
                self._tasks.put(task)
            else:
                task.future.set_exception(MemoryError())
            return False
        if fine:
            task.future.set_result(value)
        else:
            task.future.set_exception(KernrecError(value))
        return True


def _result(job: CompileJob, future: "Future[Any]", timeout_s: float) -> Result:
    try:
        value = future.result()
    except TimeoutError:
        return CompileError(f"{job.name}: compiling took longer than {timeout_s:g} s", reason="timeout")
    except MemoryError:
        return CompileError(f"{job.name}: the compiling process died", reason="crash")
    return value if isinstance(value, Compiled) else CompileError(*value)
