"""Section 3 of the protocol: code is compiled ahead of the GPU, in processes of its own, so that the GPU never waits.

What is compiled lies in the compile cache, from which the measuring process loads it; here only its figures are kept.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from kernrec.compile import Compiled, CompileError, CompileJob, compile_many
from kernrec.compile.nvrtc import OPTIONS
from kernrec.measure.campaign.plan import Task

VARIANTS_AHEAD = 64
"""Codes compiled beyond those that were asked for; more would be wasted when the budget ends."""
_STOP_LIMIT_S = 10.0


@dataclass(frozen=True)
class CompiledVariant:
    """What is known of a compiled code: columns of the row, or why it did not compile."""

    columns: dict[str, Any]
    smem_bytes: int = 0
    error: str | None = None


class CompileQueue:
    """Compiles the variants of the tasks last wanted, in their order, at most `VARIANTS_AHEAD` beyond those used.

    Each of `processes` threads has a compiling process of its own: one that shared several would have to wait for room
    while results of others lie ready.
    """

    def __init__(self, sm: int, processes: int) -> None:
        self._sm = sm
        self._codes: dict[str, CompiledVariant] = {}
        self._started: set[str] = set()
        self._pending: deque[tuple[str, Task]] = deque()
        self._wanted: set[str] = set()  # and not yet used
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._ended = False
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(processes)]
        for thread in self._threads:
            thread.start()

    def want(self, tasks: Iterable[Task]) -> None:
        """From now on these are compiled, and nothing else that was wanted before."""
        named = {task.code: task for task in tasks}
        with self._changed:
            self._pending = deque((name, task) for name, task in named.items() if name not in self._started)
            self._wanted = set(named)
            self._changed.notify_all()

    def ready(self, task: Task) -> CompiledVariant | None:
        """The code of a task, or None while it is being compiled. Raises what kept the compiler from working at all."""
        with self._changed:
            if self._error is not None:
                raise self._error
            code = self._codes.get(task.code)
            if code is not None and task.code in self._wanted:
                self._wanted.remove(task.code)
                self._changed.notify_all()
            return code

    def wait(self, seconds: float) -> None:
        """Until another code is ready, or a time has passed."""
        with self._changed:
            self._changed.wait(seconds)

    def stop(self) -> None:
        """Compile nothing more; what is being compiled is waited for a little."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        deadline = time.monotonic() + _STOP_LIMIT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _full(self) -> bool:
        return sum(name in self._codes for name in self._wanted) >= VARIANTS_AHEAD

    def _jobs(self, names: dict[CompileJob, str]) -> Iterator[CompileJob]:
        while True:
            with self._changed:
                while not self._ended and (not self._pending or self._full()):
                    self._changed.wait()
                if self._ended:
                    return
                name, task = self._pending.popleft()
                self._started.add(name)
            job = task.job(self._sm)
            names[job] = name
            yield job

    def _run(self) -> None:
        names: dict[CompileJob, str] = {}
        try:
            for job, result in compile_many(self._jobs(names), processes=1):
                with self._changed:
                    self._codes[names.pop(job)] = _compiled_variant(job, result)
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()


def _compiled_variant(job: CompileJob, result: Compiled | CompileError) -> CompiledVariant:
    flags = " ".join([f"--gpu-architecture=sm_{job.sm}", *OPTIONS, *job.macros])
    if job.name.endswith(".ptx"):
        flags = f"--gpu-name=sm_{job.sm}"
    if isinstance(result, CompileError):
        return CompiledVariant({"compiler_flags": flags}, error=str(result))
    if not result.cubin:  # PTX without an assembler: what the driver makes of it nobody tells
        return CompiledVariant({"compiler": "the driver's"})
    used = list(result.resources.values())
    columns = {
        "cubin_hash": sha256(result.cubin).hexdigest()[:16],
        "compiler": result.compiler,
        "compiler_flags": flags,
        "registers": max((r.registers for r in used), default=0),
        "spill_bytes": max((r.spill_store_bytes + r.spill_load_bytes for r in used), default=0),
    }
    return CompiledVariant(columns, smem_bytes=max((r.static_smem_bytes for r in used), default=0))
