"""The inputs of a model for candidates: features from the static table, the problem and the prior's prediction."""

from itertools import compress
from weakref import WeakKeyDictionary

import numpy as np

from kernrec.kernel.many_problems import OnProblems
from kernrec.model.learn.features import ModelInputs, matrix
from kernrec.model.prior.demand import PIPES
from kernrec.model.prior.launch_costs import LimitedCosts
from kernrec.recommender.estimate.prediction import Prediction
from kernrec.recommender.estimate.static_table import Array, StaticTable


def inputs_of(prediction: Prediction, limited: LimitedCosts, positions: Array) -> ModelInputs:
    """The inputs of the candidates at some positions of a prediction and its costs."""
    table, nominal, on_problem = prediction.table, prediction.nominal, prediction.on_problem
    rows = prediction.rows.take(positions)
    configs = on_problem.configs(rows)
    threads, blocks, resident, registers, shared = table.launch_shape(on_problem, rows)
    pipe_s, busy_s, wait_s, l2_s = _times(prediction, positions)
    flops, moved = (on_problem.of_rows([float(work) for work in each], rows) for each in _work(on_problem))
    return ModelInputs(
        gpu=table.gpu,
        flops=flops,
        bytes=moved,
        tunables={t.name: table.space.columns[t.name].take(configs) for t in table.kernel.tunables},
        latency_s=limited.latency_s.take(positions),
        power_w=limited.power_w.take(positions),
        threads=threads,
        blocks=blocks,
        resident=resident,
        registers=registers,
        shared_bytes=shared,
        pipe_s=pipe_s,
        busy_s=busy_s,
        wait_s=wait_s,
        l2_s=l2_s,
        clock_hz=limited.clock_hz.take(positions),
        capped=limited.capped.take(positions),
        **{name: np.take(part, positions) for name, part in vars(nominal).items()},
    )


def _work(on_problem: OnProblems) -> tuple[list[int], list[int]]:
    """(FLOPs, compulsory bytes) of each problem."""
    return [problem.flops for problem in on_problem.problems], [problem.bytes for problem in on_problem.problems]


_OfTunables = tuple[Array, Array, Array, tuple[str, ...]]
"""Places of a model's columns that follow from a tunable alone, their features of all rows of the space, (rows,
places); places and names of the other columns."""
_CACHE: WeakKeyDictionary[StaticTable, dict[tuple[str, ...], _OfTunables]] = WeakKeyDictionary()


def features_of(table: StaticTable, columns: tuple[str, ...], inputs: ModelInputs, rows: Array) -> Array:
    """The named columns of `features.matrix`, (C, F), of inputs about these rows of the table's space.

    Features of a tunable alone, whose column has a dot in its name, are computed once for a space.
    """
    of_space = _CACHE.setdefault(table, {})
    if (cached := of_space.get(columns)) is None:
        cached = of_space[columns] = _of_tunables(table, columns)
    places, values, others, other_columns = cached
    features = np.empty((len(rows), len(columns)), dtype=np.float32)
    features[:, places] = values.take(rows, axis=0)
    features[:, others] = matrix(inputs, other_columns)
    return features


def _of_tunables(table: StaticTable, columns: tuple[str, ...]) -> _OfTunables:
    ours = np.array(["." in name for name in columns], dtype=bool)
    names, others = (tuple(compress(columns, mask)) for mask in (ours, ~ours))
    nothing = np.ones(len(table))
    values = matrix(ModelInputs(table.gpu, 1.0, 1.0, table.space.columns, nothing, nothing), names)
    return np.flatnonzero(ours), values, np.flatnonzero(~ours), others


def _times(prediction: Prediction, positions: Array) -> tuple[Array, Array, Array, Array]:
    """(of each pipe (P, C), of the pipes, of latency, of L2); launches run one after the other, so times add up."""
    sums = np.zeros((len(PIPES) + 3, len(positions)))
    for launch in prediction.launches:
        times = launch.times
        place = np.searchsorted(launch.positions, positions)
        np.minimum(place, len(launch.positions) - 1, out=place)
        mine = launch.positions.take(place) == positions
        if not mine.any():
            continue
        # Zero is added to those that do without this launch: quicker than leaving them out.
        place += launch.start
        sums[: len(PIPES)] += times.pipe_s(place) * mine
        for row, values in zip((-3, -2, -1), (times.busy_s, times.latency_s, times.l2_s), strict=True):
            sums[row] += values.take(place) * mine
    return sums[: len(PIPES)], sums[-3], sums[-2], sums[-1]
