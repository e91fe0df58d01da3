"""What compiling and emulating processes do, done in this process, where a test is not about them: each imports the
compiler or the emulator anew, which takes longer than most kernels of tests do."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import ClassVar, ParamSpec, TypeVar
from unittest.mock import patch

from kernrec.compile.cache import CompileCache
from kernrec.compile.compiled import CompileJob, Result
from kernrec.compile.pool import CompilingProcesses, _groups
from kernrec.compile.together import MOST_TOGETHER, Together

USUAL_S = 120.0
"""The limit of a job where a test sets none."""
P = ParamSpec("P")
R = TypeVar("R")


class CompilingHere(CompilingProcesses):
    """Compiles in this process, but for Triton, which imports the user's modules, and where a limit is set.

    A process that compiles Triton stays for the next one who asks, with the same cache and variables.
    """

    lasting: ClassVar[dict[object, CompilingProcesses]] = {}

    def compile(
        self, jobs: Iterable[CompileJob], timeout_s: float = USUAL_S, cache: CompileCache | None = None
    ) -> Iterator[tuple[CompileJob, Result]]:
        if timeout_s != USUAL_S:
            yield from super().compile(jobs, timeout_s, cache)
            return
        cache = cache if cache is not None else CompileCache.default()
        together = Together(cache)
        for group in _groups(jobs, MOST_TOGETHER, cache):
            if isinstance(group, tuple):
                yield group
            elif group[0].triton is not None:
                variables = frozenset(item for item in os.environ.items() if item[0].startswith("TRITON"))
                lasting = self.lasting.setdefault((cache.folder, variables), CompilingProcesses(1))
                yield from lasting.compile(group, timeout_s, cache)
            else:
                yield from zip(group, filter(None, together.results(group)), strict=True)


class WorkingHere(Executor):
    """Does each task when it is given."""

    _processes = None

    def __init__(self, *arguments: object, **options: object) -> None:
        """The arguments are those of `ProcessPoolExecutor`."""

    def submit(self, task: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        future: Future[R] = Future()
        try:
            future.set_result(task(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def processors_here() -> Iterator[None]:
    """While the context lasts, no process is started to compile CUDA and to emulate, and one to compile Triton."""
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
