"""What a model is given of candidates: features from the static table, the problem and the prior's prediction."""

from itertools import compress
from operator import not_
from weakref import WeakKeyDictionary

import numpy as np

from kernrec.model.learn.features import ModelInputs, matrix
from kernrec.model.prior.demand import PIPES
from kernrec.model.prior.launch_costs import LimitedCosts
from kernrec.recommender.estimate.prediction import Prediction
from kernrec.recommender.estimate.static_table import Array, StaticTable
from kernrec.util.light_dataclass import dataclass


def inputs_of(prediction: Prediction, limited: LimitedCosts, where: Array) -> ModelInputs:
    """The inputs of the candidates at positions `where` of a prediction and its costs."""
    table, nominal = prediction.table, prediction.nominal
    rows = prediction.rows.take(where)
    threads, blocks, resident, registers, shared = table.launch_shape(prediction.on_problem, rows)
    pipe_s, busy_s, wait_s, l2_s = _times(prediction, where)
    return ModelInputs(
        gpu=table.gpu,
        flops=float(prediction.on_problem.problem.flops),
        bytes=float(prediction.on_problem.problem.bytes),
        tunables={t.name: table.space.columns[t.name].take(rows) for t in table.kernel.tunables},
        latency_s=limited.latency_s.take(where),
        power_w=limited.power_w.take(where),
        threads=threads,
        blocks=blocks,
        resident=resident,
        registers=registers,
        shared_bytes=shared,
        pipe_s=pipe_s,
        busy_s=busy_s,
        wait_s=wait_s,
        l2_s=l2_s,
        dram_s=np.take(nominal.dram_s, where),
        core_s=np.take(nominal.core_s, where),
        fixed_s=np.take(nominal.fixed_s, where),
        clock_hz=limited.clock_hz.take(where),
        core_j=np.take(nominal.core_j, where),
        dram_j=np.take(nominal.dram_j, where),
    )


@dataclass(frozen=True)
class _OfTunables:
    """The features of a space's configs that follow from a tunable alone."""

    places: Array
    """Which of a model's columns are such features."""
    others: Array
    """Which of them are not."""
    other_columns: tuple[str, ...]
    """The names of the latter."""
    values: Array
    """Of all rows of the space, (rows, places)."""


_CACHE: WeakKeyDictionary[StaticTable, dict[tuple[str, ...], _OfTunables]] = WeakKeyDictionary()


def features_of(table: StaticTable, columns: tuple[str, ...], inputs: ModelInputs, rows: Array) -> Array:
    """The named columns of `features.matrix`, (C, F), of inputs about these rows of the table's space.

    Features of a tunable alone, whose column has a dot in its name, are computed once for a space.
    """
    of_space = _CACHE.setdefault(table, {})
    if (kept := of_space.get(columns)) is None:
        kept = of_space[columns] = _of_tunables(table, columns)
    features = np.empty((len(rows), len(columns)), dtype=np.float32)
    features[:, kept.places] = kept.values.take(rows, axis=0)
    features[:, kept.others] = matrix(inputs, kept.other_columns)
    return features


def _of_tunables(table: StaticTable, columns: tuple[str, ...]) -> _OfTunables:
    ours = ["." in name for name in columns]
    nothing = np.ones(len(table))
    inputs = ModelInputs(table.gpu, 1.0, 1.0, table.space.columns, nothing, nothing)
    return _OfTunables(
        np.flatnonzero(ours),
        np.flatnonzero(~np.array(ours)),
        tuple(compress(columns, map(not_, ours))),
        matrix(inputs, tuple(compress(columns, ours))),
    )


def _times(prediction: Prediction, where: Array) -> tuple[Array, Array, Array, Array]:
    """(of each pipe (P, C), of the pipes, of latency, of L2); launches run one after the other, so times add up."""
    sums = np.zeros((len(PIPES) + 3, len(where)))
    times = prediction.times
    for start, performed in prediction.launches:
        place = np.searchsorted(performed, where)
        np.minimum(place, len(performed) - 1, out=place)
        mine = performed.take(place) == where
        if not mine.any():
            continue
        # Zero is added to those that do without this launch: quicker than leaving them out.
        place += start
        sums[: len(PIPES)] += times.pipe_s(place) * mine
        for row, values in zip((-3, -2, -1), (times.busy_s, times.latency_s, times.l2_s), strict=True):
            sums[row] += values.take(place) * mine
    return sums[: len(PIPES)], sums[-3], sums[-2], sums[-1]
