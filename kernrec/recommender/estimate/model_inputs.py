"""The inputs of a model for candidates: features from the static table, the problem and the prior's prediction."""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from kernrec.kernel.many_problems import OnProblems
from kernrec.model.learn.core import BLOCKS, BYTES, FLOPS
from kernrec.model.learn.features import (
    LAUNCH,
    LIMITED,
    NOMINAL,
    QUANTITIES,
    ModelInputs,
    add_ratios,
    of_tunables,
    plan_of,
)
from kernrec.model.prior.demand import PIPES
from kernrec.model.prior.launch_costs import LimitedCosts
from kernrec.recommender.estimate.prediction import Prediction
from kernrec.recommender.estimate.static_table import Array, StaticTable
from kernrec.util.compiled import core


def inputs_of(prediction: Prediction, limited: LimitedCosts, positions: Array) -> ModelInputs:
    """The inputs of the candidates at some positions of a prediction and its costs."""
    table, configs = prediction.table, prediction.on_problem.configs(prediction.rows.take(positions))
    tunables = {t.name: table.space.columns[t.name].take(configs) for t in table.kernel.tunables}
    return ModelInputs.of(table.gpu, quantities_of(prediction, limited, positions), tunables)


def quantities_of(prediction: Prediction, limited: LimitedCosts, positions: Array) -> Array:
    """The rows of `features.QUANTITIES`, (Q, C), of these candidates, of which the inputs are filled."""
    table, on_problem = prediction.table, prediction.on_problem
    rows = prediction.rows.take(positions)
    quantities = np.zeros((len(QUANTITIES), len(positions)))
    limited.costs.take(positions, axis=1, out=quantities[LIMITED], mode="clip")
    prediction.costs.take(positions, axis=1, out=quantities[NOMINAL], mode="clip")
    quantities[LAUNCH] = _of(table).shapes(on_problem, rows)
    quantities[FLOPS] = on_problem.of_rows([float(problem.flops) for problem in on_problem.problems], rows)
    quantities[BYTES] = on_problem.of_rows([float(problem.bytes) for problem in on_problem.problems], rows)
    quantities[BLOCKS] = on_problem.column(table.kernel.launches[0].blocks, rows)
    _add_times(prediction, positions, quantities)
    return quantities


def features_of(prediction: Prediction, columns: tuple[str, ...], quantities: Array, positions: Array) -> Array:
    """The named columns of `features.matrix`, (C, F), of the candidates that `quantities_of` is about."""
    configs = prediction.on_problem.configs(prediction.rows.take(positions))
    plan, of_space = _of(prediction.table).features(columns)
    features: Array = of_space.take(configs, axis=0)
    add_ratios(plan, quantities, features)
    return features


class _OfTable:
    """Features of a tunable alone, and as a rule the shapes of launches: the same on every problem of a table."""

    def __init__(self, table: StaticTable) -> None:
        self._table = table
        self._features: dict[tuple[str, ...], tuple[Any, Array]] = {}
        self._shapes: Array | None = None

    def features(self, columns: tuple[str, ...]) -> tuple[Any, Array]:
        """(the plan of the ratios among these columns, the others of all rows of the space, (rows, F))."""
        if (cached := self._features.get(columns)) is None:
            space = self._table.space
            cached = plan_of(self._table.gpu, columns), of_tunables(space.columns, columns, len(space))
            self._features[columns] = cached
        return cached

    def shapes(self, on_problem: OnProblems, rows: Array) -> Array:
        """Threads, resident blocks, registers and shared bytes of these rows' first launch, (4, C)."""
        if self._shapes is None:
            space, spec = self._table.space, self._table.kernel.launches[0]
            if not (space.fixed(spec.threads) and space.fixed(spec.shared)):
                return self._shapes_of(on_problem, rows)
            self._shapes = self._shapes_of(on_problem, np.arange(len(space)))
        return self._shapes.take(on_problem.configs(rows), axis=1)

    def _shapes_of(self, on_problem: OnProblems, rows: Array) -> Array:
        table, configs = self._table, on_problem.configs(rows)
        spec, launch = table.kernel.launches[0], table.launches[0]
        variant, profiles = launch.variant.take(configs), launch.profiles
        shapes = np.empty((4, len(rows)))
        shapes[0] = on_problem.column(spec.threads, rows)
        shapes[1] = table.geometry(on_problem, 0).resident.take(configs)
        shapes[2] = profiles.registers.take(variant)
        shapes[3] = profiles.static_smem_bytes.take(variant) + on_problem.column(spec.shared, rows)
        return shapes


_PIPES = np.arange(len(PIPES))
_CACHE: WeakKeyDictionary[StaticTable, _OfTable] = WeakKeyDictionary()


def _of(table: StaticTable) -> _OfTable:
    of_table = _CACHE.get(table)
    if of_table is None:
        of_table = _CACHE[table] = _OfTable(table)
    return of_table


def _add_times(prediction: Prediction, positions: Array, quantities: Array) -> None:
    """Adds the times of all launches; they run one after the other, so times add up."""
    arithmetic = core("kernrec.model.learn")
    pipes = _PIPES if arithmetic.compiled else _PIPES[np.newaxis, :, np.newaxis]
    for launch in prediction.launches:
        places, who = positions, np.arange(len(positions))
        if len(launch.positions) < len(prediction.rows):
            places = launch.positions.searchsorted(positions)
            who = (launch.positions.take(places, mode="clip") == positions).nonzero()[0]
            places = places.take(who)
        if launch.start:
            places = places + launch.start
        indexes = arithmetic.rows(who), arithmetic.rows(places), pipes
        arithmetic.functions.add_times(*indexes, launch.times.pipe_clk, launch.times.rows, quantities)
