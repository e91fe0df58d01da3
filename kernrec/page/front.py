"""Compute the points of a Pareto front for the page: latency and energy of each config on a GPU."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU
from kernrec.kernel import Kernel, kernel_names
from kernrec.model.analytical.power import RANDOM
from kernrec.model.analytical.spread import SOURCES
from kernrec.op import Problem, parse_shape, problem_from_shape
from kernrec.op.workload import default_workload
from kernrec.recommender import Answer, Objective, Query, Recommender
from kernrec.recommender.candidates import CandidateSet
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.infeasible import none_runs
from kernrec.recommender.request import op_points
from kernrec.recommender.select import select
from kernrec.util.human import codes_of, short_config
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Subject:
    """Problem whose Pareto front the page shows."""

    problem: Problem
    kernel: Kernel | None = None
    """The only kernel to consider, or None for all kernels of the op."""
    clocks: bool = False
    """Whether to also consider locked core clocks."""
    inputs: str = RANDOM
    """Data that kernels compute on, as in `Query.inputs`."""
    layout_free: bool = False
    """Whether to use the best layout for each GPU."""

    @property
    def query(self) -> Query:
        return Query(Objective.PARETO, clocks=self.clocks, inputs=self.inputs)

    def answer(self, recommender: Recommender, gpu: GPU) -> Answer:
        """Return the recommender's answer for the problem on a GPU."""
        on_gpu = recommender.on(gpu, self.query.conditions)
        if self.kernel is None:
            return on_gpu.answer_op(self.problem, self.query, fixed=not self.layout_free)
        return on_gpu.answer_kernel(self.kernel, self.problem, self.query)

    def candidates(self, recommender: Recommender, gpu: GPU) -> CandidateSet:
        """Return the candidate configs at all power limits, and at all core clocks if `clocks` is true.

        Raise `KernrecError` if no kernel runs the problem.
        """
        on_gpu = recommender.on(gpu, self.query.conditions)
        if self.kernel is None:
            return on_gpu.candidates(self.answer(recommender, gpu).problem, op_points(gpu, self.query))
        candidates = on_gpu.kernel_candidates(self.kernel, self.problem, self.query)
        if not candidates.kernels:
            raise none_runs(candidates.considered[0])
        return candidates

    @property
    def name(self) -> str:
        """Return the problem's key, with the layout `best` if any layout is acceptable."""
        key = self.problem.key
        return key.removesuffix(self.problem.layout) + BEST if self.layout_free else key

    @property
    def parameters(self) -> dict[str, str]:
        """Return the request parameters that describe this `Subject`."""
        about = {"op": self.problem.op} if self.kernel is None else {"kernel": self.kernel.name}
        shape = ",".join(f"{name}={value}" for name, value in self.problem.dims)
        how = ({"clocks": "1"} if self.clocks else {}) | ({} if self.inputs == RANDOM else {"inputs": self.inputs})
        layout = BEST if self.layout_free else self.problem.layout
        return about | {"dtype": self.problem.dtype, "layout": layout, "shape": shape} | how


BEST = "best"
"""Value of the parameter `layout` that selects the best layout for each GPU."""
PARAMETERS = ("op", "kernel", "dtype", "layout", "shape", "clocks", "inputs")
"""Names of the request parameters that describe a `Subject`."""


def subject_of(recommender: Recommender, parameters: Mapping[str, str]) -> Subject:
    """Convert request parameters to a `Subject`. Raise `UsageError` if a name is unknown."""
    op, shape, dtype, layout = (parameters.get(name) or None for name in ("op", "shape", "dtype", "layout"))
    clocks, inputs = parameters.get("clocks", "") == "1", parameters.get("inputs") or RANDOM
    if op is not None:
        layout = None if layout == BEST else layout
        problem = problem_from_shape(op, shape or "", dtype, layout)
        return Subject(problem, None, clocks, inputs, layout is None and len(problem.definition.layouts) > 1)
    if not (name := parameters.get("kernel", "")):
        raise UsageError("the request names neither an op nor a kernel; give one")
    kernel = recommender.context.kernel(name)
    dims = parse_shape(shape) if shape else default_dims(kernel)
    problem = kernel.definition.problem(dtype or kernel.dtypes[0], layout or kernel.layouts[0], **dims)
    return Subject(problem, kernel, clocks, inputs)


def default_dims(kernel: Kernel) -> dict[str, int]:
    """Return the dimensions of the problem that the web page shows before the user enters dimensions."""
    if kernel.declares_problem:
        return {dim.name: int(dim.default or 1) for dim in kernel.definition.dims}
    return default_workload(kernel.definition).layers_of(kernel.definition.name)[0].problem.dim


def kernel_options(recommender: Recommender, shown: Kernel | None) -> list[dict[str, Any]]:
    """Return the kernels that the page offers. The kernel `shown` comes first."""
    kernels = [] if shown is None else [(shown.name, shown)]
    library = kernel_names()
    for name in recommender.context.own_kernels():
        if name in library or (shown is not None and name == shown.name):
            continue
        try:
            kernels.append((name, recommender.context.kernel(name)))
        except KernrecError:
            continue
    return [_option(name, kernel) for name, kernel in kernels]


def _option(name: str, kernel: Kernel) -> dict[str, Any]:
    definition = kernel.definition
    first = definition.problem(kernel.dtypes[0], kernel.layouts[0], **default_dims(kernel))
    return {
        "name": name,
        "title": f"kernel {name}",
        "dtypes": list(kernel.dtypes),
        "layouts": list(kernel.layouts),
        "dims": [{"name": dim.name, "meaning": dim.meaning, "default": dim.default} for dim in definition.dims],
        "layers": [{"name": "as its spec has it", **Subject(first, kernel).parameters, "kernel": name}],
    }


MOST_POINTS = 10_000
"""Maximum number of points in an answer."""
_WHOLE_FRONT = 2**31
_INTEGERS = ("kernel", "point", "config", "bottleneck", "source", "energy_source")
_QUANTITIES = (
    "latency_s", "latency_low_s", "latency_high_s", "energy_j", "energy_low_j", "energy_high_j", "power_w", "clock_hz",
)  # fmt: skip


def front_answer(recommender: Recommender, subject: Subject, gpu: GPU, most: int = MOST_POINTS) -> dict[str, Any]:
    """Return a point for each config at each operating point, with the Pareto front and the measurements.

    Returns:
        Plain values. `points` has a list for each column, with one item per point. Items of `kernel`, `point`, `source`
            and `bottleneck` are indices in `kernels`, `operating_points`, `sources` and `bottlenecks`. An item of
            `config` is an index in `configs[kernel]["values"]`. `front` has the indices of the points on the
            front, fastest first.
            `measured` has the provenance of measured points, keyed by index. If no kernel runs the problem, `no_kernel`
            is the reason and `baselines` has the costs of backends, but there are no points.

    Raises:
        KernrecError: Neither a kernel nor a backend runs the problem.
    """
    answer = subject.answer(recommender, gpu)
    if not answer.recommendations:
        empty: dict[str, Any] = {name: [] for name in ("kernels", "configs", "bottlenecks", "front")}
        return _described(answer, answer.notes) | {
            **empty,
            "operating_points": [_point(answer.point, answer.gpu)],
            "sources": list(SOURCES),
            "points": {name: [] for name in (*_INTEGERS, *_QUANTITIES)},
            "measured": {},
        }
    candidates = subject.candidates(recommender, gpu)
    front = select(candidates, Query(Objective.PARETO, clocks=subject.clocks, top=_WHOLE_FRONT))
    count = candidates.latency_s.shape[1]
    front_places = np.array([point * count + position for point, position in front])
    places, left_out = _nearest(candidates, front_places, most)
    points, positions = np.divmod(places, count)
    of_place = {int(place): number for number, place in enumerate(places)}
    columns = _columns(candidates, points, positions)
    notes = list(answer.notes)
    if left_out:
        notes.append(f"{left_out} of {left_out + len(places)} points are not shown, the farthest from the front")
    return _described(answer, notes) | {
        "kernels": [kernel.table.kernel.name for kernel in candidates.kernels],
        "operating_points": [_point(point, gpu) for point in candidates.points],
        "sources": list(SOURCES),
        **columns,
        "front": [of_place[int(place)] for place in front_places],
        "measured": _measured(candidates, points, positions),
    }


def _described(answer: Answer, notes: Sequence[str]) -> dict[str, Any]:
    problem = answer.problem
    return {
        "gpu": answer.gpu.name,
        "title": answer.gpu.title,
        "problem": problem.key,
        "shape": ",".join(f"{name}={value}" for name, value in problem.dims),
        "no_kernel": answer.no_kernel,
        "baselines": [
            baseline.as_dict() | {"name": baseline.dated_name, "basis": baseline.basis} for baseline in answer.baselines
        ],
        "notes": list(notes),
    }


def _nearest(candidates: CandidateSet, front: np.ndarray, most: int) -> tuple[np.ndarray, int]:
    """Return (ascending indices of the points to show, number of dropped points).

    Points that are measured or on the front come first, then points near the front.
    """
    latency, energy = candidates.latency_s.ravel(), candidates.energy_j.ravel()
    places = np.flatnonzero(np.isfinite(latency) & np.isfinite(energy))
    if len(places) <= most:
        return places, 0
    # For each point, compute the distance to the nearest point of the front, in log latency and log energy.
    x, y = np.log(latency[places]), np.log(energy[places])
    behind = np.full(len(places), np.inf)
    for place in front:
        np.minimum(behind, np.hypot(x - np.log(latency[place]), y - np.log(energy[place])), out=behind)
    behind[candidates.latency_source.ravel()[places] == SOURCES.index("measured")] = -1.0
    nearest = np.sort(places[np.argsort(behind, kind="stable")[: max(most, len(front))]])
    return nearest, len(places) - len(nearest)


def _columns(candidates: CandidateSet, points: np.ndarray, positions: np.ndarray) -> dict[str, Any]:
    """Return `configs`, `bottlenecks` and the columns of `points` (see `front_answer`)."""
    starts = candidates.starts
    number = np.searchsorted(starts, positions, side="right") - 1
    own = positions - np.take(starts, number)
    columns: dict[str, np.ndarray] = {name: np.zeros(len(positions), dtype=np.int64) for name in _INTEGERS}
    columns |= {name: np.zeros(len(positions)) for name in _QUANTITIES}
    columns |= {"kernel": number, "point": points}
    configs: list[dict[str, Any]] = []
    bottlenecks: dict[str, int] = {}
    for kernel_number, kernel in enumerate(candidates.kernels):
        here = np.flatnonzero(number == kernel_number)
        shown, columns["config"][here] = np.unique(own[here], return_inverse=True)
        named = [kernel.config(int(position)) for position in shown]
        configs.append(
            {
                "names": list(named[0]) if named else [],
                "values": [list(config.values()) for config in named],
                "short": [short_config(config) for config in named],
                "codes": codes_of(list(named[0]) if named else []),
            }
        )
        cells, costs = (points[here], own[here]), kernel.costs
        words = [kernel.running(*cell)[1] for cell in zip(*(each.tolist() for each in cells), strict=True)]
        columns["bottleneck"][here] = [bottlenecks.setdefault(word, len(bottlenecks)) for word in words]
        for quantity, unit, estimates in (("latency", "s", costs.latency), ("energy", "j", costs.energy)):
            columns[f"{quantity}_{unit}"][here] = estimates.value[cells]
            columns[f"{quantity}_low_{unit}"][here] = estimates.low[cells]
            columns[f"{quantity}_high_{unit}"][here] = estimates.high[cells]
        columns["power_w"][here] = costs.power_w[cells]
        columns["clock_hz"][here] = kernel.limited.clock_hz[cells]
        columns["source"][here] = costs.latency.source[cells]
        columns["energy_source"][here] = costs.energy.source[cells]
    plain = {name: rounded(values.tolist()) for name, values in columns.items()}
    return {"configs": configs, "bottlenecks": list(bottlenecks), "points": plain}


def _measured(candidates: CandidateSet, points: np.ndarray, positions: np.ndarray) -> dict[str, dict[str, Any]]:
    provenance: dict[str, dict[str, Any]] = {}
    if not any(kernel.measurements for kernel in candidates.kernels):
        return provenance
    for number, (point, position) in enumerate(zip(points.tolist(), positions.tolist(), strict=True)):
        _, kernel, own = candidates.locate(position)
        row = kernel.measured(point).get(own)
        if row is not None:
            provenance[str(number)] = {
                "sessions": row.sessions,
                "measured_at": row.measured_at.isoformat() + "Z",
                "device": row.device,
                "database": row.database,
                "by": row.measured_by,
            }
    return provenance


def _point(point: OperatingPoint, gpu: GPU) -> dict[str, Any]:
    return {
        "power_limit_w": point.limit_w(gpu),
        "default": point.limit_w(gpu) == gpu.tdp_w and point.clock_hz is None,
        "clock_hz": point.clock_hz,
    }


def rounded(value: Any) -> Any:
    """Round floating-point numbers to five significant digits, which halves the JSON."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {name: rounded(inner) for name, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def config_text(config: Mapping[str, int]) -> str:
    """Return a config as text for the option `--config`."""
    return ",".join(f"{name}={value}" for name, value in config.items())
