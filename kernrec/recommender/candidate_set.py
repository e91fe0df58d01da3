"""The candidates of one query: those of each kernel with their estimates, and all of them side by side."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from kernrec.gpu import GPU
from kernrec.op import Problem
from kernrec.recommender.estimate.candidates import Candidates
from kernrec.recommender.estimate.estimates import SOURCES, Estimates, Rescaling, prior, with_measured
from kernrec.recommender.estimate.measured_rows import known
from kernrec.recommender.result import Choice, Comparison, Cost
from kernrec.recommender.ties import Place, places
from kernrec.store import Evidence, MeasuredAnswer

if TYPE_CHECKING:
    from kernrec.recommender.estimate.correction import Learned, Reach

_NONE = np.empty(0, dtype=np.int64)

COUNTED = {
    "pareto": ("latency", "energy"),
    "latency": ("latency",),
    "energy": ("energy",),
    "edp": ("latency", "energy"),
}
"""What each objective counts: latency/energy front, least latency, least energy, least energy-delay product."""


class Group:
    """The candidates of one kernel that can run the problem, with their costs at a power limit and clock.

    runnable: how many can. rows: of the space, ascending, that are estimated. heuristic: position in `rows` of what
    the occupancy heuristic picks. learned: the model that corrects the prior, if one does. With nothing runnable there
    is no estimate.
    """

    def __init__(
        self,
        candidates: Candidates,
        problem: Problem,
        power_limit_w: float | None,
        clock_hz: float | None,
        evidence: Evidence,
        model: "Learned | None" = None,
    ) -> None:
        self.learned: Reach | None = None
        self.candidates = candidates
        self.at = candidates.space.at(problem)
        self.known = known(candidates.space, self.at, candidates.gpu, evidence, power_limit_w, clock_hz)
        runnable = candidates.rows(self.at, self.known.rows)
        if len(self.known.failed):
            runnable = np.setdiff1d(runnable, self.known.failed, assume_unique=True)
        self.runnable = len(runnable)
        if not self.runnable:
            return
        # What the occupancy heuristic picks is estimated even where it is not worth a place of its own.
        heuristic = candidates.occupancy_choice(self.at, runnable)
        rows = candidates.shortlist(self.at, runnable)
        if len(self.known.rows):
            rows = np.union1d(rows, np.intersect1d(self.known.rows, runnable, assume_unique=True))
        self.heuristic = int(np.searchsorted(rows, heuristic))
        if self.heuristic == len(rows) or rows[self.heuristic] != heuristic:
            rows = np.concatenate([rows[: self.heuristic], [heuristic], rows[self.heuristic :]])
        self.rows = rows
        self.prediction = candidates.predict(problem, self.at, rows)
        self.limited = candidates.apply_power_limit(self.prediction, power_limit_w, clock_hz)
        self.estimates = prior(self.limited)
        self.rescaling: Rescaling | None = None
        # Measured rows stand in the order of their positions here, for both ascend.
        positions = np.flatnonzero(np.isin(rows, self.known.rows)) if len(self.known.rows) else _NONE
        taken = [self.known.measured[i] for i in np.searchsorted(self.known.rows, rows[positions])]
        self.measured: dict[int, MeasuredAnswer] = dict(zip(positions.tolist(), taken, strict=True))
        if model is not None and (reach := model.reach(candidates.gpu, candidates.kernel)):
            self.learned = reach.after(len(positions))
            self.estimates = self._corrected(problem, reach, positions, taken)
        if len(positions):
            self.estimates, self.rescaling = with_measured(self.estimates, positions, taken)

    def _corrected(
        self, problem: Problem, reach: "Reach", positions: np.ndarray, measured: Sequence[MeasuredAnswer]
    ) -> Estimates:
        from kernrec.recommender.estimate.correction import Correction, worth_scoring

        where = worth_scoring(self.estimates, positions)
        correction = Correction.of(reach, self.candidates, problem, self.at, self.prediction, self.limited, where)
        found = correction.correct(self.estimates)
        return correction.adapted(found, positions, measured) if len(positions) else found


class Pool:
    """All groups one after the other: position -> (group, row). costs: of all, (C,)."""

    def __init__(self, groups: list[Group]) -> None:
        self.groups = groups
        self._starts = np.cumsum([0, *(len(g.rows) for g in groups)]).tolist()
        self.costs = groups[0].estimates if len(groups) == 1 else _joined([g.estimates for g in groups])
        self.fastest = int(self.costs.latency_s.argmin())

    def choices(self, positions: np.ndarray, problem: Problem, gpu: GPU, objective: str) -> tuple[Choice, ...]:
        """The candidates at these positions, in order, each with its place."""
        c = self.costs
        latency = _costs(positions, c.latency_s, c.latency_low_s, c.latency_high_s, c.latency_source)
        energy = _costs(positions, c.energy_j, c.energy_low_j, c.energy_high_j, c.energy_source)
        counted = list(zip(*({"latency": latency, "energy": energy}[name] for name in COUNTED[objective]), strict=True))
        found = places(
            [[(cost.low, cost.high) for cost in costs] for costs in counted],
            [all(cost.source == "measured" for cost in costs) for costs in counted],
        )
        each = zip(positions.tolist(), latency, energy, found, strict=True)
        return tuple([self._choice(at, problem, gpu, t, e, place) for at, t, e, place in each])

    def _choice(self, position: int, problem: Problem, gpu: GPU, latency: Cost, energy: Cost, place: Place) -> Choice:
        index = int(np.searchsorted(self._starts, position, side="right")) - 1
        group, at = self.groups[index], position - self._starts[index]
        row = int(group.rows[at])
        measured = group.measured.get(at)
        return Choice(
            kernel=group.candidates.kernel,
            config=group.candidates.space.config(row),
            problem=problem,
            gpu=gpu,
            place=place,
            latency_s=latency,
            energy_j=energy,
            power_w=float(self.costs.power_w[position]),
            clock_hz=float(group.limited.clock_hz[at]),
            limit=group.prediction.bottleneck(at),
            occupancy=group.candidates.occupancy(group.at, row),
            versus_fastest=self._against(latency, energy, self.fastest),
            versus_occupancy=self._against(latency, energy, self._starts[index] + group.heuristic),
            sessions=measured.sessions if measured else 0,
            measured_at=measured.measured_at.isoformat() + "Z" if measured else None,
            device=measured.device if measured else None,
        )

    def _against(self, latency: Cost, energy: Cost, other: int) -> Comparison:
        return Comparison(
            1.0 - energy.value / float(self.costs.energy_j[other]),
            latency.value / float(self.costs.latency_s[other]) - 1.0,
        )


def _costs(positions: np.ndarray, *columns: np.ndarray) -> list[Cost]:
    """The costs at some positions; columns: value, low, high and source."""
    rows = zip(*(column[positions].tolist() for column in columns), strict=True)
    return [Cost(value, low, high, SOURCES[source]) for value, low, high, source in rows]


def _joined(parts: list[Estimates]) -> Estimates:
    return Estimates(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Estimates)))
