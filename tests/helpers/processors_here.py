"""Replaces compiling and emulating processes by calls in this process, because starting a process and importing the
compiler or the emulator takes longer than most test kernels."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import ClassVar, ParamSpec, TypeVar
from unittest.mock import patch

from kernrec.compile.compiled import CompileCache, CompileJob, Result
from kernrec.compile.pool import CompilingProcesses, group_jobs
from kernrec.compile.together import Together

USUAL_S = 120.0
"""Time limit of a job in seconds if the test sets none."""
P = ParamSpec("P")
R = TypeVar("R")


class CompilingHere(CompilingProcesses):
    """Compiles in this process, except for Triton, which imports user modules, and for jobs with a time limit. A
    process that compiles Triton is reused for the same cache and environment variables."""

    lasting: ClassVar[dict[object, CompilingProcesses]] = {}

    def compile(
        self, jobs: Iterable[CompileJob], timeout_s: float = USUAL_S, cache: CompileCache | None = None
    ) -> Iterator[tuple[CompileJob, Result]]:
        if timeout_s != USUAL_S:
            yield from super().compile(jobs, timeout_s, cache)
            return
        cache = cache if cache is not None else CompileCache.default()
        together = Together(cache)
        for group in group_jobs(jobs, cache):
            if isinstance(group, tuple):
                yield group
            elif group[0].triton is not None:
                variables = frozenset(item for item in os.environ.items() if item[0].startswith("TRITON"))
                lasting = self.lasting.setdefault((cache.folder, variables), CompilingProcesses(1))
                yield from lasting.compile(group, timeout_s, cache)
            else:
                first, *others = together.results(group)
                size = first if isinstance(first, int) else len(group)
                parts = [group[start : start + size] for start in range(0, len(group), size)]
                results = [first, *others] if len(parts) == 1 else [r for part in parts for r in together.results(part)]
                yield from zip(group, results, strict=True)


class WorkingHere(Executor):
    """Executor that runs each task in `submit`."""

    _processes = None

    def __init__(self, *arguments: object, **options: object) -> None:
        """Accept the arguments of `ProcessPoolExecutor`, and ignore them."""

    def submit(self, task: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        future: Future[R] = Future()
        try:
            future.set_result(task(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def processors_here() -> Iterator[None]:
    """Compile CUDA and emulate in this process inside the context. Use one process for Triton."""
    with (
        patch("kernrec.compile.pool.CompilingProcesses", CompilingHere),
        patch("kernrec.compile.pool.ProcessPoolExecutor", WorkingHere),
        patch.object(CompilingHere, "lasting", {}),
    ):
        try:
            yield
        finally:
            for processes in CompilingHere.lasting.values():
                processes.close()
