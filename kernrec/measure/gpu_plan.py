"""Plan the measurements of a GPU if the user names no problem. The plan has three parts:

    fixed part  configs that are the same on every GPU (kernrec.kernel.fixed_part)
    survey      some configs of every kernel, spread over the kernel's space
    refinement  configs that should improve recommendations most (refine_planner.py), in turn with more of the survey

The problems are the layers of the standard workloads or of a recording. Every op has the same weight.

The survey also measures slow configs, so that models learn how much predictions are off. The survey chooses:

    kernel      each kernel of each op in turn, in a new random order every round
    problem     the kernel's problem with the fewest draws so far
    configs     a random config from each quantile of predicted time, without very slow configs (`SLOWEST`)
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU
from kernrec.kernel import Config, kernels_of
from kernrec.kernel.fixed_part import fixed_part
from kernrec.measure.campaign.plan import Chooser, EnergyRule, PlannedProblem, Task, check_memory
from kernrec.measure.device.replay import load_recordings
from kernrec.measure.problems import select_layers
from kernrec.measure.refine_planner import RefinePlanner
from kernrec.measure.refine_subject import RefineSubject, SampledKernel, sampled_kernels, subject_of
from kernrec.measure.request import WantedProblem
from kernrec.measure.request_on_gpu import RequestOnGpu
from kernrec.op import Problem, problem_from_key
from kernrec.recommender.contenders import Key, key_of
from kernrec.recommender.estimate.space import predict
from kernrec.store.measurement import Measurement

CONFIGS = 4
"""Number of configs to draw for a problem. Creating a problem's inputs takes as long as measuring about two configs."""
SLOWEST = 10.0
"""Maximum predicted time of a config to measure, divided by the fastest predicted time."""
_POOL = 16 * CONFIGS
"""Number of random configs to predict for each draw. Predicting a whole space would take tenths of a second."""


class Survey:
    """Random sample of the configs of all kernels. Each config is drawn at most once."""

    def __init__(
        self, subject: RefineSubject, kernels: Callable[[Problem], Sequence[SampledKernel]], seed: int
    ) -> None:
        """Sample configs for the problems in `subject`. The function `kernels` returns a problem's kernels."""
        self._kernels = kernels
        self._draw = np.random.default_rng(seed)
        # problems, with the fewest draws first, keyed by (op, kernel)
        self._problems: dict[tuple[str, str], list[WantedProblem]] = {}
        for number in self._draw.permutation(len(subject.wanted)).tolist():
            wanted = subject.wanted[number]
            for kernel in subject.hashes[number]:
                self._problems.setdefault((wanted.problem.op, kernel), []).append(wanted)
        self._turns: list[tuple[str, str]] = []
        self._taken: dict[str, set[Key]] = {}
        self._begun = 0
        """Number of rounds that have begun. Each kernel has one turn per round."""

    @property
    def every_kernel(self) -> bool:
        return not self._problems or self._begun > 1 or (self._begun == 1 and not self._turns)

    def next(self) -> PlannedProblem | None:
        """Draw some configs of one problem. Return None if all configs have been drawn."""
        while self._problems:
            if not self._turns:
                kernels = sorted(self._problems)
                self._turns = [kernels[place] for place in self._draw.permutation(len(kernels)).tolist()]
                self._begun += 1
            of_kernel = self._turns.pop()
            left = self._problems.pop(of_kernel)
            while left:
                wanted = left.pop(0)
                if tasks := self._drawn(wanted.problem, of_kernel[1]):
                    self._problems[of_kernel] = [*left, wanted]
                    return PlannedProblem(
                        wanted.name, wanted.problem, tuple(tasks), energy=EnergyRule.NONE, finals=False
                    )
        return None

    def _drawn(self, problem: Problem, name: str) -> list[Task]:
        kernel = next((each for each in self._kernels(problem) if each.name == name), None)
        if kernel is None:
            return []
        taken = self._taken.setdefault(problem.key, set(kernel.measured))
        left = None if kernel.configs is None else [each for each in kernel.configs if key_of(name, each) not in taken]
        if kernel.table is not None:
            configs = self._by_time(kernel, problem, left, taken)
        else:
            configs = [(left or [])[place] for place in self._draw.permutation(len(left or []))[:CONFIGS].tolist()]
        taken.update(key_of(name, config) for config in configs)
        return [Task(name, kernel.hash, dict(config), problem, kernel.kernel) for config in configs]

    def _by_time(
        self, kernel: SampledKernel, problem: Problem, among: Sequence[Config] | None, taken: set[Key]
    ) -> list[Config]:
        """Draw at most `CONFIGS` configs of a kernel, spread over the range of predicted times.

        Args:
            among: Configs to draw from, or None for all configs that can run the problem.
            taken: Keys of configs that must not be drawn again.
        """
        table = kernel.table
        assert table is not None
        space = table.space.at(problem)
        rows = table.runnable(space)
        if among is not None:
            rows = np.intersect1d(rows, table.space.find(among))
        pool = np.sort(self._draw.permutation(rows)[:_POOL])
        latency_s = predict(table, space, pool).latency_s
        order = np.argsort(latency_s, kind="stable")
        order = order[latency_s[order] <= SLOWEST * latency_s.min(initial=np.inf)]
        configs = [
            config
            for config in map(table.space.config, pool[order].tolist())
            if key_of(kernel.name, config) not in taken
        ]
        parts = np.array_split(np.arange(len(configs)), CONFIGS)
        return [configs[int(self._draw.choice(part))] for part in parts if len(part)]


USUAL_BUDGET_S = 600.0
"""Default time budget of a plan, in seconds."""
_FIXED_SHARE = 0.1
"""Maximum fraction of the remaining time for each problem of the fixed part."""
_ENERGY_EVERY = 5
"""Number of decisions from one energy measurement to the next. Refinement and random sampling alternate, so an even
number would exclude refined or random configs."""


class GpuPlan(Chooser):
    """Measure the fixed part and a few random configs of each kernel. Then alternate refinement and random sampling."""

    def __init__(self, on_gpu: RequestOnGpu) -> None:
        """Plan the measurements of a GPU, or of a recorded GPU if the request names a recording."""
        request, gpu = on_gpu.request, on_gpu.gpu
        self._fixed = fixed_problems(gpu, request.recording)
        self._survey: Survey | None = None
        self._planner: RefinePlanner | None = None
        if request.recording is None:
            on_gpu = RequestOnGpu(replace(request, problems=asked_problems(gpu)), gpu.name)
        subject = subject_of(on_gpu, able_only=request.recording is None)
        if subject.wanted:
            self._survey = Survey(subject, sampled_kernels(on_gpu), request.seed)
            self._planner = RefinePlanner(on_gpu, subject)
        self._refining = False  # whether the refinement planner chose the current measurements
        # (Configs from refinement) - (random configs after their first round). If positive, random configs are next.
        self._ahead = 0
        self._visits = 0

    def next(self, gpu: str = "", gpus: Collection[str] = ("",)) -> PlannedProblem | None:
        self._refining = False
        if self._fixed:
            return self._fixed.pop(0)
        self._visits += 1
        surveys_first = self._survey is not None and (self._ahead > 0 or not self._survey.every_kernel)
        visit = self._surveyed() if surveys_first else None
        visit = visit or self._refined(gpu, gpus) or self._surveyed()
        if visit is None or not self._measures_energy:
            return visit
        return replace(visit, energy=EnergyRule.ALL)

    def _surveyed(self) -> PlannedProblem | None:
        if self._survey is None or (planned := self._survey.next()) is None:
            return None
        self._ahead -= len(planned.tasks) if self._survey.every_kernel else 0
        return planned

    def _refined(self, gpu: str, gpus: Collection[str]) -> PlannedProblem | None:
        visit = None if self._planner is None else self._planner.next(gpu, gpus)
        if visit is not None:
            self._refining = True
            self._ahead += len(visit.tasks)
        return visit

    @property
    def _measures_energy(self) -> bool:
        return self._visits % _ENERGY_EVERY == 0

    def learn(self, measurement: Measurement) -> None:
        if self._planner is not None:
            self._planner.learn(measurement)

    def done(self, visit: PlannedProblem, seconds: float) -> None:
        # Energy measurements take longer. Report a duration of 0, so that they do not distort the planner's estimates.
        if self._planner is not None and self._refining:
            self._planner.done(visit, 0.0 if self._measures_energy else seconds)


def fixed_problems(gpu: GPU, recording: Path | None = None) -> list[PlannedProblem]:
    """Return the problems of the plan's fixed part, with the configs that can run on a GPU. If `recording` is given,
    include only configs that the recording contains."""
    recorded = {each.problem.key: each for each in load_recordings(recording, gpu.name)} if recording else {}
    members: dict[Problem, list[tuple[str, Task]]] = {}
    for each in fixed_part():
        if (kernel := each.kernel_on(gpu)) is None:
            continue
        if recording is None:
            runs = _fits(each.problem, gpu)
        elif there := recorded.get(each.problem.key):
            same = there.kernel_hashes.get(kernel.name) == kernel.hash
            runs = same and there.key(kernel.name, each.config) in there.outcomes
        else:
            runs = False
        if runs:
            source = None if recording else kernel
            task = Task(kernel.name, kernel.hash, dict(each.config), each.problem, source)
            members.setdefault(each.problem, []).append((each.bound, task))
    return [
        PlannedProblem(
            f"fixed part: {', '.join(bound for bound, _ in tasks)}",
            problem,
            tuple(task for _, task in tasks),
            energy=EnergyRule.ALL,
            share=_FIXED_SHARE,
        )
        for problem, tasks in members.items()
    ]


def asked_problems(gpu: GPU) -> list[WantedProblem]:
    """Return the layers of the standard workloads that a GPU can run. The weights of an op's layers add up to one."""
    layers: dict[Problem, tuple[str, float]] = {}
    for layer in select_layers("all", None, None, None, None) or ():
        if (able := _runnable_problem(layer.problem, gpu)) is not None:
            layers.setdefault(able, (layer.name, layer.count))
    totals: dict[str, float] = {}
    for problem, (_, count) in layers.items():
        totals[problem.op] = totals.get(problem.op, 0.0) + count
    return [WantedProblem(name, problem, count / totals[problem.op]) for problem, (name, count) in layers.items()]


def _runnable_problem(problem: Problem, gpu: GPU) -> Problem | None:
    """Return `problem`, or the same problem in f16 instead of bf16. Return None if no kernel can run it."""
    for each in (problem, problem_from_key(problem.key.replace("]bf16,", "]f16,"))):
        try:
            kernels_of(each, gpu.sm)
        except KernrecError:
            continue
        if _fits(each, gpu):
            return each
    return None


def _fits(problem: Problem, gpu: GPU) -> bool:
    try:
        check_memory(problem, gpu)
    except UsageError:
        return False
    return True
