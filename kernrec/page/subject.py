"""Define the subject of a front: a problem with all kernels of its op, or with a single kernel."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kernrec.errors import KernrecError, NoKernelError, UsageError
from kernrec.gpu import GPU
from kernrec.kernel import Kernel, kernel_names
from kernrec.model.prior.power import RANDOM
from kernrec.op import Problem, parse_shape, problem_from_shape
from kernrec.op.workload import default_workload
from kernrec.recommender import Answer, Objective, Query, Recommender
from kernrec.recommender.answer import answer
from kernrec.recommender.candidates import CandidateSet
from kernrec.recommender.infeasible import instead_of, none_runs
from kernrec.recommender.request import op_points
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Subject:
    """Problem, and the kernels, clocks and inputs that its front covers."""

    problem: Problem
    kernel: Kernel | None = None
    """Only kernel to consider; None for all kernels of the op."""
    clocks: bool = False
    """Whether to also consider locked core clocks."""
    inputs: str = RANDOM
    """Values that kernels compute on (`Query.inputs`)."""
    layout_free: bool = False
    """Whether the layout is free, so that each GPU gets its best layout."""

    @property
    def query(self) -> Query:
        """Return the query for the front over power limits."""
        return Query(Objective.PARETO, clocks=self.clocks, inputs=self.inputs)

    def candidates(self, recommender: Recommender, gpu: GPU) -> CandidateSet:
        """Return the configs at all operating points. Raises `KernrecError` if nothing runs the problem."""
        recommender = recommender.for_inputs(self.query.inputs)
        if self.kernel is None:
            problem, points = self.problem, op_points(gpu, self.query)
            if self.layout_free:
                (problem,) = recommender.as_answered([problem], gpu, points)
            try:
                return recommender.candidates(problem, gpu, points)
            except NoKernelError:
                for other, _ in instead_of(problem, gpu):
                    with suppress(NoKernelError):
                        return recommender.candidates(other, gpu, points)
                raise
        candidates = recommender.kernel_candidates(self.kernel, self.problem, gpu, self.query)
        if not candidates.kernels:
            raise none_runs(candidates.considered[0])
        return candidates

    def answer(self, recommender: Recommender, gpu: GPU, candidates: CandidateSet | None) -> Answer:
        """Return the recommendations among `candidates`; if that is None, only the baselines."""
        if self.kernel is None or candidates is None:
            return recommender.answer_op(self.problem, gpu, self.query, fixed=not self.layout_free)
        return answer(candidates, self.query, recommender.context, of_one_kernel=True)

    @property
    def name(self) -> str:
        """Return a readable name of the problem."""
        key = self.problem.key
        return key.removesuffix(self.problem.layout) + BEST if self.layout_free else key

    @property
    def parameters(self) -> dict[str, str]:
        """Return the request parameters that `subject_of` converts back to this subject."""
        about = {"op": self.problem.op} if self.kernel is None else {"kernel": self.kernel.name}
        shape = ",".join(f"{name}={value}" for name, value in self.problem.dims)
        how = ({"clocks": "1"} if self.clocks else {}) | ({} if self.inputs == RANDOM else {"inputs": self.inputs})
        layout = BEST if self.layout_free else self.problem.layout
        return about | {"dtype": self.problem.dtype, "layout": layout, "shape": shape} | how


BEST = "best"
"""Value of the layout parameter for a free layout."""
PARAMETERS = ("op", "kernel", "dtype", "layout", "shape", "clocks", "inputs")
"""Parameters that name a subject, with either `op` or `kernel`."""


def subject_of(recommender: Recommender, parameters: Mapping[str, str]) -> Subject:
    """Return the subject that parameters name. Raises `UsageError` for unknown names."""
    op, shape, dtype, layout = (parameters.get(name) or None for name in ("op", "shape", "dtype", "layout"))
    clocks, inputs = parameters.get("clocks", "") == "1", parameters.get("inputs") or RANDOM
    if op is not None:
        layout = None if layout == BEST else layout
        problem = problem_from_shape(op, shape or "", dtype, layout)
        return Subject(problem, None, clocks, inputs, layout is None and len(problem.definition.layouts) > 1)
    if not (name := parameters.get("kernel", "")):
        raise UsageError("the request names neither an op nor a kernel; give one")
    kernel = recommender.context.kernel(name)
    dims = parse_shape(shape) if shape else default_dims(kernel)
    problem = kernel.definition.problem(dtype or kernel.dtypes[0], layout or kernel.layouts[0], **dims)
    return Subject(problem, kernel, clocks, inputs)


def default_dims(kernel: Kernel) -> dict[str, int]:
    """Return the initial dimensions of a kernel: its spec's, or the first layer of its op's workload."""
    if kernel.declares_problem:
        return {dim.name: int(dim.default or 1) for dim in kernel.definition.dims}
    return default_workload(kernel.definition).layers_of(kernel.definition.name)[0].problem.dim


def kernel_options(recommender: Recommender, shown: Kernel | None) -> list[dict[str, Any]]:
    """Return the kernels to choose from: `shown` first, then the user's.

    Unreadable kernels are skipped, because no command can use them.
    """
    kernels = [] if shown is None else [(shown.name, shown)]
    library = kernel_names()
    for name in recommender.context.own_kernels():
        if name in library or (shown is not None and name == shown.name):
            continue
        try:
            kernels.append((name, recommender.context.kernel(name)))
        except KernrecError:
            continue
    return [_option(name, kernel) for name, kernel in kernels]


def _option(name: str, kernel: Kernel) -> dict[str, Any]:
    definition = kernel.definition
    first = definition.problem(kernel.dtypes[0], kernel.layouts[0], **default_dims(kernel))
    return {
        "name": name,
        "title": f"kernel {name}",
        "dtypes": list(kernel.dtypes),
        "layouts": list(kernel.layouts),
        "dims": [{"name": dim.name, "meaning": dim.meaning, "default": dim.default} for dim in definition.dims],
        "layers": [{"name": "as its spec has it", **Subject(first, kernel).parameters, "kernel": name}],
    }
