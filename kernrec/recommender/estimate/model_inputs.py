"""Compute a model's features for candidates from the static table, the problem and the analytical model."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from kernrec.kernel.many_problems import OnProblems
from kernrec.model.learn.features import (
    LAUNCH,
    LIMITED,
    NOMINAL,
    QUANTITIES,
    ModelInputs,
    of_tunables,
    plan_of,
)
from kernrec.model.learn.row_kind import row_kind
from kernrec.model.prior.launch_costs import LimitedCosts
from kernrec.recommender.estimate.prediction import Prediction
from kernrec.recommender.estimate.static_table import Array, StaticTable
from kernrec.util.engine import query


def inputs_of(prediction: Prediction, limited: LimitedCosts, positions: Array) -> ModelInputs:
    """Return the inputs of the candidates at some positions of a prediction and its costs."""
    table, candidates = prediction.table, ModelCandidates(prediction, limited, positions)
    tunables = {t.name: table.space.columns[t.name].take(candidates.configs) for t in table.kernel.tunables}
    return ModelInputs.of(table.gpu, candidates.quantities, tunables)


class ModelCandidates:
    """Candidates for models; C is their number."""

    def __init__(self, prediction: Prediction, limited: LimitedCosts, positions: Array) -> None:
        """Collect the candidates at some positions of a prediction and its costs."""
        on_problem, rows = prediction.on_problem, prediction.rows.take(positions)
        self.configs: Array = on_problem.configs(rows)
        """Rows of the space, (C,)."""
        self._of_table = of_table = _of(prediction.table)
        self.quantities = quantities = np.zeros((len(QUANTITIES), len(positions)))
        """Rows of `features.QUANTITIES`, (Q, C); those that are inputs are filled."""
        limited.costs.take(positions, axis=1, out=quantities[LIMITED], mode="clip")
        prediction.costs.take(positions, axis=1, out=quantities[NOMINAL], mode="clip")
        quantities[LAUNCH] = of_table.shapes(on_problem, rows)
        quantities[_FLOPS] = on_problem.of_rows([float(problem.flops) for problem in on_problem.problems], rows)
        quantities[_BYTES] = on_problem.of_rows([float(problem.bytes) for problem in on_problem.problems], rows)
        quantities[_BLOCKS] = on_problem.column(prediction.table.kernel.launches[0].blocks, rows)
        _add_times(prediction, positions, quantities)

    def features(self, columns: tuple[str, ...]) -> Array:
        """Return the named columns of `features.matrix`, (C, F)."""
        plan, of_space = self._of_table.features(columns)
        features: Array = of_space.take(self.configs, axis=0)
        plan.fill(self.quantities, features)
        return features

    def row_kinds(self, firsts: Sequence[int]) -> list[str]:
        """Return the kind of rows of the problem of each candidate; empty without a candidate."""
        kinds, configs = self._of_table.row_kinds, self.configs
        return [kinds[configs[first]] if first < len(configs) else "" for first in firsts]


class _OfTable:
    """Features that are equal for every problem of a table: tunables, and usually the launch shapes."""

    def __init__(self, table: StaticTable) -> None:
        self._table = table
        self._features: dict[tuple[str, ...], tuple[Any, Array]] = {}
        self._shapes: Array | None = None

    @cached_property
    def row_kinds(self) -> list[str]:
        """Kind of rows of the problems that each config belongs to (`model.learn.row_kind`)."""
        columns = self._table.space.columns
        return [row_kind(columns, row) for row in range(len(self._table))]

    def features(self, columns: tuple[str, ...]) -> tuple[Any, Array]:
        """Return the plan of the ratios among these columns, and the other columns of all rows, (rows, F)."""
        if (cached := self._features.get(columns)) is None:
            space = self._table.space
            cached = plan_of(self._table.gpu, columns), of_tunables(space.columns, columns, len(space))
            self._features[columns] = cached
        return cached

    def shapes(self, on_problem: OnProblems, rows: Array) -> Array:
        """Return threads, resident blocks, registers and shared bytes of these rows' first launch, (4, C)."""
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


_FLOPS, _BYTES, _BLOCKS = map(QUANTITIES.index, ("flops", "bytes", "blocks"))
_CACHE: WeakKeyDictionary[StaticTable, _OfTable] = WeakKeyDictionary()


def _of(table: StaticTable) -> _OfTable:
    of_table = _CACHE.get(table)
    if of_table is None:
        of_table = _CACHE[table] = _OfTable(table)
    return of_table


def _add_times(prediction: Prediction, positions: Array, quantities: Array) -> None:
    """Add the times of all launches, which run one after another."""
    for launch in prediction.launches:
        places, who = positions, np.arange(len(positions))
        if len(launch.positions) < len(prediction.rows):
            places = launch.positions.searchsorted(positions)
            who = (launch.positions.take(places, mode="clip") == positions).nonzero()[0]
            places = places.take(who)
        if launch.start:
            places = places + launch.start
        query.add_times(who, places, launch.times.pipe_clk, launch.times.rows, quantities)
