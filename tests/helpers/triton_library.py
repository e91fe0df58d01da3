"""Compiles the library's Triton kernels in a worker process, and emulates their whole grids."""

from collections.abc import Iterator
from typing import Any

from kernrec.compile import Compiled, CompileJob, compile_many
from kernrec.kernel import Kernel
from kernrec.op import Problem
from kernrec.profile.kernel_code import compile_job_for
from kernrec.ptx import EmulationError
from tests.helpers.kernel_code import Config
from tests.helpers.run_cache import Tensors
from tests.helpers.trial import execute, flaws, given_inputs

TritonRun = tuple[int, Problem, Config]
"""An architecture, a problem, and a config that can run the problem."""


def results(
    kernel: Kernel, runs: list[TritonRun], make_inputs: Any
) -> Iterator[tuple[TritonRun, Tensors, Tensors | str]]:
    """Yield (run, inputs, outputs) of each run, or the error in place of the outputs; shared memory races are errors.

    Each code is compiled once. `make_inputs` returns the inputs of a problem.
    """
    jobs: dict[CompileJob, list[TritonRun]] = {}
    for sm, problem, config in runs:
        jobs.setdefault(compile_job_for(kernel, config, problem, sm), []).append((sm, problem, config))
    for job, compiled in compile_many(jobs, processes=1):
        assert isinstance(compiled, Compiled), compiled
        for sm, problem, config in jobs[job]:
            tensors = make_inputs(problem)
            try:
                outputs: Tensors | str = execute(kernel, config, problem, sm, compiled.ptx, tensors)
            except EmulationError as error:
                outputs = str(error)
            yield (sm, problem, config), tensors, outputs


def faults(kernel: Kernel, runs: list[TritonRun]) -> list[str]:
    """Return the errors and wrong results of the runs."""
    all_faults: list[str] = []
    for (_, problem, _), operands, outputs in results(kernel, runs, given_inputs):
        all_faults += [outputs] if isinstance(outputs, str) else flaws(problem, operands, outputs)
    return all_faults
