"""Choices from a candidate set: the picked candidates with everything a reader wants to know of them."""

from collections.abc import Sequence

import numpy as np

from kernrec.recommender.candidate_set import CandidateSet
from kernrec.recommender.estimate.costs import SOURCES, Estimates, Source
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.kernel_candidates import KernelCandidates
from kernrec.recommender.request import Objective, Query
from kernrec.recommender.result import Choice, Comparison, Estimate, Foreign, MeasuredOn
from kernrec.recommender.select import Picked
from kernrec.recommender.ties import Place, places
from kernrec.store import MeasuredAnswer
from kernrec.util.light_dataclass import dataclass

_ALONE = Place(1, False, True)


def build_choices(candidates: CandidateSet, picked: Sequence[Picked], objective: Objective) -> tuple[Choice, ...]:
    """The picked candidates in order, each with its place among them."""
    located = [_located(candidates, point, position) for point, position in picked]
    which = [("latency", "energy").index(quantity) for quantity in objective.quantities]
    deciding = [[(place.latency, place.energy)[i] for i in which] for place in located]
    ranks = places(
        [[(estimate.low, estimate.high) for estimate in estimates] for estimates in deciding],
        [all(estimate.source is Source.MEASURED for estimate in estimates) for estimates in deciding],
    )
    return tuple([_build(candidates, place, rank) for place, rank in zip(located, ranks, strict=True)])


def build_choice(candidates: CandidateSet, point: int, position: int) -> Choice:
    """One candidate at one operating point, by itself."""
    return _build(candidates, _located(candidates, point, position), _ALONE)


def foreign_rows(candidates: CandidateSet, query: Query) -> tuple[Foreign, ...]:
    """What was measured of kernels that are not in the library, the best by the objective first, at most `query.top`.

    Of a front the fastest come first. Rows without energy are left out where the objective counts energy alone.
    """
    objective = Objective.LATENCY if query.objective is Objective.PARETO else query.objective
    valued = []
    for measured in candidates.foreign:
        if measured.energy_j is not None or objective is Objective.LATENCY:
            latency, energy = np.array(measured.latency_s), np.array(measured.energy_j or 0.0)
            valued.append((float(objective.value_of(latency, energy)), measured))
    valued.sort(key=lambda pair: pair[0])
    return tuple([_foreign(measured) for _, measured in valued[: query.top]])


def _foreign(row: MeasuredAnswer) -> Foreign:
    def stated(value: float, low: float | None, high: float | None) -> Estimate:
        return Estimate(value, value if low is None else low, value if high is None else high, Source.MEASURED)

    return Foreign(
        kernel=row.kernel,
        config=row.config,
        point=OperatingPoint(row.power_limit_w, row.locked_sm_clock_hz),
        latency_s=stated(row.latency_s, row.latency_low_s, row.latency_high_s),
        energy_j=None if row.energy_j is None else stated(row.energy_j, row.energy_low_j, row.energy_high_j),
        replayed=row.replayed,
        measurement=_measured_on(row),
        measured_by=row.measured_by,
    )


def _measured_on(row: MeasuredAnswer) -> MeasuredOn:
    return MeasuredOn(row.sessions, row.measured_at.isoformat() + "Z", row.device, row.database, row.signers)


def costs_at(candidates: CandidateSet, point: int, position: int) -> tuple[Estimate, Estimate]:
    """Latency and energy of one candidate at one operating point."""
    located = _located(candidates, point, position)
    return located.latency, located.energy


@dataclass(frozen=True)
class _Located:
    """A picked candidate: its kernel, its position among the kernel's candidates, and its costs."""

    point: int
    number: int
    """Of the kernel in the set."""
    kernel: KernelCandidates
    position: int
    latency: Estimate
    energy: Estimate


def _located(candidates: CandidateSet, point: int, position: int) -> _Located:
    number, kernel, own = candidates.locate(position)
    costs, place = kernel.costs, (point, own)
    return _Located(point, number, kernel, own, _estimate(costs.latency, place), _estimate(costs.energy, place))


def _estimate(estimates: Estimates, place: tuple[int, int]) -> Estimate:
    return Estimate(
        estimates.value.item(place),
        estimates.low.item(place),
        estimates.high.item(place),
        SOURCES[estimates.source.item(place)],
    )


def _build(candidates: CandidateSet, located: _Located, rank: Place) -> Choice:
    point, kernel, own = located.point, located.kernel, located.position
    latency, energy = located.latency, located.energy
    table = kernel.table

    def against(other: int) -> Comparison:
        """Compared with another candidate at the first operating point."""
        return Comparison(
            1.0 - energy.value / candidates.energy_j.item(0, other),
            latency.value / candidates.latency_s.item(0, other) - 1.0,
        )

    measured = kernel.measured(point).get(own)
    return Choice(
        kernel=table.kernel,
        config=kernel.config(own),
        problem=candidates.problem,
        gpu=candidates.gpu,
        point=candidates.points[point],
        place=rank,
        latency_s=latency,
        energy_j=energy,
        power_w=kernel.costs.power_w.item(point, own),
        clock_hz=kernel.limited.clock_hz.item(point, own),
        bottleneck=kernel.prediction.bottleneck(own),
        occupancy=table.occupancy(kernel.runnable.on_problem, int(kernel.rows[own])),
        versus_fastest=against(candidates.fastest),
        versus_occupancy=against(candidates.starts[located.number] + kernel.heuristic),
        measurement=None if measured is None else _measured_on(measured),
    )
