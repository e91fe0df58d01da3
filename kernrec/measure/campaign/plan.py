"""The plan of a campaign: for each problem the configs of every kernel that computes it, most promising first.

The order is the analytic prior's, or a trained model's, and while it is worked through a search corrects it by what was
measured (`kernrec.model.search.expected_improvement`), so that a budget that ends early was spent where the best
configs are.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kernrec.compile import CompileJob
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU
from kernrec.kernel import Kernel, Space, kernels_of
from kernrec.measure.device.replay import Recording
from kernrec.model.search.expected_improvement import ExpectedImprovement
from kernrec.model.search.search_space import completed_predictions
from kernrec.op import Problem
from kernrec.profile.kernel_code import compile_job_for
from kernrec.store import canonical_json

if TYPE_CHECKING:
    from kernrec.recommender.context import Context

_MEMORY_SHARE = 0.5
"""Of the card's memory, what the tensors of a problem may take: the reference and rotating copies lie beside them."""

_UNPREDICTED = 1e9  # seconds


@dataclass(frozen=True)
class Task:
    """One config to measure; kernel: None for a recorded one, which is known by name alone."""

    kernel_name: str
    kernel_hash: str
    config: dict[str, int]
    problem: Problem
    kernel: Kernel | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Tells its measurements from those of other tasks of the problem."""
        return self.kernel_name, self.kernel_hash, canonical_json(self.config)

    @property
    def code(self) -> str:
        """Names its compiled code: tasks that differ in run-time tunables alone share one."""
        kernel = self.kernel
        assert kernel is not None
        problem = kernel.form(self.problem)
        return f"{kernel.name} {kernel.variant_key(self.config, problem.dtype, problem.layout)}"

    def job(self, sm: int) -> CompileJob:
        """How its code is compiled."""
        assert self.kernel is not None
        return compile_job_for(self.kernel, self.config, self.problem, sm)


class Search(Protocol):
    """Chooses, from what was measured, which of a problem's configs come next: `ExpectedImprovement`, say."""

    def order(self, tried: np.ndarray, latency_s: np.ndarray) -> np.ndarray:
        """All configs that were not tried, the most promising first; arguments as `ExpectedImprovement.order`."""

    def batch(self, measured: int) -> int:
        """How many configs of an order to measure before asking for another."""


class EnergyRule(Enum):
    """Which of the screened configs of a problem get an energy measurement."""

    GUIDE = "those that may be on the front"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True)
class PlannedProblem:
    """A problem with its tasks in order. name: of the layer, where it is one.

    probability: with which each config of the space came to be among the tasks; None where they were not drawn.
    most: of the tasks that are measured; None: all. search: chooses, from what was measured, which of them come next.
    baseline: the config whose output the others have to have; None where an op or a spec says what is right.
    energy: whose energy is measured. finals: whether those near the front are measured in the final tier. share: of the
    time that is left, what the problem may take. slice_s: seconds after which the rest is left for another time.
    """

    name: str
    problem: Problem
    tasks: tuple[Task, ...]
    probability: float | None = None
    most: int | None = None
    search: Search | None = None
    baseline: dict[str, int] | None = None
    energy: EnergyRule = EnergyRule.GUIDE
    finals: bool = True
    share: float = 1.0
    slice_s: float = math.inf

    @property
    def preparation(self) -> dict[str, Any]:
        """The arguments with which the measuring process makes inputs and expected results."""
        return {"problem": self.problem.key, "baseline": self.baseline}


@dataclass(frozen=True)
class PlanOptions:
    """How many configs of a problem are measured, and which."""

    most: int | None = None
    """Configs of a problem at most; None for its whole space."""
    drawn: bool = False
    """Whether they are drawn at random, not chosen by the search."""
    seed: int = 0


def plan_library(
    problems: Iterable[tuple[str, Problem]],
    gpu: GPU,
    context: "Context",
    options: PlanOptions,
    kernel: Kernel | None = None,
) -> list[PlannedProblem]:
    """The plan for (name, problem) pairs on a GPU, from the kernels of the library, or from `kernel` alone.

    Args:
        problems: names and problems, in the order in which they are measured.
        gpu: the GPU.
        context: profiles to predict from, and the models that correct the prior.
        options: how many configs, and which.
        kernel: the only kernel to measure; None for every kernel of the library that computes the problem.

    Raises:
        UsageError: nothing can run a problem, or it does not fit into the GPU's memory.
    """
    draw = np.random.default_rng(options.seed)
    planned = []
    for name, problem in problems:
        check_memory(problem, gpu)
        planned.append(_planned(name, _Ranking.of(problem, gpu, context, kernel, draw), options, draw))
    return planned


def check_memory(problem: Problem, gpu: GPU) -> None:
    """Raises `UsageError` for a problem whose tensors leave too little of a GPU's memory for their copies."""
    needed, most = sum(tensor.bytes for tensor in problem.tensors.values()), _MEMORY_SHARE * gpu.memory_bytes
    if needed > most:
        raise UsageError(
            f"{problem.key} needs {needed / 2**30:.1f} GiB; at most {most / 2**30:.1f} are used of a {gpu.title}"
        )


def plan_recordings(
    recordings: Iterable[tuple[str, Recording]], most: int | None, seed: int = 0
) -> list[PlannedProblem]:
    """Return the plans for (name, recording) pairs, from the recorded configs.

    Nothing is predicted for kernels that are not kernrec's: the search learns only from what was measured.
    """
    planned = []
    for name, recording in recordings:
        tasks = tuple(
            Task(kernel, recording.kernel_hashes[kernel], dict(outcome.config), recording.problem)
            for (kernel, _), outcome in recording.outcomes.items()
        )
        search = ExpectedImprovement(tunable_columns(tasks), seed=seed)
        planned.append(PlannedProblem(name, recording.problem, tasks, most=most, search=search))
    return planned


def tunable_columns(tasks: Sequence[Task]) -> np.ndarray:
    """A column for each tunable of each kernel and one for the kernel, (tasks, T); NaN for what a config lacks."""
    kernels = {name: i for i, name in enumerate(dict.fromkeys(task.kernel_name for task in tasks))}
    place: dict[tuple[str, str], int] = {}
    for task in tasks:
        for name in task.config:
            place.setdefault((task.kernel_name, name), len(place) + 1)
    columns = np.full((len(tasks), len(place) + 1), np.nan)
    for i, task in enumerate(tasks):
        columns[i, 0] = kernels[task.kernel_name]
        for name, value in task.config.items():
            columns[i, place[task.kernel_name, name]] = value
    return columns


def _planned(name: str, ranking: "_Ranking", options: PlanOptions, draw: np.random.Generator) -> PlannedProblem:
    """The configs that can run a problem: by predicted latency, and after them those without a prediction."""
    problem, order = ranking.problem, ranking.order
    if options.drawn:
        draw.shuffle(order)
    tasks = tuple(ranking.task(which, row) for _, which, row in (order[: options.most] if options.drawn else order))
    if options.drawn:
        probability = len(tasks) / len(order)
        # A sample of the space, as a test set for predictions, stays one for energy only as a whole.
        return PlannedProblem(
            name, problem, tasks, probability=probability, baseline=ranking.baseline, energy=EnergyRule.ALL
        )
    predicted = np.array([math.nan if rank >= _UNPREDICTED else rank for rank, _, _ in order])
    columns = tunable_columns(tasks)
    search = ExpectedImprovement(columns, _completed(columns, predicted, options.seed), options.seed)
    return PlannedProblem(name, problem, tasks, most=options.most, search=search, baseline=ranking.baseline)


def _completed(columns: np.ndarray, predicted_s: np.ndarray, seed: int) -> np.ndarray | None:
    """Predictions of tasks, (tasks,), where those of a kernel that lack one get it from the others; None without any.

    columns: as of `tunable_columns`.
    """
    if not np.isfinite(predicted_s).any():
        return None
    for kernel in np.unique(columns[:, 0]):
        rows = np.flatnonzero(columns[:, 0] == kernel)
        of_kernel = columns[rows]
        tunables = of_kernel[:, ~np.isnan(of_kernel).all(axis=0)]
        predicted_s[rows] = completed_predictions(tunables, predicted_s[rows], seed)
    return predicted_s


@dataclass(frozen=True)
class _Ranking:
    """The configs that can run a problem, in the order of their predicted latency."""

    problem: Problem
    kernels: tuple[Kernel, ...]
    spaces: tuple[Space, ...]
    order: list[tuple[float, int, int]]
    """(seconds, or a number above any where nothing is predicted; number of the kernel; row of its space)."""
    baseline: dict[str, int] | None
    """The config whose output the others have to have, where neither an op nor the spec says what is right: the first
    one of the spec that can run, and has a profile if any has."""

    @classmethod
    def of(
        cls, problem: Problem, gpu: GPU, context: "Context", only: Kernel | None, draw: np.random.Generator
    ) -> "_Ranking":
        """Of one kernel or of all that compute the problem; `UsageError` where no config can run it."""
        from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
        from kernrec.recommender.infeasible import why_not
        from kernrec.recommender.rank import candidate_set
        from kernrec.store import Evidence

        if only:
            form = only.form(problem)
            only.require(form.dtype, form.layout, gpu.sm)
        kernels = (only,) if only else kernels_of(problem, gpu.sm)
        tables = {}
        for kernel in kernels:
            with suppress(KernrecError):  # no profiles of this source: any order is as good
                tables[kernel.name] = context.kernel_table(kernel, problem, gpu)
        predicted = {}
        if tables:
            candidates = candidate_set(
                list(tables.values()), problem, [DEFAULT_POINT], Evidence(), context.models, whole_space=True
            )
            predicted = {estimated.table.kernel.name: estimated for estimated in candidates.kernels}
        spaces = tuple(
            tables[kernel.name].space if kernel.name in tables else Space.of(kernel, problem, gpu) for kernel in kernels
        )
        order = []
        for which, (kernel, space) in enumerate(zip(kernels, spaces, strict=True)):
            rank = _UNPREDICTED + draw.random(len(space))
            if (estimated := predicted.get(kernel.name)) is not None:
                rank[estimated.rows] = estimated.costs.latency.value[0]
            order += [(float(rank[row]), which, int(row)) for row in space.at(problem).rows]
        if not order:
            reason = "" if only else why_not(kernels, problem, gpu)
            raise UsageError(f"no config of any kernel can run {problem.key} on {gpu.name}{reason}")
        baseline = None
        if only and only.declares_problem and not only.references:
            estimated = predicted.get(only.name)
            rows = spaces[0].at(problem).rows if estimated is None else estimated.rows
            baseline = spaces[0].config(int(min(rows)))
        return cls(problem, kernels, spaces, sorted(order), baseline)

    def task(self, which: int, row: int) -> Task:
        """The task of measuring one config."""
        kernel = self.kernels[which]
        return Task(kernel.name, kernel.hash, self.spaces[which].config(row), self.problem, kernel)
