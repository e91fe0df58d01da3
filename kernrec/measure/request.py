"""Define the request for a measuring campaign, and the campaign's result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.kernel import Kernel
from kernrec.measure.campaign.results import EFFORTS, CampaignBudget, MeasuringEffort, ProblemResult, Progress
from kernrec.measure.protocol.measure_config import FINALS
from kernrec.op import Problem
from kernrec.op.workload import Layer
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.request import Objective

Report = Callable[[Progress], None]
Stopping = Callable[[], bool]


class Strategy(StrEnum):
    """Method by which a campaign chooses measurements and decides when to stop."""

    ALL = "all"
    """Measure each problem in turn: latencies, then energies near the Pareto front, then the best configs again."""
    PLAN = "plan"
    """Measure a fixed set of configs, the same on every GPU. Then measure the configs about which models are most
    uncertain."""
    REFINE = "refine"
    """Measure the configs that should reduce the regret most per second of measuring."""
    GUIDE = "guide"
    """Search one problem by expected improvement. Measure energy only for configs that may be the best."""
    GENETIC = "genetic"
    """Search one problem with a genetic algorithm. Measure as many energies as the search's cost model needs."""

    @property
    def searches(self) -> bool:
        """Whether the strategy searches the space of only one problem."""
        return self in (Strategy.GUIDE, Strategy.GENETIC)


@dataclass(frozen=True)
class WantedProblem:
    """A problem to measure, with a name for reports and a weight."""

    name: str
    problem: Problem
    count: float = 1.0


@dataclass(frozen=True)
class CollectRequest:
    """Everything that determines a campaign: what to measure, on which device, how, and into which database."""

    problems: Sequence[Layer | WantedProblem] | None
    """Problems to measure. None stands for all problems of the recording, or for the problems of `Strategy.PLAN`."""
    database: Path
    gpu: str = "auto"
    """GPU to measure on: `auto`, `all` (of a cluster or recording), an index, a UUID or the name of a recorded GPU."""
    recording: Path | None = None
    """Database with a recording to replay, or None to measure on a GPU."""
    strategy: Strategy = Strategy.ALL
    objective: Objective = Objective.LATENCY
    effort: MeasuringEffort = EFFORTS["normal"]
    """Effort for `Strategy.ALL`. Other strategies choose the number of configs themselves."""
    budget: CampaignBudget = field(default_factory=CampaignBudget)
    until: float | None = None
    """Limit of the weighted mean regret. The refinement stops if the regret is lower with 95 % probability."""
    seed: int = 0
    point: OperatingPoint = DEFAULT_POINT
    kernel: Kernel | None = None
    """User's kernel to measure instead of the library's kernels. Profiles in the database determine the order of its
    configs."""
    folder: Path = Path()
    """Folder of the files that the spec of the user's kernel names."""

    @property
    def wanted(self) -> Sequence[Layer | WantedProblem]:
        return self.problems or ()

    @property
    def needs_energy(self) -> bool:
        """Whether the objective includes energy, so that the strategy must measure it."""
        chooses = self.strategy.searches or self.strategy is Strategy.REFINE
        return chooses and self.objective is not Objective.LATENCY

    @property
    def finals(self) -> int:
        """Number of configs per problem to measure in the final tier."""
        if self.strategy is Strategy.ALL:
            return self.effort.finals
        return FINALS if self.strategy is Strategy.PLAN else 0

    def check(self, many_gpus: bool = False) -> None:
        """Raise `UsageError` for mistakes that can be found without a device. `many_gpus` is True on a cluster."""
        if self.recording is not None and self.recording.absolute() == self.database.absolute():
            raise UsageError("a recording cannot be collected into itself: give another --db")
        if self.gpu == "all" and not many_gpus:
            raise UsageError("--gpu all needs a cluster: after `ray start --head`, add --cluster auto")
        if self.strategy is Strategy.PLAN and self.problems is not None:
            raise UsageError("--strategy plan chooses the problems itself: leave out --op, --shape and --workload")
        if self.strategy is not Strategy.PLAN and self.recording is None and not self.wanted:
            raise UsageError("name what to measure with --op, and --shape or --workload")
        if self.strategy is not Strategy.ALL:
            self.budget.check(self.needs_energy)
        if self.kernel is not None and self.kernel.images:
            names = ", ".join(self.kernel.images)
            raise UsageError(f"{self.kernel.name} takes textures ({names}): it can be analyzed, but not measured")


@dataclass(frozen=True)
class CollectResult:
    results: tuple[ProblemResult, ...] = ()
    stored: int = 0
    """Number of this campaign's measurements that were added to the database."""
    leftover: int = 0
    """Number of added measurements of interrupted earlier campaigns."""
    stopped: bool = False
    error: str | None = None
    """One-line reason for an early end, or None."""
    outcomes: tuple[tuple[str, object], ...] = ()
    """Pairs of a GPU model and the result of its refinement (`Refined`) or search (`Searched`)."""
