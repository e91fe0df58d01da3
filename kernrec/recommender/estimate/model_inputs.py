"""Compute a model's features for candidates from the static table, the problem and the analytical model."""

from functools import cached_property
from typing import Any

import numpy as np

from kernrec.model.learn.features import QUANTITIES, ModelInputs, of_tunables, plan_of, row_kind
from kernrec.model.prior.launch_costs import LimitedCosts
from kernrec.recommender.estimate.prediction import Prediction
from kernrec.recommender.estimate.static_table import Array, StaticTable


def inputs_of(prediction: Prediction, limited: LimitedCosts, positions: Array) -> ModelInputs:
    """Return the inputs of the candidates at some positions of a prediction and its costs."""
    table, candidates = prediction.table, ModelCandidates(prediction, limited.costs, positions)
    tunables = {t.name: table.space.columns[t.name].take(candidates.configs) for t in table.kernel.tunables}
    return ModelInputs.of(table.gpu, candidates.quantities, tunables)


class ModelCandidates:
    """Candidates for models; C is their number."""

    def __init__(self, prediction: Prediction, limited: Array, positions: Array) -> None:
        """Collect the candidates at some positions of a prediction and its `LimitedCosts.costs`."""
        self.configs: Array = prediction.rows.take(positions)
        """Rows of the space, (C,)."""
        cached = prediction.table.model_features
        if not cached:
            cached.append(_TableFeatures(prediction.table))
        self._of_table: _TableFeatures = cached[0]
        self.quantities = np.empty((len(QUANTITIES), len(positions)))
        """Rows of `features.QUANTITIES`, (Q, C); only rows that are inputs are filled."""
        place = prediction.number, prediction.start, positions
        prediction.in_engine.fill(*place, limited, self.quantities)

    def features(self, columns: tuple[str, ...]) -> Array:
        """Return the named columns of `features.matrix`, (C, F)."""
        plan, of_space = self._of_table.features(columns)
        features: Array = of_space.take(self.configs, axis=0)
        plan.fill(self.quantities, features)
        return features

    def row_kind(self, candidate: int) -> str:
        """Return a candidate's kind of rows; empty for a position after the last candidate."""
        return self._of_table.row_kinds[self.configs[candidate]] if candidate < len(self.configs) else ""


class _TableFeatures:
    """Features that depend only on the tunables of a table, so that they are equal for every problem."""

    def __init__(self, table: StaticTable) -> None:
        self._table = table
        self._features: dict[tuple[str, ...], tuple[Any, Array]] = {}

    @cached_property
    def row_kinds(self) -> list[str]:
        """Kind of rows of the problems that each config belongs to (`model.learn.row_kind`)."""
        columns = self._table.space.columns
        return [row_kind(columns, row) for row in range(len(self._table))]

    def features(self, columns: tuple[str, ...]) -> tuple[Any, Array]:
        """Return the plan for computing ratio columns, and the values of the other columns for all rows, (rows, F)."""
        if (cached := self._features.get(columns)) is None:
            space = self._table.space
            cached = plan_of(self._table.gpu, columns), of_tunables(space.columns, columns, len(space))
            self._features[columns] = cached
        return cached
