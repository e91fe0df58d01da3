"""What compiling and emulating processes do, done in this process, where a test is not about them: each imports the
compiler or the emulator anew, which takes longer than most kernels of tests do."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import ParamSpec, TypeVar
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
    """Compiles in this process, but for Triton, which imports the user's modules, and where a limit is set."""

    def compile(
        self, jobs: Iterable[CompileJob], timeout_s: float = USUAL_S, cache: CompileCache | None = None
    ) -> Iterator[tuple[CompileJob, Result]]:
        jobs = list(jobs)
        if timeout_s != USUAL_S or any(job.triton is not None for job in jobs):
            yield from super().compile(jobs, timeout_s, cache)
            return
        cache = cache if cache is not None else CompileCache.default()
        together = Together(cache)
        for group in _groups(jobs, MOST_TOGETHER, cache):
            if isinstance(group, tuple):
                yield group
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
    """While the context lasts, no process is started to compile and emulate."""
    with (
        patch("kernrec.compile.pool.CompilingProcesses", CompilingHere),
        patch("kernrec.compile.pool.ProcessPoolExecutor", WorkingHere),
    ):
        yield
