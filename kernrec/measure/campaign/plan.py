"""Plan a campaign: for each problem, list the configs to measure, most promising first.

The analytical model or a trained model ranks the configs. A search updates the ranking from measurements.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
    from kernrec.recommender.context import GpuContext

_MEMORY_SHARE = 0.5
"""Maximum fraction of the GPU's memory for a problem's tensors. The rest is for copies and expected outputs."""

_UNPREDICTED_S = 1e9  # No launch takes this long, so configs without a prediction rank last.


@dataclass(frozen=True)
class Task:
    """One config to measure on a problem. `kernel` is None for a recorded kernel whose source is unknown."""

    kernel_name: str
    kernel_hash: str
    config: dict[str, int]
    problem: Problem
    kernel: Kernel | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kernel_name, self.kernel_hash, canonical_json(self.config)

    @property
    def code(self) -> str:
        """Key of the compiled code. Tasks that differ only in run-time tunables have the same key."""
        kernel = self.kernel
        assert kernel is not None
        problem = kernel.form(self.problem)
        return f"{kernel.name} {kernel.variant_key(self.config, problem.dtype, problem.layout)}"

    def job(self, sm: int) -> CompileJob:
        assert self.kernel is not None
        return compile_job_for(self.kernel, self.config, self.problem, sm)


class EnergyRule(Enum):
    """Rule that selects the screened configs whose energy is measured."""

    GUIDE = "those that may be on the front"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True)
class PlannedProblem:
    """A problem with the configs to measure, in order.

    Args:
        name: Name for reports, such as the name of a layer.
        probability: Probability with which each task was selected, or None if the tasks are not a random sample.
        most: Maximum number of tasks to measure, or None for all.
        search: Search that chooses the next tasks from measurements, or None to keep the order of `tasks`.
        baseline: Config that computes the expected output, or None if there is a reference implementation.
        energy: Rule that selects the tasks whose energy is measured.
        finals: Whether to measure configs near the Pareto front in the final tier.
        share: Maximum fraction of the campaign's remaining time to spend on this problem.
        configs_share: Maximum fraction of the campaign's remaining configs to screen on this problem.
        earlier: Measurements of the problem that exist already.
        upcoming: Tasks of the next problem, whose code is compiled after the code of `tasks`.
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
    configs_share: float = 1.0
    earlier: tuple[Measurement, ...] = ()
    upcoming: tuple[Task, ...] = ()

    @property
    def preparation(self) -> dict[str, Any]:
        """Arguments of the worker's request `prepare`."""
        return {"problem": self.problem.key, "baseline": self.baseline}


def plan_library(
    problems: Iterable[tuple[str, Problem]],
    context: "GpuContext",
    most: int | None = None,
    *,
    drawn: bool = False,
    seed: int = 0,
    kernel: Kernel | None = None,
) -> list[PlannedProblem]:
    """Plan the measurements of problems on a GPU, with the library's kernels or with one given kernel.

    Args:
        problems: Names and problems, in measuring order.
        context: GPU, profiles for predictions, and models that correct the predictions.
        most: Maximum number of configs per problem, or None for all.
        drawn: Whether to select configs at random instead of letting a search choose them.
        seed: Seed of the random selection and of the search.
        kernel: Kernel to measure, or None for all kernels of the library that compute the problem.

    Raises:
        UsageError: No config can run a problem, or a problem does not fit into the GPU's memory.
    """
    draw = np.random.default_rng(seed)
    planned = []
    for name, problem in problems:
        check_memory(problem, context.gpu)
        ranked, baseline = _ranked_tasks(problem, context, kernel, draw)
        if drawn:
            draw.shuffle(ranked)
        predicted, tasks = zip(*(ranked[:most] if drawn else ranked), strict=True)
        if drawn:
            probability = len(tasks) / len(ranked)
            # Measure the energy of the whole random sample, because a part would be biased.
            plan = PlannedProblem(name, problem, tasks, probability, energy=EnergyRule.ALL)
        else:
            columns = tunable_columns(tasks)
            search = ExpectedImprovement(columns, _completed(columns, np.array(predicted), seed), seed)
            plan = PlannedProblem(name, problem, tasks, most=most, search=search)
        planned.append(replace(plan, baseline=baseline))
    return planned


def check_memory(problem: Problem, gpu: GPU) -> None:
    """Raise `UsageError` if a problem's tensors need too much of the GPU's memory."""
    needed, most = sum(tensor.bytes for tensor in problem.tensors.values()), _MEMORY_SHARE * gpu.usable_bytes
    if needed > most:
        raise UsageError(
            f"{problem.key} needs {needed / 2**30:.1f} GiB; at most {most / 2**30:.1f} GiB of a {gpu.title} are used"
        )


def plan_recordings(
    recordings: Iterable[tuple[str, Recording]], most: int | None, seed: int = 0
) -> list[PlannedProblem]:
    """Plan the measurements of recorded problems, with at most `most` configs per problem and without predictions."""
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
    """Return the kernel and tunables of each task as numbers, in an array of shape (tasks, columns).

    Column 0 contains the number of the task's kernel. Each other column contains one tunable of one kernel, and is NaN
    for tasks of other kernels.
    """
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


def _completed(columns: np.ndarray, predicted_s: np.ndarray, seed: int) -> np.ndarray | None:
    """Replace missing predictions (NaN) by estimates. Return None if there is no prediction at all."""
    if not np.isfinite(predicted_s).any():
        return None
    for kernel in np.unique(columns[:, 0]):
        rows = np.flatnonzero(columns[:, 0] == kernel)
        of_kernel = columns[rows]
        tunables = of_kernel[:, ~np.isnan(of_kernel).all(axis=0)]
        predicted_s[rows] = completed_predictions(tunables, predicted_s[rows], seed)
    return predicted_s


def _ranked_tasks(
    problem: Problem, context: "GpuContext", only: Kernel | None, draw: np.random.Generator
) -> tuple[list[tuple[float, Task]], dict[str, int] | None]:
    """Return (ranked configs, baseline) for a problem. Raise `UsageError` if no config can run.

    Each ranked config is a pair (predicted seconds, task), fastest first. Configs without a prediction (NaN) come last,
    in random order. `baseline` is the config that computes the expected output, or None.

    Args:
        only: Kernel with the configs to rank, or None for all kernels that compute the problem.
    """
    from kernrec.recommender.candidates import candidate_set
    from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
    from kernrec.recommender.estimate.space import Space as PredictedSpace
    from kernrec.recommender.infeasible import why_not

    gpu = context.gpu
    if only:
        form = only.form(problem)
        only.require(form.dtype, form.layout, gpu.sm)
    kernels = (only,) if only else kernels_of(problem, gpu.sm)
    tables = {}
    for kernel in kernels:
        with suppress(KernrecError):  # Without profiles, kernrec cannot predict, and any order is equally good.
            tables[kernel.name] = context.kernel_table(kernel, problem)
    predicted = {}
    if tables:
        joint = PredictedSpace(list(tables.values()), context.models, whole=True)
        candidates = candidate_set(joint, problem, [DEFAULT_POINT])
        predicted = {estimated.table.kernel.name: estimated for estimated in candidates.kernels}
    spaces = [
        tables[kernel.name].space if kernel.name in tables else Space.of(kernel, problem, gpu) for kernel in kernels
    ]
    order = []
    for which, (kernel, space) in enumerate(zip(kernels, spaces, strict=True)):
        rank = _UNPREDICTED_S + draw.random(len(space))
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
    ranked = []
    for rank_s, which, row in sorted(order):
        kernel = kernels[which]
        task = Task(kernel.name, kernel.hash, spaces[which].config(row), problem, kernel)
        ranked.append((math.nan if rank_s >= _UNPREDICTED_S else rank_s, task))
    return ranked, baseline


class Chooser:
    """Base class of the strategies that decide what the GPUs of one model measure next.

    A `visit` contains the configs of one problem that a GPU measures without interruption.
    """

    @property
    def needs_energy(self) -> bool:
        """Whether the chooser needs GPUs that can measure energy."""
        return False

    @property
    def recalled(self) -> Sequence[Problem]:
        """Problems for which `begin` needs the measurements of earlier campaigns."""
        return ()

    def begin(self, earlier: Iterable[Measurement]) -> None:
        """Learn from the measurements of earlier campaigns."""

    def next(self, gpu: str = "", gpus: Collection[str] = ("",)) -> PlannedProblem | None:
        """Return what the GPU named `gpu` measures next. Return None if nothing is left, or if another GPU must finish
        first.

        `gpus` has the names of all GPUs of the same model.
        """
        raise NotImplementedError

    def learn(self, measurement: Measurement) -> None:
        """Learn from a new measurement. The measurement is already in the journal."""

    def done(self, visit: PlannedProblem, seconds: float) -> None:
        """Learn that the measurements in `visit` took `seconds` on the device's clock."""

    def outcome(self) -> object:
        """Return a summary for the user, or None if the strategy has no summary."""
        return None
