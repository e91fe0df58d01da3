"""What a campaign is to measure: for each problem the configs of every kernel that computes it, most promising first.

The order is the analytic prior's, or a trained model's, and while it is worked through a search corrects it by what was
measured (`kernrec.model.search.expected_improvement`), so that a budget that ends early was spent where the best
configs are.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.compile import CompileJob
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU
from kernrec.kernel import Kernel, Space, able_kernels
from kernrec.measure.device.replay import Recording
from kernrec.model.prior.calibration import Calibration
from kernrec.model.search.expected_improvement import ExpectedImprovement
from kernrec.op import Problem
from kernrec.profile.profile_user_kernel import compile_job_for
from kernrec.store import Stack, canonical_json

if TYPE_CHECKING:
    from kernrec.recommender.estimate.candidates import Candidates
    from kernrec.recommender.estimate.correction import Learned

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
        """What tells its measurements from those of other tasks of the problem."""
        return self.kernel_name, self.kernel_hash, canonical_json(self.config)

    @property
    def code(self) -> str:
        """Names its compiled code: tasks that differ in run-time tunables alone share one."""
        kernel = self.kernel
        assert kernel is not None
        return f"{kernel.name} {kernel.variant_key(self.config, self.problem.dtype, self.problem.layout)}"

    def job(self, sm: int) -> CompileJob:
        """How its code is compiled."""
        assert self.kernel is not None
        return compile_job_for(self.kernel, self.config, self.problem, sm)


@dataclass(frozen=True)
class PlannedProblem:
    """A problem with its tasks in order. name: of the layer, where it is one.

    probability: with which each config of the space came to be among the tasks; None where they were not drawn.
    most: of the tasks that are measured; None: all. search: chooses, from what was measured, which of them come next.
    baseline: the config whose output the others have to have; None where an op or a spec says what is right.
    """

    name: str
    problem: Problem
    tasks: tuple[Task, ...]
    probability: float | None = None
    most: int | None = None
    search: ExpectedImprovement | None = None
    baseline: dict[str, int] | None = None

    @property
    def preparation(self) -> dict[str, Any]:
        """What the measuring process needs to know to make its inputs and what is expected of it."""
        return {"problem": self.problem.key, "baseline": self.baseline}


def library_targets(
    problems: Iterable[tuple[str, Problem]],
    gpu: GPU,
    stack: Stack,
    most: int | None,
    seed: int = 0,
    drawn: bool = False,
    kernel: Kernel | None = None,
    models: Path | None = None,
) -> list[PlannedProblem]:
    """The targets for (name, problem) pairs on a GPU, from the kernels of the library, or from `kernel` alone.

    most: configs measured of a problem, None: its whole space; as a search chooses them, or `drawn` at random. models:
    folder of calibrations and trained models, whose estimates go before the prior's. Raises `UsageError` for a problem
    that nothing can run.
    """
    planner = _Planner(gpu, stack, seed, kernel, models)
    targets = []
    for name, problem in problems:
        check_memory(problem, gpu)
        targets.append(planner.target(name, problem, most, drawn))
    return targets


def check_memory(problem: Problem, gpu: GPU) -> None:
    """Raises `UsageError` for a problem whose tensors leave too little of a GPU's memory for their copies."""
    needed, most = sum(tensor.bytes for tensor in problem.tensors.values()), _MEMORY_SHARE * gpu.memory_bytes
    if needed > most:
        raise UsageError(
            f"{problem.key} needs {needed / 2**30:.1f} GiB; at most {most / 2**30:.1f} are used of a {gpu.title}"
        )


def recorded_targets(recordings: Iterable[Recording], most: int | None, seed: int = 0) -> list[PlannedProblem]:
    """The recorded configs of each problem: of somebody else's kernels nothing is predicted, so the search has what
    was measured alone."""
    targets = []
    for recording in recordings:
        tasks = tuple(
            Task(kernel, recording.kernel_hashes[kernel], dict(outcome.config), recording.problem)
            for (kernel, _), outcome in recording.outcomes.items()
        )
        search = ExpectedImprovement(_tunables(tasks), seed=seed)
        targets.append(PlannedProblem(recording.problem.key, recording.problem, tasks, most=most, search=search))
    return targets


def _tunables(tasks: Sequence[Task]) -> np.ndarray:
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


class _Planner:
    """Orders configs; the candidates of a kernel are made once for all problems of a dtype and layout."""

    def __init__(self, gpu: GPU, stack: Stack, seed: int, only: Kernel | None, models: Path | None) -> None:
        from kernrec.recommender.estimate.model_store import Trained

        self._gpu = gpu
        self._seed = seed
        self._only = only
        self._stack = stack
        self._draw = np.random.default_rng(seed)
        self._known: dict[tuple[str, str, str], _Ranked] = {}
        self._trained = Trained(models, stack)

    def target(self, name: str, problem: Problem, most: int | None, drawn: bool) -> PlannedProblem:
        """The first configs that can run a problem: by predicted latency, and after them those without a prediction."""
        if self._only:
            self._only.require(problem.dtype, problem.layout, self._gpu.sm)
            kernels: tuple[Kernel, ...] = (self._only,)
        else:
            kernels = able_kernels(problem.op, problem.dtype, problem.layout, self._gpu.sm)
        spaces = [self._space(kernel, problem) for kernel in kernels]
        learned = self._trained.model(problem.op, self._gpu)
        ranks = [space.ranks(problem, self._draw, learned) for space in spaces]
        order = sorted(
            ((rank, which, row) for which, (rows, by) in enumerate(ranks) for row, rank in zip(rows, by, strict=True)),
        )
        if not order:
            from kernrec.recommender.infeasible import why_not

            reason = "" if self._only else why_not(kernels, problem, self._gpu)
            raise UsageError(f"no config of any kernel can run {problem.key} on {self._gpu.name}{reason}")
        if drawn:
            self._draw.shuffle(order)
        tasks = tuple(
            Task(kernels[which].name, kernels[which].hash, spaces[which].config(row), problem, kernels[which])
            for _, which, row in (order[:most] if drawn else order)
        )
        own = self._only
        baseline = spaces[0].first(problem) if own and own.declares_problem and not own.references else None
        if drawn:
            return PlannedProblem(name, problem, tasks, probability=len(tasks) / len(order), baseline=baseline)
        predicted = np.array([math.nan if rank >= _UNPREDICTED else rank for rank, _, _ in order])
        search = ExpectedImprovement(_tunables(tasks), predicted, self._seed)
        return PlannedProblem(name, problem, tasks, most=most, search=search, baseline=baseline)

    def _space(self, kernel: Kernel, problem: Problem) -> "_Ranked":
        # Profiles of sampled blocks are of one problem.
        key = (kernel.name, problem.dtype, problem.key if kernel.sampled else problem.layout)
        if key not in self._known:
            calibration = self._trained.calibration(self._gpu)
            self._known[key] = _Ranked(kernel, self._gpu, problem, self._stack, calibration)
        return self._known[key]


class _Ranked:
    """The space of one kernel, with the prior where there are profiles of its code to predict from."""

    def __init__(
        self,
        kernel: Kernel,
        gpu: GPU,
        like: Problem,
        stack: Stack,
        calibration: Calibration | None,
    ) -> None:
        from kernrec.recommender.power_sweep import candidates_of

        self._candidates: Candidates | None = None
        try:
            profiles = stack.profiles(kernel.name, kernel.hash, gpu.sm)
            self._candidates = candidates_of(kernel, like, gpu, profiles, calibration)
            self._space = self._candidates.space
        except KernrecError:  # no profiles of this source: any order is as good
            self._space = Space(kernel, gpu.sm, gpu.limits, like.dtype, like.layout)

    def config(self, row: int) -> dict[str, int]:
        """The config in a row."""
        return self._space.config(row)

    def first(self, problem: Problem) -> dict[str, int]:
        """The first config in the spec's order that can run a problem; if any has a profile, the first of those."""
        at = self._space.at(problem)
        profiled = self._candidates.rows(at) if self._candidates is not None else at.rows
        return self.config(int(min(profiled if len(profiled) else at.rows)))

    def ranks(
        self, problem: Problem, draw: np.random.Generator, learned: "Learned | None"
    ) -> tuple[list[int], list[float]]:
        """Rows that can run a problem, and what to order them by: seconds, or, unpredicted, a number above any."""
        at = self._space.at(problem)
        rank = _UNPREDICTED + draw.random(len(self._space))
        if self._candidates is not None and len(rows := self._candidates.rows(at)):
            prediction = self._candidates.predict(problem, at, rows)
            limited = self._candidates.apply_power_limit(prediction)
            rank[rows] = limited.latency_s
            reach = learned.reach(self._candidates.gpu, self._candidates.kernel) if learned is not None else None
            if reach is not None:
                from kernrec.recommender.estimate.correction import Correction

                where = np.arange(len(rows))
                found = Correction.of(reach, self._candidates, problem, at, prediction, limited, where)
                rank[rows] *= np.exp(found.ratios["latency"])
        return at.rows.tolist(), rank[at.rows].tolist()
