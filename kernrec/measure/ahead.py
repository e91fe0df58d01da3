"""Section 3 of the protocol: code is compiled ahead of the GPU, in processes of its own, so that the GPU never waits.

What is compiled lies in the compile cache, from which the measuring process loads it; here only its figures are kept.
"""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from kernrec.compile import Compiled, CompileError, Job, compile_many
from kernrec.compile.nvrtc import OPTIONS
from kernrec.measure.plan import Task

AHEAD = 64
"""Codes compiled beyond those that were asked for; more would be wasted when the budget ends."""


@dataclass(frozen=True)
class Code:
    """What is known of a compiled code: columns of the row, or why it did not compile."""

    columns: dict[str, Any]
    smem_bytes: int = 0
    error: str | None = None


class CompileAhead:
    """Compiles the codes of tasks in a thread, in their order, at most `AHEAD` further than they are used."""

    def __init__(self, tasks: Iterable[Task], sm: int, processes: int | None = None) -> None:
        self._tasks = {task.code: task for task in tasks}
        self._sm = sm
        self._processes = processes
        self._codes: dict[str, Code] = {}
        self._changed = threading.Condition()
        self._room = threading.Semaphore(AHEAD)
        self._used: set[str] = set()
        self._error: BaseException | None = None
        self._ended = False
        threading.Thread(target=self._run, daemon=True).start()

    def ready(self, task: Task) -> Code | None:
        """The code of a task, or None while it is being compiled. Raises what kept the compiler from working at all."""
        with self._changed:
            if self._error is not None:
                raise self._error
            code = self._codes.get(task.code)
            if code is not None and task.code not in self._used:
                self._used.add(task.code)
                self._room.release()
            return code

    def wait(self, seconds: float) -> None:
        """Until another code is ready, or a time has passed."""
        with self._changed:
            self._changed.wait(seconds)

    def stop(self) -> None:
        """Compile nothing more."""
        self._ended = True
        self._room.release()

    def _jobs(self, names: dict[Job, str]) -> Iterator[Job]:
        for name, task in self._tasks.items():
            self._room.acquire()
            if self._ended:
                return
            job = task.job(self._sm)
            names[job] = name
            yield job

    def _run(self) -> None:
        names: dict[Job, str] = {}
        try:
            for job, result in compile_many(self._jobs(names), self._processes):
                with self._changed:
                    self._codes[names.pop(job)] = _code(job, result)
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()


def _code(job: Job, result: Compiled | CompileError) -> Code:
    flags = " ".join([f"--gpu-architecture=sm_{job.sm}", *OPTIONS, *job.macros])
    if isinstance(result, CompileError):
        return Code({"compiler_flags": flags}, error=str(result))
    used = list(result.resources.values())
    columns = {
        "cubin_hash": sha256(result.cubin).hexdigest()[:16],
        "compiler": result.compiler,
        "compiler_flags": flags,
        "registers": max((r.registers for r in used), default=0),
        "spill_bytes": max((r.spill_store_bytes + r.spill_load_bytes for r in used), default=0),
    }
    return Code(columns, smem_bytes=max((r.static_smem_bytes for r in used), default=0))
