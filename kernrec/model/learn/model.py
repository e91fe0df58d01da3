"""A trained model as a query uses it: boosted trees that correct the prior, and what is needed to judge them.

Models are trained by `kernrec.training.train_model` and stored by `kernrec.model.learn.model_file`; neither XGBoost nor
scikit-learn is needed to use one.
"""

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from kernrec.model.learn.conformal import Interval
from kernrec.model.learn.extent import Extent
from kernrec.model.learn.features import ModelInputs, matrix
from kernrec.model.learn.forest import Forest
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

HEADS = ("latency", "power")
"""What a model predicts, each with trees of its own: log(measured / prior) of latency and of power. Energy is their
product."""


@dataclass(frozen=True)
class Model:
    """Boosted trees for each head, with intervals and the scores of held-out data."""

    columns: tuple[str, ...]
    """Names of the features, in the order of the trees' columns."""
    trees: Mapping[str, bytes]
    """Head -> trees as XGBoost saves them (UBJSON)."""
    extent: Extent
    """The region of feature space that the training data covers."""
    intervals: Mapping[str, Mapping[str, Interval]]
    """Quantity (`latency` or `energy`) -> key -> interval; the key is a GPU that has an interval of its own, `*` for
    all GPUs together, or `conformal.NEW_GPU` or `conformal.NEW_KERNEL`."""
    scores: Mapping[str, float | str]
    """Figures of merit on held-out groups, by name."""
    gpus: tuple[str, ...]
    """GPUs in the training data."""
    kernels: Mapping[str, str]
    """Name -> source hash of the kernels in the training data."""
    ops: tuple[str, ...]
    """Ops in the training data."""
    helps_new_kernels: bool = False
    """Whether the model beat the prior on every held-out kernel; False where the training data has one kernel only."""
    forests: Mapping[str, Forest] = field(repr=False, default_factory=dict)
    """Head -> the trees as arrays, ready to predict."""

    def rows(self, inputs: ModelInputs) -> Array:
        """The features of candidates that this model takes, (C, F)."""
        return matrix(inputs, self.columns)

    def log_ratio(self, rows: Array) -> tuple[dict[str, Array], Array]:
        """Predict the correction of candidates.

        Args:
            rows: features, (C, F), as from `rows`.

        Returns:
            log(expected / prior) by head, arrays (C,); and the distance of each candidate from the training data, (C,).
        """
        return {head: forest.predict(rows) for head, forest in self.forests.items()}, self.extent.distance(rows)
