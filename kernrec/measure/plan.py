"""What a campaign is to measure: for each problem the configs of every kernel that computes it, most promising first.

The order is the analytic prior's, so that a budget that ends early was spent where the best configs are expected.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernrec.compile import Job
from kernrec.compile.own import job_of
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU
from kernrec.kernel import Kernel, Space, able_kernels
from kernrec.measure.replay import Recording
from kernrec.model.power import PowerModel
from kernrec.op import Problem
from kernrec.store import Stack, canonical

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
        return self.kernel_name, self.kernel_hash, canonical(self.config)

    @property
    def code(self) -> str:
        """Names its compiled code: tasks that differ in run-time tunables alone share one."""
        kernel = self.kernel
        assert kernel is not None
        return f"{kernel.name} {kernel.code_key(self.config, self.problem.dtype, self.problem.layout)}"

    def job(self, sm: int) -> Job:
        """How its code is compiled."""
        assert self.kernel is not None
        return job_of(self.kernel, self.config, self.problem, sm)


@dataclass(frozen=True)
class Target:
    """A problem with its tasks in order. name: of the layer, where it is one.

    probability: with which each config of the space came to be among the tasks; None where they were not drawn.
    baseline: the config whose output the others have to have; None where an op or a spec says what is right.
    """

    name: str
    problem: Problem
    tasks: tuple[Task, ...]
    probability: float | None = None
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
) -> list[Target]:
    """The targets for (name, problem) pairs on a GPU, from the kernels of the library, or from `kernel` alone.

    most: tasks a problem, None: its whole space; those predicted to be fastest, or `drawn` at random. Raises
    `UsageError` for a problem that nothing can run.
    """
    planner = _Planner(gpu, stack, np.random.default_rng(seed), kernel)
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


def recorded_targets(recordings: Iterable[Recording], most: int | None, seed: int = 0) -> list[Target]:
    """The recorded configs of each problem, in random order: of somebody else's kernels there is no prior."""
    targets = []
    for recording in recordings:
        tasks = [
            Task(kernel, recording.kernel_hashes[kernel], dict(outcome.config), recording.problem)
            for (kernel, _), outcome in recording.outcomes.items()
        ]
        random.Random(f"{seed} {recording.problem.key}").shuffle(tasks)
        targets.append(Target(recording.problem.key, recording.problem, tuple(tasks[:most])))
    return targets


class _Planner:
    """Orders configs; the candidates of a kernel are made once for all problems of a dtype and layout."""

    def __init__(self, gpu: GPU, stack: Stack, draw: np.random.Generator, only: Kernel | None) -> None:
        self._gpu = gpu
        self._only = only
        self._stack = stack
        self._draw = draw
        self._power = PowerModel.for_gpu(gpu)
        self._known: dict[tuple[str, str, str], _Ranked] = {}

    def target(self, name: str, problem: Problem, most: int | None, drawn: bool) -> Target:
        """The first configs that can run a problem: by predicted latency, and after them those without a prediction."""
        if self._only:
            self._only.require(problem.dtype, problem.layout, self._gpu.sm)
            kernels: tuple[Kernel, ...] = (self._only,)
        else:
            kernels = able_kernels(problem.op, problem.dtype, problem.layout, self._gpu.sm)
        spaces = [self._space(kernel, problem) for kernel in kernels]
        ranks = [space.ranks(problem, self._draw) for space in spaces]
        order = sorted(
            ((rank, which, row) for which, (rows, by) in enumerate(ranks) for row, rank in zip(rows, by, strict=True)),
        )
        if not order:
            raise UsageError(f"no config of any kernel can run {problem.key} on {self._gpu.name}")
        if drawn:
            self._draw.shuffle(order)
        tasks = [
            Task(kernels[which].name, kernels[which].hash, spaces[which].config(row), problem, kernels[which])
            for _, which, row in order[:most]
        ]
        own = self._only
        baseline = spaces[0].first(problem) if own and own.declares_problem and not own.references else None
        return Target(name, problem, tuple(tasks), len(tasks) / len(order) if drawn else None, baseline)

    def _space(self, kernel: Kernel, problem: Problem) -> "_Ranked":
        # Profiles of sampled blocks are of one problem.
        key = (kernel.name, problem.dtype, problem.key if kernel.sampled else problem.layout)
        if key not in self._known:
            self._known[key] = _Ranked(kernel, self._gpu, self._power, problem, self._stack)
        return self._known[key]


class _Ranked:
    """The space of one kernel, with the prior where there are profiles of its code to predict from."""

    def __init__(self, kernel: Kernel, gpu: GPU, power: PowerModel, like: Problem, stack: Stack) -> None:
        from kernrec.recommender.candidates import Candidates

        self._candidates: Candidates | None = None
        try:
            profiles = stack.profiles(kernel.name, kernel.hash, gpu.sm)
            of = like if kernel.sampled else None
            self._candidates = Candidates(kernel, gpu, power, like.dtype, like.layout, profiles, of)
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

    def ranks(self, problem: Problem, draw: np.random.Generator) -> tuple[list[int], list[float]]:
        """Rows that can run a problem, and what to order them by: seconds, or, unpredicted, a number above any."""
        at = self._space.at(problem)
        rank = _UNPREDICTED + draw.random(len(self._space))
        if self._candidates is not None and len(rows := self._candidates.rows(at)):
            rank[rows] = self._candidates.settle(self._candidates.predict(problem, at, rows)).latency_s
        return at.rows.tolist(), rank[at.rows].tolist()
