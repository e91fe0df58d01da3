"""Compare power limits, clocks, GPUs and batch sizes on one network: memory, time and energy."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any, Literal

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU
from kernrec.recommender.answer import costs_at
from kernrec.recommender.baselines import cold_costs
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.json_form import Alias, JsonForm
from kernrec.recommender.networks.backend import at_point
from kernrec.recommender.networks.layers import NetworkRequest
from kernrec.recommender.networks.memory import DoesNotFitError, memory_json
from kernrec.recommender.networks.network import answer_network
from kernrec.recommender.networks.result import NetworkAnswer
from kernrec.recommender.networks.total import RECOMMENDED, Costs, Total, costs_of
from kernrec.recommender.notes import assumed_range
from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import CLOCK_STEP_HZ, Objective, Query, lowest_clock_hz
from kernrec.recommender.result import Comparison, Estimate
from kernrec.recommender.select import select
from kernrec.util.human import Note, human
from kernrec.util.light_dataclass import dataclass

STEPS = 16
"""Maximum number of power limits or clocks in a sweep, not counting the default."""
_LIMIT_STEP_W = 10.0

Swept = Literal["power limit", "clock"]


@dataclass(frozen=True)
class SweptTotal:
    point: OperatingPoint
    total: Total
    versus_first: Comparison
    """Comparison with the first point, which has the default power limit and no locked clock."""


@dataclass(frozen=True)
class NetworkSweep(JsonForm):
    """Totals of a network over a range of operating points."""

    JSON = (
        "workload=answer.workload gpu=answer.gpu objective=answer.objective runs=answer.headline_name rows"
        " left_out=answer.left_out notes=answer.notes"
    )

    answer: NetworkAnswer
    rows: tuple[SweptTotal, ...]
    best: int

    @property
    def why_best(self) -> str:
        """Criterion that selected the best row: `knee`, or the quantity that the row minimizes."""
        query = self.answer.query
        if query.max_slowdown is not None or query.objective is Objective.ENERGY:
            return "least energy"
        return "least EDP" if query.objective is Objective.EDP else KNEE

    @property
    def locked(self) -> bool:
        return any(row.point.clock_hz for row in self.rows)

    @property
    def advice(self) -> str:
        gpu, first, row = self.answer.gpu, self.rows[0], self.rows[self.best]
        default = human(first.point.limit_w(gpu), "W")
        if self.best == 0:
            return f"Keep {default}: other points save too little energy for the time that they cost."
        slowdown, saved = row.versus_first.slowdown, row.versus_first.energy_saved
        slower = f"{abs(slowdown) * 100:.1f} % {'slower' if slowdown >= 0 else 'faster'}"
        return f"At {point_text(row.point, gpu)}: {slower}, {saved * 100:.0f} % less energy than at {default}."

    def as_dict(self) -> dict[str, Any]:
        rows = [
            {
                "power_limit_w": row.point.limit_w(self.answer.gpu),
                "locked_clock_hz": row.point.clock_hz,
                **row.total.as_dict(),
                "versus_first": row.versus_first.as_dict(),
                "best": number == self.best,
                "knee": number == self.best and self.why_best == KNEE,
            }
            for number, row in enumerate(self.rows)
        ]
        return super().as_dict() | {"rows": rows}


def point_text(point: OperatingPoint, gpu: GPU) -> str:
    """Return the clock of an operating point if it is locked, or else its power limit."""
    return f"a clock of {human(point.clock_hz, 'Hz')}" if point.clock_hz else human(point.limit_w(gpu), "W")


def swept_points(gpu: GPU, swept: Swept, power_limit_w: float | None = None) -> tuple[OperatingPoint, ...]:
    """Return the operating points of a sweep: one without a locked clock, then descending power limits or clocks.

    `power_limit_w` is the power limit of the first point, in watts. None means the GPU's default.
    """
    first = OperatingPoint(gpu.tdp_w if power_limit_w is None else power_limit_w)
    if swept == "power limit":
        step = _LIMIT_STEP_W * np.ceil((gpu.tdp_w - gpu.power_min_w) / (STEPS * _LIMIT_STEP_W))
        limits = np.arange(np.ceil(gpu.tdp_w / step - 1.0) * step, gpu.power_min_w, -step)
        lower = [float(limit) for limit in (*limits, gpu.power_min_w) if limit < first.limit_w(gpu)]
        return (first, *map(OperatingPoint, lower))
    clocks = np.linspace(gpu.boost_clock_hz, lowest_clock_hz(gpu), STEPS)[:-1] // CLOCK_STEP_HZ * CLOCK_STEP_HZ
    return (first, *(OperatingPoint(first.power_limit_w, float(clock)) for clock in dict.fromkeys(clocks.tolist())))


def sweep_network(
    recommender: Recommender, answer: NetworkAnswer, swept: Swept, power_limit_w: float | None = None
) -> NetworkSweep:
    """Predict the totals of a network over power limits or locked clocks, with the best configs at each point.

    Args:
        answer: answer for the network, at any operating point.
        power_limit_w: power limit in watts of the first point, or None for the default. A sweep over clocks keeps this
            limit.

    Raises:
        UsageError: no operating point satisfies the bounds of the query.
    """
    gpu, on_gpu = answer.gpu, recommender.on(answer.gpu, answer.query.conditions)
    if swept == "power limit" and gpu.power_range_assumed:
        answer = replace(answer, adjusted=(*answer.adjusted, assumed_range(gpu)))
    if (most_w := answer.query.max_power_w) is not None:
        power_limit_w = min(most_w, gpu.tdp_w if power_limit_w is None else power_limit_w)
    points = swept_points(gpu, swept, power_limit_w)
    query = replace(answer.query, power_limit_w=None, clock_hz=None, max_slowdown=None, max_power_w=None)
    costs: dict[int, list[tuple[int, Costs]]] = {number: [] for number in range(len(points))}
    of_backend = answer.headline_name != RECOMMENDED
    by_backend = [layer.baseline is not None and (of_backend or layer.best is None) for layer in answer.layers]
    own = [layer.answer.problem for layer, other in zip(answer.layers, by_backend, strict=True) if not other]
    sets = on_gpu.candidates_of_each(own, points)
    for layer, other in zip(answer.layers, by_backend, strict=True):
        if other:
            for number, layers in costs.items():
                layers.append((layer.count, costs_of(at_point(on_gpu.context, layer, points[number]))))
            continue
        candidates = next(sets)
        for number in list(costs):
            try:
                ((_, position), *_) = select(candidates.at(number), query)
            except UsageError:  # Skip points where no config satisfies the bounds.
                del costs[number]
                continue
            each = costs_at(candidates, number, position)
            if not layer.layer.alone:
                each = cold_costs(*each, candidates.problem, gpu)
            costs[number].append((layer.count, each))
    if not costs:
        raise UsageError("no operating point of the sweep satisfies the bounds")
    name, exchange, complete = answer.headline_name, answer.exchange, answer.headline.complete
    totals = [Total.of(name, layers, exchange, complete) for layers in costs.values()]
    rows = [SweptTotal(points[n], total, total.versus(totals[0])) for n, total in zip(costs, totals, strict=True)]
    return NetworkSweep(answer, tuple(rows), best_of(rows, answer.query))


KNEE = "knee"
_LEAST_GAIN = 0.005
"""Minimum fraction of the first row's time or energy that the knee of a sweep must save (see `best_of`)."""


def best_of(rows: Sequence[SweptTotal], query: Query) -> int:
    """Return the index of the recommended row of a sweep.

    The first rule that applies selects the row:

        1. If the query bounds the slowdown: the row with the lowest energy within the bound.
        2. If the objective is energy or EDP: the row with the lowest value.
        3. For any other objective: the knee, or the first row if the knee saves almost nothing.

    In a plot of energy over time, draw a line from the fastest row to the row with the lowest energy. The knee is the
    row farthest below this line (Satopaa et al. 2011, "Finding a Kneedle in a Haystack").
    """
    latency = np.array([row.total.latency_s.value for row in rows])
    energy = np.array([row.total.energy_j.value for row in rows])
    if query.max_slowdown is not None:
        within = latency <= latency.min() * (1.0 + query.max_slowdown)
        return int(np.where(within, energy, np.inf).argmin())
    if query.objective in (Objective.ENERGY, Objective.EDP):
        return int(query.objective.value_of(latency, energy).argmin())
    fastest, lowest_energy = int(latency.argmin()), int(energy.argmin())
    slower, saved = latency[lowest_energy] - latency[fastest], energy[fastest] - energy[lowest_energy]
    knee = lowest_energy
    if slower > 0.0 and saved > 0.0:
        knee = int(((energy[fastest] - energy) / saved - (latency - latency[fastest]) / slower).argmax())
    gain = max(1.0 - energy[knee] / energy[0], 1.0 - latency[knee] / latency[0])
    return knee if gain >= _LEAST_GAIN else 0


@dataclass(frozen=True)
class ComparedGpu(JsonForm):
    """Costs of a network on one GPU model at one batch size. `total` is for one of the tensor-parallel GPUs."""

    JSON = (
        "gpu batch tp=answer.tp fits=answer.fits memory=answer.memory power_limit_w=answer.power_limit_w"
        " name=total.name complete=total.complete latency_s=total.latency_s energy_j=total.energy_j"
        " power_w=total.power_w source=total.latency_s.source energy_source=total.energy_source inputs=answer.inputs"
        " dtypes=answer.dtypes per=answer.unit rate_per_s=rate energy_per_unit_j=energy.value rate_per_watt"
        " best_power_limit_w=best_limit_w dominant_layers left_out=answer.left_out"
    )

    answer: NetworkAnswer
    sweep: NetworkSweep | None = None

    gpu = Alias[GPU]("The GPU.", "answer.gpu")
    batch = Alias[int]("Items per pass.", "answer.batch")
    total = Alias[Total]("Total that the comparison shows: the headline total of the answer.", "answer.headline")

    @property
    def dominant_layers(self) -> list[dict[str, str | float]]:
        """Names of the longest layers, and their fractions of the network's time."""
        return [{"layer": name, "share": share} for name, share in self.answer.dominant()]

    @property
    def rate(self) -> float:
        """Calls per second. For a language model, tokens per second."""
        return self.answer.work / self.total.latency_s.value

    @property
    def energy(self) -> Estimate:
        """Energy in joules per call or token, of all GPUs that share the network."""
        return self.total.energy_j.scaled(self.answer.tp / self.answer.work)

    @property
    def rate_per_watt(self) -> float:
        return self.rate / (self.answer.tp * self.total.power_w)

    @property
    def best_limit_w(self) -> float | None:
        """Recommended power limit in watts, or None if power limits were not compared."""
        return None if self.sweep is None else self.sweep.rows[self.sweep.best].point.limit_w(self.gpu)

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | memory_json(self.answer.memory, self.gpu)


@dataclass(frozen=True)
class Unfit:
    """GPU and batch size for which the network needs more memory than the GPU has."""

    gpu: GPU
    batch: int
    error: DoesNotFitError

    @property
    def note(self) -> Note:
        return Note(f"batch {self.batch} does not fit the {self.gpu.title}", f"{self.error}.")

    def as_dict(self) -> dict[str, Any]:
        return {
            "gpu": self.gpu.name,
            "batch": self.batch,
            **memory_json(self.error.memory, self.gpu),
            "reason": str(self.error),
        }


def compare_gpus(
    recommender: Recommender,
    gpus: Sequence[GPU],
    wanted: NetworkRequest,
    query: Query,
    batches: Sequence[int | None] = (None,),
    swept: Swept | None = None,
) -> tuple[list[ComparedGpu | Unfit], list[str]]:
    """Compare GPUs and batch sizes on one network.

    Args:
        batches: batch sizes (items per pass), or None for the batch size of the request.
        swept: quantity to sweep for each row, power limits or clocks, or None for no sweep.

    Returns:
        A row for each GPU and batch size, and messages about GPUs without rows or with an incomplete total.

    Raises:
        UsageError: a name is unknown, or a value is impossible for all GPUs.
        KernrecError: no GPU can run any layer, or no GPU has enough memory.
    """
    rows: list[ComparedGpu | Unfit] = []
    missing: list[str] = []
    error: KernrecError | None = None
    for gpu in gpus:
        for batch in batches:
            request = wanted if batch is None else replace(wanted, batch=batch)
            try:
                answer = answer_network(recommender, gpu, request, query)
            except DoesNotFitError as problem:
                error = error or problem
                rows.append(Unfit(gpu, batch or wanted.batch or 1, problem))
                continue
            except KernrecError as problem:
                error = error or problem
                missing.append(f"{gpu.name} is left out: {problem}")
                break
            if len(gpus) > 1 and answer.left_out and not any(layer.best for layer in answer.layers):
                missing.append(
                    f"{gpu.name} is left out: {len(answer.left_out)} layers have neither a kernel nor a baseline there"
                )
                error = error or KernrecError(f"{gpu.name}: {answer.left_out[0]}")
                break
            sweep = sweep_network(recommender, answer, swept, query.power_limit_w) if swept else None
            rows.append(ComparedGpu(answer, sweep))
    fitting = [row for row in rows if isinstance(row, ComparedGpu)]
    if not fitting:
        assert error is not None
        raise error
    if len({row.answer.left_out for row in fitting}) > 1:
        for row in fitting:
            if row.answer.left_out:
                missing.append(f"{row.answer.gpu.name}: its total lacks {'; '.join(row.answer.left_out)}")
    return rows, missing


_FACTOR = 1.5
"""Minimum ratio of times to write as a factor ("1.5 times as long") instead of a percentage."""


def verdict(compared: Sequence[ComparedGpu]) -> str:
    """Return a sentence that names the fastest GPU and the GPU with the lowest energy.

    Only GPUs that run all layers count. The sentence is empty if there are fewer than two.
    """
    layers = [Counter(layer.name for layer in row.answer.layers) for row in compared]
    every = reduce(or_, layers)
    rows = [row for row, names in zip(compared, layers, strict=True) if names == every]
    if len(rows) < 2:
        return ""
    among = "Among GPUs that run every layer, " if len(rows) < len(compared) else ""
    fastest, lowest_energy = max(rows, key=lambda row: row.rate), min(rows, key=lambda row: row.energy.value)
    if fastest is lowest_energy:
        return f"{among}{fastest.gpu.title} is expected to be the fastest and to take the least energy."
    slower, less = fastest.rate / lowest_energy.rate - 1.0, 1.0 - lowest_energy.energy.value / fastest.energy.value
    longer = f"{1.0 + slower:.2g} times as long" if slower >= _FACTOR - 1.0 else f"{slower * 100:.2g} % longer"
    return (
        f"{among}{fastest.gpu.title} is expected to be the fastest;"
        f" {lowest_energy.gpu.title} to take {less * 100:.2g} % less energy"
        f" and {longer}."
    )
