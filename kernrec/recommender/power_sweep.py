"""The configs of one kernel on one problem under a range of power limits, with their costs.

A power limit is a lever like a tunable, but none of the kernel's: the same config may be on the front twice, fast at
the default limit and frugal below it. The front here is over pairs (config, power limit).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.kernel import Kernel
from kernrec.model.prior.calibration import Calibration
from kernrec.model.prior.power import PowerModel
from kernrec.op import Problem
from kernrec.recommender.estimate.candidates import Candidates
from kernrec.recommender.estimate.estimates import MEASURED, SOURCES
from kernrec.recommender.estimate.model_store import Trained
from kernrec.recommender.estimate.power_limits import at_limits, known_at
from kernrec.recommender.infeasible import refusing_constraint
from kernrec.recommender.notes import of_known, of_predictions, sources_of
from kernrec.recommender.pareto import pareto_front, spread
from kernrec.recommender.result import Choice, Comparison, Cost
from kernrec.recommender.ties import Place
from kernrec.store import Evidence, ProfileTable

if TYPE_CHECKING:
    from kernrec.recommender.estimate.correction import Correction

POWER_LIMITS = 8
"""Power limits that are tried, from the least that a GPU accepts to the most."""


@dataclass(frozen=True)
class Limited:
    """A choice at a power limit."""

    choice: Choice
    power_limit_w: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        return {"power_limit_w": self.power_limit_w, **self.choice.as_dict()}


class Ranked:
    """All candidates of a kernel on a problem with their costs; arrays (limits, C), the default limit first.

    evidence: what databases say of the kernel on this problem and GPU; None: all costs are predictions. trained: what
    was learned from measurements; None: predictions are those of the prior with the data sheet's coefficients. learned:
    the model that corrects the prior, if one does.
    """

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        gpu: GPU,
        profiles: Mapping[int, ProfileTable],
        limits: Sequence[float],
        evidence: Evidence | None = None,
        trained: Trained | None = None,
    ) -> None:
        self.kernel, self.problem, self.gpu = kernel, problem, gpu
        self.group = candidates_of(kernel, problem, gpu, profiles, trained.calibration(gpu) if trained else None)
        self.at = self.group.space.at(problem)
        self.limits = list(dict.fromkeys([gpu.tdp_w, *limits]))
        found, measured = known_at(self.group.space, self.at, gpu, evidence or Evidence(), self.limits)
        self.known = found[0]
        runnable = self.group.rows(self.at, measured)
        self.unprofiled = [
            one for row, one in zip(self.known.rows, self.known.measured, strict=True) if row not in runnable
        ]
        self.rows = np.setdiff1d(runnable, self.known.failed)
        if not len(self.rows):
            raise KernrecError(f"no config of {kernel.name} can run {problem.key} on {gpu.name}: {self._why_none()}")
        self.prediction = self.group.predict(problem, self.at, self.rows)
        self.limited = [self.group.apply_power_limit(self.prediction, limit) for limit in self.limits]
        model = trained.model(problem.op, gpu) if trained else None
        self.learned = model.reach(gpu, kernel) if model else None
        self.warnings = trained.warnings() if trained else ()
        self.costs, self.rescaling = at_limits(self.limited, self.rows, found, self._correction())
        if self.learned:
            self.learned = self.learned.after(max(len(costs.measured) for costs in self.costs))
        self.latency_s: np.ndarray = np.stack([c.estimates.latency_s for c in self.costs])
        self.energy_j: np.ndarray = np.stack([c.estimates.energy_j for c in self.costs])

    def _why_none(self) -> str:
        if len(self.known.failed):
            return f"{len(self.known.failed)} failed when they were measured"
        if not len(self.at.rows):
            return f"it needs {refusing_constraint(self.kernel, self.problem, self.gpu) or 'another shape'!r}"
        return (
            f"of {len(self.at.rows)} that its constraints leave none is profiled, fits an SM and does without spilling"
        )

    def _correction(self) -> "Correction | None":
        """What a model says of the candidates at the default power limit, where it was trained."""
        if self.learned is None:
            return None
        from kernrec.recommender.estimate.correction import Correction

        where = np.arange(len(self.rows))
        return Correction.of(self.learned, self.group, self.problem, self.at, self.prediction, self.limited[0], where)

    @cached_property
    def fastest(self) -> int:
        """The candidate that is fastest at the default limit."""
        return int(self.latency_s[0].argmin())

    @cached_property
    def heuristic(self) -> int:
        """The candidate that the occupancy heuristic picks."""
        row = self.group.occupancy_choice(self.at, self.rows)
        return int(np.searchsorted(self.rows, row))

    def cost(self, what: str, unit: str, limit: int, position: int) -> Cost:
        """What a candidate costs at one of the limits: (`latency`, `s`) or (`energy`, `j`)."""
        names = f"{what}_{unit}", f"{what}_low_{unit}", f"{what}_high_{unit}", f"{what}_source"
        value, low, high, source = (getattr(self.costs[limit].estimates, name)[position] for name in names)
        return Cost(float(value), float(low), float(high), SOURCES[source])

    def choice(self, limit: int, position: int) -> Limited:
        """One candidate at one of the limits."""
        latency, energy = float(self.latency_s[limit, position]), float(self.energy_j[limit, position])
        row, limited = int(self.rows[position]), self.limited[limit]
        measured = self.costs[limit].measured.get(position)

        def against(other: int) -> Comparison:
            return Comparison(
                1.0 - energy / float(self.energy_j[0, other]), latency / float(self.latency_s[0, other]) - 1.0
            )

        choice = Choice(
            kernel=self.kernel,
            config=self.group.space.config(row),
            problem=self.problem,
            gpu=self.gpu,
            place=Place(1, False, True),
            latency_s=self.cost("latency", "s", limit, position),
            energy_j=self.cost("energy", "j", limit, position),
            power_w=float(self.costs[limit].estimates.power_w[position]),
            clock_hz=float(limited.clock_hz[position]),
            limit=self.prediction.bottleneck(position),
            occupancy=self.group.occupancy(self.at, row),
            versus_fastest=against(self.fastest),
            versus_occupancy=against(self.heuristic),
            sessions=measured.sessions if measured else 0,
            measured_at=measured.measured_at.isoformat() + "Z" if measured else None,
            device=measured.device if measured else None,
        )
        return Limited(choice, self.limits[limit])

    def about(self, choices: Iterable[Limited]) -> list[str]:
        """What the reader of choices has to know of where their costs come from, one line each."""
        sources = sources_of(limited.choice for limited in choices)
        rescaling = self.rescaling if sources - {"measured"} else None
        return [
            *self.warnings,
            *of_predictions(sources, [(self.group.calibration, self.learned)]),
            *of_known(self.kernel.name, self.known, rescaling),
        ]

    def select(self, objective: str, top: int, first: int = 0) -> list[tuple[int, int]]:
        """(limit, position) of the best, in order; limits before the `first` are not chosen from."""
        measured = np.stack([c.estimates.latency_source == MEASURED for c in self.costs[first:]])
        of_equals = 1.0 - 1e-9 * measured  # the measured one: at a limit that does not bind the prediction is the same
        latency, energy = (self.latency_s[first:] * of_equals).ravel(), (self.energy_j[first:] * of_equals).ravel()
        if objective == "pareto":
            picked = spread(pareto_front(latency, energy), latency, energy, top)
        else:
            value = {"latency": latency, "energy": energy, "edp": latency * energy}[objective]
            # The least at each candidate's best limit: a limit that binds nowhere is no choice of its own.
            by_config = value.reshape(-1, len(self.rows))
            best = by_config.argmin(axis=0)
            order = np.argsort(by_config.min(axis=0), kind="stable")[:top]
            picked = best[order] * len(self.rows) + order
        places = [divmod(int(place), len(self.rows)) for place in picked]
        return [(first + limit, position) for limit, position in places]


def candidates_of(
    kernel: Kernel,
    problem: Problem,
    gpu: GPU,
    profiles: Mapping[int, ProfileTable],
    calibration: Calibration | None = None,
) -> Candidates:
    """The candidates of one kernel, whose profiles may be those of a sample of blocks on this very problem."""
    power, sampled = PowerModel.for_gpu(gpu), problem if kernel.sampled else None
    return Candidates(kernel, gpu, power, problem.dtype, problem.layout, profiles, sampled, calibration)


def power_limits(gpu: GPU) -> list[float]:
    """The power limits that are tried for a GPU (W), in steps of whole watts."""
    return [round(float(limit)) for limit in np.linspace(gpu.power_min_w, gpu.power_max_w, POWER_LIMITS)]
