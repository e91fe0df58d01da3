"""Create objects of the engine's queries with chosen inputs."""

from collections.abc import Sequence
from math import exp, inf, nan
from typing import Any

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.kernel.expression import literal
from kernrec.model.analytical.demand import QUANTITIES
from kernrec.model.analytical.dram_traffic import Array, TensorAccess
from kernrec.model.analytical.power import PowerModel
from kernrec.recommender.estimate.costs import ANALYTICAL, PREDICTED, kinds_of
from kernrec.util.engine import query
from kernrec.util.normal import DEVIATIONS

POWER = PowerModel.for_gpu(find_gpu("h200"))


def integers(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def launch(configs: int = 2, **changed: Any) -> tuple[Any, Any]:
    """Return a `Launch` of a kernel, and its `Space`."""
    arguments = {
        "space": query.Space({"a": np.arange(1, configs + 1)}, None, {}, {}, [], [], configs),
        "access": query.Access(integers(0), np.zeros((1, 1), np.uint8), integers(), np.zeros(1, np.uint8)),
        "demand": np.ones((1, 1, len(QUANTITIES))),
        "device": query.Device(*[1.0] * 7, False, 1.0, 1.0), "loops": 0,
        "figures": [literal(1), None, literal(1), None], "tensors": [("x", None, 0.0)],
        "variant": np.zeros(configs, np.int64), "performed": np.ones(configs, bool), "geometry": np.ones((3, configs)),
        "quick": np.ones((3, configs)), "start_clk": 1.0, "counted": True, "given": None,
    } | changed  # fmt: skip
    return query.Launch(*arguments.values()), arguments["space"]


def costs(
    rows: np.ndarray, problems: int = 1, kernels: int = 1, points: int = 0, sizes: Array = 4.0, **changed: Any
) -> Any:
    """Return the `Costs` of equal kernels. `sizes` contains the bytes of the tensors."""
    made, space = launch(**changed)
    count = space.count
    figures = np.ones(count, bool), np.ones(count), np.ones((4, count)), np.ones((count, 2), np.int64)
    kernel = query.Kernel(space, [made], *figures, False, 1.0, 1.0)
    names = (name for name, *_ in changed.get("tensors", ("x",)))
    each: list[Any] = [({}, dict(zip(names, np.atleast_1d(sizes).tolist(), strict=True)), False, 1.0, 1.0)] * problems
    limits = POWER.setting([(None, None)]) if points else None
    return query.Costs([(kernel, each, rows, None, None, None)] * kernels, limits, points, 0)


def dram_bytes(
    access: TensorAccess, extents: Sequence[Array], sizes: Sequence[Array], blocks: Array, together: Array,
    l2_bytes: float,
) -> np.ndarray:  # fmt: skip
    """Return the bytes between L2 and DRAM of each launch with `blocks` tiles, of which `together` run concurrently.

    `extents` (tiles in each step of the order) and `sizes` (bytes of each tensor) are numbers or arrays with one number
    per launch.
    """
    moved = []
    for each in np.stack(np.broadcast_arrays(blocks, together, *(extents or (1.0,)), *sizes), axis=1):
        tiles, concurrent, *others = each.tolist()
        figures = [literal(tiles), None, literal(0), *map(literal, others[: access.steps])]
        made = costs(
            integers(0), sizes=np.array(others[access.steps :]), configs=1, access=access.in_engine, figures=figures,
            geometry=np.array([[concurrent], [1.0], [1.0]]), tensors=[(name, None, 0.0) for name in access.tensors],
            device=query.Device(1.0, 1.0, l2_bytes, *[1.0] * 4, False, 1.0, 1.0),
        )  # fmt: skip
        moved.append(made.launches(0, 0)[0][2][0])
    return np.array(moved)


def ranking(
    made: object, kernels: list[Any], kinds: np.ndarray = ANALYTICAL, points: int = 1, whole: float = 1.0,
    baseline: Sequence[float] = (nan, nan, inf), measure: object = None,
) -> Any:  # fmt: skip
    """Return a `Ranking` without lower bounds on times. `whole` and `baseline` are figures of the problem."""
    others = POWER.setting([(None, None)] * (points - 1)) if points > 1 else None
    figures = [0.0, 0.0, whole, 1.0, *map(float, baseline), nan, nan, inf]
    limits = [inf] * points, [1.0] * points, [True] * points
    return query.Ranking(made, kernels, *limits, others, None, figures, kinds, True, measure)


def candidates(latency_s: np.ndarray, energy_j: np.ndarray, kinds: np.ndarray | None = None) -> Any:
    """Return `Candidates` with chosen costs, (points, C). `kinds` has an interval and source for each, (2, 4, C)."""
    points, count = latency_s.shape
    kind, every = np.tile(np.arange(count, dtype=np.int32), (2, points, 1)), np.arange(count)
    kinds = np.stack([kinds_of(1.0, 1.0, PREDICTED, np.zeros(count))] * 2) if kinds is None else kinds
    measured = np.stack([latency_s, energy_j, energy_j / latency_s]), kind, kinds
    kernels, made = [(None, False, False, [every] * points)], costs(every, points=points, configs=count)
    return query.Candidates(ranking(made, kernels, points=points, measure=lambda *_: measured), 0, 0, 1, 0, points)


Time = tuple[float, float, bool]
"""Latency, standard deviation of its logarithm, and whether it comes from other GPUs."""


def shrinkage(whole: float, baseline: Time | None, learned: float | None = None) -> tuple[float, ...]:
    """Return origin, latency, deviation and `transferred` of the reference time, then lead, share and deviation.

    Latencies are relative to the predicted time of an unmeasured kernel, which is also that of a Triton kernel that was
    measured on the GPU. `whole` and `learned` are the deviations of the predictions; None omits the Triton kernel.
    """
    kernels = [(None, False, False, None), (None, True, True, None)][: 1 if learned is None else 2]
    made = costs(integers(0), kernels=len(kernels), points=1, configs=1)
    own_s = POWER.setting([(None, None)]).costs(made.nominal)[0, 0, 0]
    time_s, *others = baseline or (nan, nan, inf)
    width = exp(DEVIATIONS * (learned or 1.0))
    kinds = np.stack([kinds_of(width, width, PREDICTED, np.zeros(1))] * 2)
    ranked = ranking(made, kernels, kinds, whole=whole, baseline=(time_s * own_s, *others))
    origin, latency_s, *rest = ranked.shrinkage(0, 0)
    return origin, latency_s / own_s, *rest
