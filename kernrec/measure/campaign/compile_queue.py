"""Compile configs in separate processes before the GPU needs them."""

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256

from kernrec.compile import Compiled, CompileError, CompileJob, compile_many
from kernrec.compile.nvrtc import OPTIONS
from kernrec.errors import UsageError
from kernrec.kernel import bind_launches
from kernrec.measure.campaign.plan import Task
from kernrec.measure.device.interface import MeasurementFailure
from kernrec.store.measurement import CodeInfo, Outcome

VARIANTS_AHEAD = 64
"""Maximum number of compiled kernels that wait to be measured."""
_STOP_LIMIT_S = 10.0


@dataclass(frozen=True)
class CompiledVariant:
    code: CodeInfo
    smem_bytes: int = 0
    """Static shared memory per block, in bytes."""
    error: str | None = None


class CompileQueue:
    """Queue of configs to compile. Each compiling process has its own thread."""

    def __init__(self, sm: int, processes: int) -> None:
        self._sm = sm
        self._variants: dict[str, CompiledVariant] = {}
        self._started: set[str] = set()
        self._pending: deque[tuple[str, Task]] = deque()
        self._wanted: set[str] = set()  # keys of variants that a caller asked for and has not used
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._ended = False
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(processes)]
        for thread in self._threads:
            thread.start()

    def want(self, tasks: Iterable[Task]) -> None:
        """Replace the list of tasks to compile, in order."""
        named = {task.code: task for task in tasks}
        with self._changed:
            self._pending = deque((name, task) for name, task in named.items() if name not in self._started)
            self._wanted = set(named)
            self._changed.notify_all()

    def ready(self, task: Task) -> CompiledVariant | None:
        """Return a task's compiled variant, or None if it is not compiled yet. Raise the error if compiling failed."""
        with self._changed:
            if self._error is not None:
                raise self._error
            variant = self._variants.get(task.code)
            if variant is not None and task.code in self._wanted:
                self._wanted.remove(task.code)
                self._changed.notify_all()
            return variant

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` until another kernel is compiled."""
        with self._changed:
            self._changed.wait(seconds)

    def stop(self) -> None:
        """Stop compiling. Wait at most ten seconds for compilations in progress."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        deadline = time.monotonic() + _STOP_LIMIT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _full(self) -> bool:
        return sum(name in self._variants for name in self._wanted) >= VARIANTS_AHEAD

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
                    self._variants[names.pop(job)] = _compiled_variant(job, result)
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()


def launchable_code(task: Task, variant: CompiledVariant, sm: int) -> CodeInfo:
    """Return the compiler flags, registers and shared memory of a task's code. Raise `MeasurementFailure` if the task
    did not compile or cannot be launched."""
    if variant.error is not None:
        raise MeasurementFailure(Outcome.COMPILE, variant.error)
    if task.kernel is None:
        return variant.code
    try:
        launches = bind_launches(task.kernel, task.config, task.problem, sm)
    except UsageError as error:
        raise MeasurementFailure(Outcome.CONSTRAINT, str(error)) from None
    dynamic_bytes = max((launch.shared_bytes for launch in launches), default=0)
    return replace(variant.code, smem_bytes=variant.smem_bytes + dynamic_bytes)


def _compiled_variant(job: CompileJob, result: Compiled | CompileError) -> CompiledVariant:
    flags = " ".join([f"--gpu-architecture=sm_{job.sm}", *OPTIONS, *job.macros])
    if job.name.endswith(".ptx"):
        flags = f"--gpu-name=sm_{job.sm}"
    if isinstance(result, CompileError):
        return CompiledVariant(CodeInfo(compiler_flags=flags), error=str(result))
    if not result.cubin:  # The result is only PTX. The GPU driver compiles it later and reports no properties.
        return CompiledVariant(CodeInfo(compiler="the driver's"))
    resources = list(result.resources.values())
    code = CodeInfo(
        cubin_hash=sha256(result.cubin).hexdigest()[:16],
        compiler=result.compiler,
        compiler_flags=flags,
        registers=max((used.registers for used in resources), default=0),
        spill_bytes=max((used.spill_store_bytes + used.spill_load_bytes for used in resources), default=0),
    )
    return CompiledVariant(code, smem_bytes=max((used.static_smem_bytes for used in resources), default=0))
