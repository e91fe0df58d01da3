"""The request for a campaign, and its result."""

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
    """How a campaign chooses what to measure next, and when to stop."""

    ALL = "all"
    """Each problem in turn: screen its configs, then energy near the front, then finals."""
    PLAN = "plan"
    """A fixed part, which is the same on every GPU, then the measurements that models are most uncertain about."""
    REFINE = "refine"
    """The configs that lower the expected regret most per second."""
    GUIDE = "guide"
    """One problem: expected improvement, and energy for configs whose interval reaches below the best."""
    GENETIC = "genetic"
    """One problem: a genetic search, and as much energy as the signal-to-noise ratio of its model requires."""

    @property
    def searches(self) -> bool:
        """Whether the strategy searches the space of one problem."""
        return self in (Strategy.GUIDE, Strategy.GENETIC)


@dataclass(frozen=True)
class WantedProblem:
    """A problem with its name and weight."""

    name: str
    problem: Problem
    count: float = 1.0
    layout_free: bool = False
    """Always false: the problem fixes the layout."""


@dataclass(frozen=True)
class CollectRequest:
    """A request to measure."""

    problems: Sequence[Layer | WantedProblem] | None
    """None: all problems of a recording, or the problems of the plan."""
    database: Path
    gpu: str = "auto"
    """`auto`, `all` (each GPU of this machine or recording), an index, a UUID or, for a recording, a GPU's name."""
    recording: Path | None = None
    """Database to replay; None: measure on a GPU."""
    strategy: Strategy = Strategy.ALL
    objective: Objective = Objective.LATENCY
    """Objective that refinement and searches minimize."""
    effort: MeasuringEffort = EFFORTS["normal"]
    """For `Strategy.ALL`; the other strategies choose every config themselves."""
    budget: CampaignBudget = field(default_factory=CampaignBudget)
    until: float | None = None
    """Weighted mean regret at which refinement stops, once the regret is lower with a probability of 95 %."""
    resume: bool = True
    """Whether to skip what the database already has."""
    seed: int = 0
    point: OperatingPoint = DEFAULT_POINT
    """Power limit and clock of the GPU."""
    kernel: Kernel | None = None
    """Kernel of the user, measured instead of the library's; its profiles in the database order its configs."""
    folder: Path = Path()
    """Folder of the files that the kernel's spec names."""

    @property
    def wanted(self) -> Sequence[Layer | WantedProblem]:
        """The named problems, or an empty sequence."""
        return self.problems or ()

    @property
    def needs_energy(self) -> bool:
        """Whether the strategy minimizes something that includes energy."""
        chooses = self.strategy.searches or self.strategy is Strategy.REFINE
        return chooses and self.objective is not Objective.LATENCY

    @property
    def campaign_effort(self) -> MeasuringEffort:
        """Effort of the campaign that measures what the strategy chooses."""
        chosen = MeasuringEffort(None, FINALS if self.strategy is Strategy.PLAN else 0)
        return self.effort if self.strategy is Strategy.ALL else chosen

    def check(self, many_gpus: bool = False) -> None:
        """Raise `UsageError` for mistakes that need no device.

        Args:
            many_gpus: Whether a cluster measures.
        """
        if self.recording is not None and self.recording.absolute() == self.database.absolute():
            raise UsageError("a recording cannot be collected into itself: give another --db")
        if self.strategy is Strategy.PLAN and self.problems is not None:
            raise UsageError("--strategy plan chooses the problems itself: leave out --op, --shape and --workload")
        if self.strategy is not Strategy.PLAN and self.recording is None and not self.wanted:
            raise UsageError("name what to measure with --op, and --shape or --workload")
        if self.strategy is not Strategy.ALL:
            if self.gpu == "all" and not many_gpus:
                raise UsageError(
                    f"--gpu all: --strategy {self.strategy} uses one GPU; run it for each GPU, one after the other"
                )
            self.budget.check(self.needs_energy)
        if self.kernel is not None and self.kernel.images:
            names = ", ".join(self.kernel.images)
            raise UsageError(f"{self.kernel.name} takes textures ({names}): it can be analyzed, but not measured")


@dataclass(frozen=True)
class CollectResult:
    """Result of a campaign."""

    results: tuple[ProblemResult, ...] = ()
    stored: int = 0
    """Measurements added to the database."""
    leftover: int = 0
    """Measurements of an interrupted earlier run that were added to the database."""
    stopped: bool = False
    """Whether the caller stopped the campaign."""
    error: str | None = None
    """Reason for an early end, in one line."""
    outcomes: tuple[tuple[str, object], ...] = ()
    """Result of refinement (`Refined`) or of a search (`Searched`), by GPU model."""
