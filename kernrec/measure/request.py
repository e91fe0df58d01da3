"""Define the request for a campaign, and its result."""

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
    """Strategy by which a campaign chooses measurements and stops."""

    ALL = "all"
    """Measure each problem in turn: screen configs, then measure energy near the front, then finals."""
    PLAN = "plan"
    """Measure a fixed part, which is the same on every GPU, then the models' most uncertain configs."""
    REFINE = "refine"
    """Measure the configs that reduce the expected regret most per second."""
    GUIDE = "guide"
    """Search one problem by expected improvement; measure energy if a config's interval reaches below the best."""
    GENETIC = "genetic"
    """Search one problem genetically; measure as many energies as the model's signal-to-noise ratio requires."""

    @property
    def searches(self) -> bool:
        """Return whether the strategy searches the space of a single problem."""
        return self in (Strategy.GUIDE, Strategy.GENETIC)


@dataclass(frozen=True)
class WantedProblem:
    """A problem with its name and weight."""

    name: str
    problem: Problem
    count: float = 1.0
    layout_free: bool = False
    """Always False, because the problem fixes the layout."""


@dataclass(frozen=True)
class CollectRequest:
    """A request to measure."""

    problems: Sequence[Layer | WantedProblem] | None
    """Problems to measure; None for all problems of a recording or of the plan."""
    database: Path
    gpu: str = "auto"
    """`auto`, `all` (each GPU of this machine or recording), an index, a UUID or, for a recording, a GPU's name."""
    recording: Path | None = None
    """Database to replay; None to measure on a GPU."""
    strategy: Strategy = Strategy.ALL
    objective: Objective = Objective.LATENCY
    """Objective that refinement and searches minimize."""
    effort: MeasuringEffort = EFFORTS["normal"]
    """Effort of `Strategy.ALL`; other strategies choose every config themselves."""
    budget: CampaignBudget = field(default_factory=CampaignBudget)
    until: float | None = None
    """Weighted mean regret at which refinement stops, once the regret is lower with 95 % probability."""
    resume: bool = True
    """Whether to skip measurements that the database already has."""
    seed: int = 0
    point: OperatingPoint = DEFAULT_POINT
    """Power limit and clock of the GPU."""
    kernel: Kernel | None = None
    """User's kernel to measure instead of the library's; its profiles in the database order its configs."""
    folder: Path = Path()
    """Folder of the files that the kernel's spec names."""

    @property
    def wanted(self) -> Sequence[Layer | WantedProblem]:
        """Return the requested problems, or an empty sequence."""
        return self.problems or ()

    @property
    def needs_energy(self) -> bool:
        """Return whether the strategy's objective includes energy."""
        chooses = self.strategy.searches or self.strategy is Strategy.REFINE
        return chooses and self.objective is not Objective.LATENCY

    @property
    def campaign_effort(self) -> MeasuringEffort:
        """Return the effort of the campaign that measures the strategy's choices."""
        chosen = MeasuringEffort(None, FINALS if self.strategy is Strategy.PLAN else 0)
        return self.effort if self.strategy is Strategy.ALL else chosen

    def check(self, many_gpus: bool = False) -> None:
        """Raise `UsageError` for mistakes that can be found without a device.

        Args:
            many_gpus: Whether a cluster makes the measurements.
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
    """Number of measurements added to the database."""
    leftover: int = 0
    """Number of measurements of interrupted earlier runs that were added to the database."""
    stopped: bool = False
    """Whether the caller stopped the campaign."""
    error: str | None = None
    """Reason for an early end, in one line."""
    outcomes: tuple[tuple[str, object], ...] = ()
    """Result of refinement (`Refined`) or of a search (`Searched`), by GPU model."""
