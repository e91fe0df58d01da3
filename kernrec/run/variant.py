"""Recommend and cache the config for each problem of a built kernel."""

from collections.abc import Mapping

from kernrec.compile import Compiled, CompileJob
from kernrec.compile.triton_version import has_triton
from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.kernel import Kernel
from kernrec.op import Problem
from kernrec.recommender import Query, Recommender
from kernrec.run.shapes import Shapes
from kernrec.util.config_short import short_config
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True, eq=False)
class Variant:
    """Config of a kernel; a `Target` returns the same object for equal configs."""

    kernel: Kernel
    config: Mapping[str, int]

    def __repr__(self) -> str:
        return f"<{self.kernel.name} {short_config(self.config)}>"

    def compile_job(self, problem: Problem, sm: int) -> CompileJob:
        """Return the compile job for a problem on an architecture."""
        from kernrec.profile.kernel_code import compile_job_for

        return compile_job_for(self.kernel, self.config, problem, sm)

    def compiled(self, problem: Problem, sm: int) -> Compiled:
        """Return the code for a problem on an architecture, from the cache or the compiler."""
        from kernrec.compile import CompileCache
        from kernrec.compile.nvrtc import compile_job

        job = self.compile_job(problem, sm)
        if job.triton is not None:  # Triton's compiler changes global state, so run it in another process
            from kernrec.compile.triton_process import compile_apart

            return compile_apart(job, CompileCache.default())
        return compile_job(job, CompileCache.default())


class Target:
    """Shapes, GPU and query that a kernel is built for."""

    def __init__(self, recommender: Recommender, shapes: Shapes, gpu: GPU, query: Query) -> None:
        self._recommender = recommender
        self.shapes, self.gpu, self.query = shapes, gpu, query
        self._by_problem: dict[Problem, Variant] = {}
        self._by_config: dict[tuple[object, ...], Variant] = {}

    def variant(self, problem: Problem) -> Variant:
        """Return the recommended config for a problem; without Triton, only of CUDA kernels. Raises `KernrecError` if
        no kernel that compiles here can run the problem.
        """
        if (variant := self._by_problem.get(problem)) is None:
            kernel, config = self._recommended(problem)
            key = kernel.name, *sorted(config.items())
            variant = self._by_problem[problem] = self._by_config.setdefault(key, Variant(kernel, config))
        return variant

    def _recommended(self, problem: Problem) -> tuple[Kernel, Mapping[str, int]]:
        answer = self._recommender.answer_problem(problem, self.gpu, self.query)
        if answer.recommendations and (answer.best.kernel.triton is None or has_triton()):
            return answer.best.kernel, answer.best.config
        candidates = self._recommender.candidates(problem, self.gpu, (self.query.point,))
        costs = self.query.objective.value_of(candidates.latency_s[0], candidates.energy_j[0])
        for position in costs.argsort().tolist():
            _, kernel, own = candidates.locate(position)
            if kernel.table.kernel.triton is None:
                return kernel.table.kernel, kernel.config(own)
        raise KernrecError(f"no kernel that compiles here can run {problem.key} on {self.gpu.name}")
