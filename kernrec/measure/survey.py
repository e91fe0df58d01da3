"""Draw configs over the whole spaces of kernels, to train a model on the times of all configs, not only of the fastest.

    kernel      each kernel of each op in turn, in a new order every round
    problem     the kernel's problem with the fewest draws so far
    configs     a random pool -> those predicted within `SLOWEST` times its fastest -> in order of the predicted time,
                one from each of as many parts as configs are wanted

A model trained only on configs with fast predictions would not learn the prediction errors of other configs.
"""

from collections.abc import Callable, Sequence

import numpy as np

from kernrec.kernel import Config
from kernrec.measure.campaign.plan import EnergyRule, PlannedProblem, Task
from kernrec.measure.refine_subject import RefineSubject, SampledKernel
from kernrec.measure.request import WantedProblem
from kernrec.op import Problem
from kernrec.recommender.contenders import Key, key_of
from kernrec.recommender.estimate.prediction import predict

CONFIGS = 4
"""Number of configs drawn per visit, because creating a problem's inputs takes as long as measuring two configs."""
SLOWEST = 10.0
"""Multiple of the fastest prediction above which configs are skipped, because their exact time is irrelevant."""
_POOL = 16 * CONFIGS
"""Number of random configs to predict, which takes milliseconds; a whole space takes tenths of a second."""


class Survey:
    """Survey that draws each config at most once."""

    def __init__(
        self, subject: RefineSubject, kernels: Callable[[Problem], Sequence[SampledKernel]], seed: int
    ) -> None:
        """Create a survey.

        Args:
            subject: Problems, with the kernels that compute them.
            kernels: Function that returns the measurable parts of the spaces of a problem's kernels.
            seed: Seed of the random draws.
        """
        self._kernels = kernels
        self._draw = np.random.default_rng(seed)
        self._problems: dict[tuple[str, str], list[WantedProblem]] = {}  # Problems by op and kernel, least drawn first.
        for number in self._draw.permutation(len(subject.wanted)).tolist():
            wanted = subject.wanted[number]
            for kernel in subject.hashes[number]:
                self._problems.setdefault((wanted.problem.op, kernel), []).append(wanted)
        self._turns: list[tuple[str, str]] = []
        self._taken: dict[str, set[Key]] = {}
        self._begun = 0
        """Rounds."""

    @property
    def every_kernel(self) -> bool:
        """Return whether every kernel had its turn."""
        return not self._problems or self._begun > 1 or (self._begun == 1 and not self._turns)

    def next(self) -> PlannedProblem | None:
        """Return some configs of a problem; None if all configs were drawn."""
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
        """Return configs of a kernel with predicted times."""
        table = kernel.table
        assert table is not None
        space = table.space.at(problem)
        rows = table.runnable(space)
        if among is not None:
            rows = np.intersect1d(rows, table.space.find(among))
        pool = np.sort(self._draw.permutation(rows)[:_POOL])
        latency_s = predict(table, space, pool).limited().latency_s
        order = np.argsort(latency_s, kind="stable")
        order = order[latency_s[order] <= SLOWEST * latency_s.min(initial=np.inf)]
        configs = [
            config
            for config in map(table.space.config, pool[order].tolist())
            if key_of(kernel.name, config) not in taken
        ]
        parts = np.array_split(np.arange(len(configs)), CONFIGS)
        return [configs[int(self._draw.choice(part))] for part in parts if len(part)]
