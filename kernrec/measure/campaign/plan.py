"""Plan a campaign: list for each problem the configs of every kernel that computes it, most promising first.

The analytical model or a trained model ranks the configs. During the campaign, a search updates the order from
measurements (`kernrec.model.search.expected_improvement`), so that even a short campaign measures near the best
configs. A `Chooser` decides about the next measurements and the end.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.compile import CompileJob
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU
from kernrec.kernel import Kernel, Space, kernels_of
from kernrec.measure.device.replay import Recording
from kernrec.model.search.expected_improvement import ExpectedImprovement
from kernrec.model.search.gaussian_process import completed_predictions
from kernrec.op import Problem
from kernrec.profile.kernel_code import compile_job_for
from kernrec.store import canonical_json
from kernrec.store.measurement import Measurement

if TYPE_CHECKING:
    from kernrec.recommender.context import Context

_MEMORY_SHARE = 0.5
"""Maximum fraction of the GPU's memory for a problem's tensors: the reference and rotating copies need space, too."""

_UNPREDICTED = 1e9  # seconds


@dataclass(frozen=True)
class Task:
    """One config to measure; `kernel` is None for a recorded kernel whose source is unknown."""

    kernel_name: str
    kernel_hash: str
    config: dict[str, int]
    problem: Problem
    kernel: Kernel | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the key that identifies this task's measurements within the problem."""
        return self.kernel_name, self.kernel_hash, canonical_json(self.config)

    @property
    def code(self) -> str:
        """Return the key of the compiled code, which tasks share if they differ only in run-time tunables."""
        kernel = self.kernel
        assert kernel is not None
        problem = kernel.form(self.problem)
        return f"{kernel.name} {kernel.variant_key(self.config, problem.dtype, problem.layout)}"

    def job(self, sm: int) -> CompileJob:
        """Return the job that compiles the code."""
        assert self.kernel is not None
        return compile_job_for(self.kernel, self.config, self.problem, sm)


class EnergyRule(Enum):
    """Rule that selects the screened configs whose energy is measured."""

    GUIDE = "those that may be on the front"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True)
class PlannedProblem:
    """A problem with its tasks in order.

    Args:
        name: Name of the layer, or of the problem.
        probability: Probability with which each config became a task; None if the tasks are no random sample.
        most: Maximum number of tasks to measure; None: all.
        search: Search that chooses the next tasks from measurements.
        baseline: Config whose output other configs must reproduce; None if an op or a spec defines the result.
        energy: Rule that selects tasks for energy measurements.
        finals: Whether to measure tasks near the front in the final tier.
        share: Maximum fraction of the remaining time for this problem.
        slice_s: Seconds after which the remaining tasks wait for another visit.
    """

    name: str
    problem: Problem
    tasks: tuple[Task, ...]
    probability: float | None = None
    most: int | None = None
    search: ExpectedImprovement | None = None
    baseline: dict[str, int] | None = None
    energy: EnergyRule = EnergyRule.GUIDE
    finals: bool = True
    share: float = 1.0
    slice_s: float = math.inf

    @property
    def preparation(self) -> dict[str, Any]:
        """Return the arguments with which the worker creates inputs and expected results."""
        return {"problem": self.problem.key, "baseline": self.baseline}


@dataclass(frozen=True)
class PlanOptions:
    """Number and selection of a problem's configs."""

    most: int | None = None
    """Maximum configs of a problem; None: the whole space."""
    drawn: bool = False
    """Whether to draw configs at random instead of choosing them by a search."""
    seed: int = 0


def plan_library(
    problems: Iterable[tuple[str, Problem]],
    gpu: GPU,
    context: "Context",
    options: PlanOptions,
    kernel: Kernel | None = None,
) -> list[PlannedProblem]:
    """Plan (name, problem) pairs on a GPU, with all kernels of the library or with one kernel.

    Args:
        problems: Names and problems, in measuring order.
        gpu: The GPU.
        context: Profiles for predictions, and models that correct the predictions.
        options: Number and selection of configs.
        kernel: The only kernel to measure; None: every kernel of the library that computes the problem.

    Raises:
        UsageError: No config can run a problem, or a problem does not fit into the GPU's memory.
    """
    draw = np.random.default_rng(options.seed)
    planned = []
    for name, problem in problems:
        check_memory(problem, gpu)
        planned.append(_planned(name, _Ranking.of(problem, gpu, context, kernel, draw), options, draw))
    return planned


def check_memory(problem: Problem, gpu: GPU) -> None:
    """Raise `UsageError` if a problem's tensors leave too little GPU memory for rotating copies."""
    needed, most = sum(tensor.bytes for tensor in problem.tensors.values()), _MEMORY_SHARE * gpu.memory_bytes
    if needed > most:
        raise UsageError(
            f"{problem.key} needs {needed / 2**30:.1f} GiB; at most {most / 2**30:.1f} are used of a {gpu.title}"
        )


def plan_recordings(
    recordings: Iterable[tuple[str, Recording]], most: int | None, seed: int = 0
) -> list[PlannedProblem]:
    """Plan (name, recording) pairs with the recorded configs.

    Other people's kernels have no predictions, so the search learns only from measurements.
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
    """Return the kernel and every kernel's tunables as columns, (tasks, T); NaN if a config lacks a tunable."""
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
    """Plan the configs that can run a problem, by predicted latency; configs without a prediction come last."""
    problem, order = ranking.problem, ranking.order
    if options.drawn:
        draw.shuffle(order)
    tasks = tuple(ranking.task(which, row) for _, which, row in (order[: options.most] if options.drawn else order))
    if options.drawn:
        probability = len(tasks) / len(order)
        # Measure energy for the whole sample, so that it is a random sample for energy, too.
        return PlannedProblem(
            name, problem, tasks, probability=probability, baseline=ranking.baseline, energy=EnergyRule.ALL
        )
    predicted = np.array([math.nan if rank >= _UNPREDICTED else rank for rank, _, _ in order])
    columns = tunable_columns(tasks)
    search = ExpectedImprovement(columns, _completed(columns, predicted, options.seed), options.seed)
    return PlannedProblem(name, problem, tasks, most=options.most, search=search, baseline=ranking.baseline)


def _completed(columns: np.ndarray, predicted_s: np.ndarray, seed: int) -> np.ndarray | None:
    """Return predictions of tasks, (tasks,), filling gaps from the kernel's other tasks; None without predictions.

    Args:
        columns: Result of `tunable_columns`.
        predicted_s: Predictions in seconds, (tasks,); NaN: none.
        seed: Seed of the model.
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
    """Configs that can run a problem, by predicted latency."""

    problem: Problem
    kernels: tuple[Kernel, ...]
    spaces: tuple[Space, ...]
    order: list[tuple[float, int, int]]
    """Tuples of (seconds or, without a prediction, a huge number; number of the kernel; row of its space)."""
    baseline: dict[str, int] | None
    """Config whose output other configs must reproduce if neither an op nor the spec defines the result. It is the
    spec's first runnable config, preferably with a profile."""

    @classmethod
    def of(
        cls, problem: Problem, gpu: GPU, context: "Context", only: Kernel | None, draw: np.random.Generator
    ) -> "_Ranking":
        """Rank the configs of one or all kernels for the problem; raise `UsageError` if no config can run it."""
        from kernrec.recommender.candidates import candidate_set
        from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
        from kernrec.recommender.infeasible import why_not
        from kernrec.store import Evidence

        if only:
            form = only.form(problem)
            only.require(form.dtype, form.layout, gpu.sm)
        kernels = (only,) if only else kernels_of(problem, gpu.sm)
        tables = {}
        for kernel in kernels:
            with suppress(KernrecError):  # Without profiles, any order is equally good.
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
        """Return the task that measures one config."""
        kernel = self.kernels[which]
        return Task(kernel.name, kernel.hash, self.spaces[which].config(row), self.problem, kernel)


@dataclass(frozen=True)
class Visit:
    """Batch of measurements of one problem that a GPU makes without interruption."""

    planned: PlannedProblem
    earlier: tuple[Measurement, ...] = ()
    """Measurements that are not repeated; empty on this machine, where they are in the database."""


class Chooser:
    """Chooser of the next measurements on one GPU model."""

    @property
    def needs_energy(self) -> bool:
        """Return whether a GPU must be able to measure energy."""
        return False

    @property
    def recalled(self) -> Sequence[Problem]:
        """Return the problems whose earlier measurements `begin` needs."""
        return ()

    def begin(self, earlier: Iterable[Measurement]) -> None:
        """Learn from measurements of earlier campaigns."""

    def next(self, gpu: str = "", gpus: Collection[str] = ("",)) -> Visit | None:
        """Return the next visit; None if enough is measured, or if the choice depends on a visit in progress.

        Args:
            gpu: Name of the GPU that makes the visit.
            gpus: Names of all GPUs of the model.
        """
        raise NotImplementedError

    def learn(self, measurement: Measurement) -> None:
        """Learn from a new measurement, which the journal already has."""

    def done(self, visit: Visit, seconds: float, over: bool = True) -> None:
        """Learn that a visit has ended.

        Args:
            visit: The visit.
            seconds: Duration on the device's clock.
            over: Whether the visit was completed within its time slice.
        """

    def outcome(self) -> object:
        """Return the result: `Refined`, `Searched`, or None if rows are the only result."""
        return None
