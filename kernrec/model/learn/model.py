"""A trained model as a query uses it: boosted trees that correct the prior, and what is needed to judge them.

Models are trained by `kernrec.training.train_model` and stored by `kernrec.model.learn.model_file`; neither XGBoost nor
scikit-learn is needed to use one.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property

import numpy as np

from kernrec.model.learn.conformal import Interval
from kernrec.model.learn.extent import Extent
from kernrec.model.learn.features import ModelInputs, matrix
from kernrec.model.learn.forest import Forest
from kernrec.model.learn.lower_bound import bounded
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

HEADS = ("latency", "power")
"""The quantities that a model predicts, each with trees of its own: log(measured / prior) of latency and of power.
Energy is their product."""
SHAPE = "shape"
"""Trees for a GPU that a model was not trained on: of latency, what differs between the configs of a problem."""


@dataclass(frozen=True)
class Model:
    """Boosted trees for each head, with intervals and the scores of held-out data."""

    columns: tuple[str, ...]
    """Names of the features, in the order of the trees' columns."""
    trees: Mapping[str, bytes]
    """Head, or `SHAPE` -> trees as XGBoost saves them (UBJSON); none in a model that was read from a file."""
    extent: Extent
    """The region of feature space that the training data covers."""
    intervals: Mapping[str, Mapping[str, Interval]]
    """Quantity (`latency` or `energy`) -> key -> interval; the key is a GPU that has an interval of its own, a data
    type on one (`conformal.on_dtype`), a kind of rows in that (`conformal.on_rows`), `*` for all GPUs together, or
    `conformal.NEW_GPU` or `conformal.NEW_KERNEL`."""
    scores: Mapping[str, float | str]
    """Figures of merit on held-out groups, by name."""
    gpus: tuple[str, ...]
    """Those in the training data, like `kernels` (name -> source hash) and `ops`."""
    kernels: Mapping[str, str]
    ops: tuple[str, ...]
    helps_new_kernels: bool = False
    """Whether the model beat the prior on every held-out kernel; False where the training data has one kernel only."""
    forests: Mapping[str, Forest] = field(repr=False, default_factory=dict)
    """The trees as arrays, ready to predict."""

    @property
    def helps_new_gpus(self) -> bool:
        """False where GPUs were held out and the prior was better on them at what the model corrects there.

        Where that is the differences between the configs of a problem, it was not to choose worse than the prior, too.
        """
        judged = self._judged
        ascending = (judged("GPU"), judged("GPU", " of the prior")), (choice_score(" of the prior"), choice_score(""))
        return all(float(self.scores.get(low, 0.0)) <= float(self.scores.get(high, 0.0)) for low, high in ascending)

    @property
    def tried_on_new_gpus(self) -> bool:
        """Whether any GPU was held out, so that `helps_new_gpus` is a finding."""
        return self._judged("GPU") in self.scores

    @property
    def _judged(self) -> Callable[..., str]:
        """The name of the score by which `helps_new_gpus` is judged."""
        return difference_score if SHAPE in self.forests else transfer_score

    def rows(self, inputs: ModelInputs) -> Array:
        """The features of candidates that this model takes, (C, F)."""
        return matrix(inputs, self.columns)

    def log_ratio(
        self, rows: Array, gpu_known: bool = True, least: Array | None = None
    ) -> tuple[dict[str, Array], Array]:
        """Predict the correction of candidates.

        Args:
            rows: features, (C, F), as from `rows`.
            gpu_known: False for a GPU that the model was not trained on. A model that has trees for that corrects no
                more than the differences between the configs of a problem there, and less with distance.
            least: from `lower_bound.least_log_ratio`: what the correction by these trees does not go below, (C,); None
                for no bound.

        Returns:
            log(expected / prior) by head, arrays (C,); and the distance of each candidate from the training data, (C,).
        """
        distance = self.extent.distance(rows)
        parts = self.parts(gpu_known)
        if parts == (SHAPE,):
            ratio = faded(self.forests[SHAPE].predict(rows), distance)
            return {"latency": ratio if least is None else bounded(ratio, least)}, distance
        return {head: self.forests[head].predict(rows) for head in parts}, distance

    def parts(self, gpu_known: bool) -> tuple[str, ...]:
        """The trees that `log_ratio` asks, by their keys in `forests`."""
        return self._parts[0 if gpu_known else 1]

    @cached_property
    def _parts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The trees for a GPU that the model was trained on, and for others."""
        heads = tuple([head for head in HEADS if head in self.forests])
        return heads, (SHAPE,) if SHAPE in self.forests else heads


def transfer_score(kind: str, by: str = "") -> str:
    """The name of the median error of latency on held-out GPUs or kernels; by: ` of the prior`, else the model's."""
    return f"median latency error{by} on held-out {kind}s"


def difference_score(kind: str, by: str = "") -> str:
    """The same of the differences between the configs of a problem: all that trees for new GPUs correct."""
    return f"median error of differences{by} on held-out {kind}s"


def choice_score(by: str) -> str:
    """The name of the efficiency of the first choice on held-out GPUs."""
    return f"efficiency@1{by} on held-out GPUs"


def faded(correction: Array, distance: Array) -> Array:
    """A correction on a GPU without measurements, (C,): the prior's again far away from the training data."""
    return np.asarray(correction * np.exp(-distance))
