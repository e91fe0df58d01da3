"""Trained model for queries: boosted trees that correct the analytical model, with intervals and scores.

`kernrec.training.train_model` trains models, and `kernrec.model.learn.model_file` stores them. Using a model needs
neither XGBoost nor scikit-learn.

A correction can make a config faster than the analytical model predicts. On a GPU with recordings, the training
data limits the correction. On other GPUs, only a physical minimum limits the correction (`least_seconds`): every SM
must do the arithmetic of its blocks at the rate of its pipes, the compulsory bytes must pass once between DRAM and L2,
and a launch has an overhead. The fastest recorded config of each Triton matmul on an A100 and an H100 took at least
0.95 times this minimum.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.learn.conformal import Extent, Interval
from kernrec.model.learn.features import QUANTITIES, ModelInputs, matrix
from kernrec.model.learn.forest import Forest
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

_LATENCY = QUANTITIES.index("latency_s")
_SHARPNESS = 16.0
"""Exponent of the smooth maximum of a corrected time and its lower bound. Of the exponents 4, 8, 16 and 32, this one
ranked recorded f32 matmuls best without increasing the errors of their times."""


def least_seconds(inputs: ModelInputs) -> Array:
    """Return the minimum time of each candidate in seconds, (C,). The minimum assumes that blocks run in the modeled
    number of rounds and that arithmetic runs at the clock under the power limit. Unknown parts of the time count as
    zero."""
    return _least_seconds(inputs.gpu, inputs.quantities())


def _least_seconds(gpu: GPU, quantities: Array) -> Array:
    seconds = np.empty(quantities.shape[1])
    query.least_seconds(quantities, gpu.memory_bandwidth, gpu.boost_clock_hz, seconds)
    return seconds


def least_log_ratio(inputs: ModelInputs) -> Array:
    """Return log(minimum time / analytical model's time) of each candidate, (C,)."""
    return least_log_ratio_of(inputs.gpu, inputs.quantities())


def least_log_ratio_of(gpu: GPU, quantities: Array) -> Array:
    """Return the result of `least_log_ratio` for quantities (Q, C) with the rows of `features.QUANTITIES`."""
    return np.asarray(np.log(_least_seconds(gpu, quantities) / quantities[_LATENCY]))


def bounded(log_ratio: Array, least: Array) -> Array:
    """Limit corrections from below. `log_ratio` (C,) contains log(corrected time / analytical time), and `least` (C,)
    is the minimum from `least_log_ratio`. Return `log_ratio` with values near or below the minimum raised."""
    return np.logaddexp(_SHARPNESS * log_ratio, _SHARPNESS * least) / _SHARPNESS


HEADS = ("latency", "power")
"""Quantities that a model corrects. Each has its own trees, which predict log(measured / analytical)."""
SHAPE = "shape"
"""Key of the trees that are used for GPUs without measurements. They predict how the latencies of a problem's configs
differ from each other."""


@dataclass(frozen=True)
class Model:
    """Boosted trees for latency and power, with intervals and with scores on held-out data."""

    columns: tuple[str, ...]
    """Names of the features, in the order in which the trees number them."""
    extent: Extent
    """Region of feature space that the training data covers."""
    intervals: Mapping[str, Mapping[str, Interval]]
    """Intervals, keyed by quantity (`latency` or `energy`), then by a key that states when the interval applies. A key
    is a GPU, a GPU and a data type (`conformal.on_dtype`), a GPU, a data type and a kind of rows (`conformal.on_rows`),
    `*` for all GPUs together, `conformal.NEW_GPU` or `conformal.NEW_KERNEL`."""
    scores: Mapping[str, float | str]
    """Scores of the model on held-out groups, keyed by the name of the score."""
    gpus: tuple[str, ...]
    """GPUs in the training data. `kernels` (source hash by name) and `ops` also describe the training data."""
    kernels: Mapping[str, str]
    ops: tuple[str, ...]
    helps_new_kernels: bool = False
    """Whether the model had smaller errors than the analytical model on each of two or more held-out kernels."""
    forests: Mapping[str, Forest] = field(repr=False, default_factory=dict)
    """Trees of each quantity, keyed by a member of `HEADS` or by `SHAPE`."""

    @property
    def helps_new_gpus(self) -> bool:
        """Return whether the model was at least as good as the analytical model on held-out GPUs. Return True if no GPU
        was held out. The errors must not be larger and the top recommendations must not be worse. If the model has
        `SHAPE` trees, the errors are those of the differences between a problem's configs."""
        judged = self._judged
        ascending = (judged("GPU"), judged("GPU", ANALYTICAL)), (top1_score(ANALYTICAL), top1_score(""))
        return all(float(self.scores.get(low, 0.0)) <= float(self.scores.get(high, 0.0)) for low, high in ascending)

    @property
    def tried_on_new_gpus(self) -> bool:
        """Return whether any GPU was held out. Otherwise, `helps_new_gpus` was not tested."""
        return self._judged("GPU") in self.scores

    @property
    def _judged(self) -> Callable[..., str]:
        return difference_score if SHAPE in self.forests else transfer_score

    def rows(self, inputs: ModelInputs) -> Array:
        """Return, for each candidate, the features that the model's trees use, as an array of shape (C, F)."""
        return matrix(inputs, self.columns)

    def log_ratio(
        self, rows: Array, gpu_known: bool = True, least: Array | None = None
    ) -> tuple[dict[str, Array], Array]:
        """Predict the correction of each candidate's latency and power.

        Args:
            rows: Features of the candidates, (C, F), from the method `rows`.
            gpu_known: Whether the GPU is in the training data. For other GPUs, `SHAPE` trees only correct the
                differences between the configs of a problem. This correction shrinks with the distance from the
                training data.
            least: Lower bound on the correction by the `SHAPE` trees, (C,), from `least_log_ratio`. None for no bound.

        Returns:
            (log ratios, distances). The log ratios are log(corrected / analytical), (C,), keyed by quantity. The
            distances are those of the candidates from the training data, (C,).
        """
        distance = self.extent.distance(rows)
        parts = self.parts(gpu_known)
        if parts == (SHAPE,):
            ratio = faded(self.forests[SHAPE].predict(rows), distance)
            return {"latency": ratio if least is None else bounded(ratio, least)}, distance
        return {head: self.forests[head].predict(rows) for head in parts}, distance

    def parts(self, gpu_known: bool) -> tuple[str, ...]:
        """Return the keys of the trees in `forests` that `log_ratio` uses."""
        return self._parts[0 if gpu_known else 1]

    @cached_property
    def _parts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        heads = tuple([head for head in HEADS if head in self.forests])
        return heads, (SHAPE,) if SHAPE in self.forests else heads


ANALYTICAL = " of the analytical model"
"""Part of a score's name that marks the score of the analytical model."""


def transfer_score(kind: str, by: str = "") -> str:
    """Return the name of the score that contains the median error of latency on held-out GPUs or kernels (`kind`). `by`
    is `ANALYTICAL` for the score of the analytical model, and empty for the score of the trained model."""
    return f"median latency error{by} on held-out {kind}s"


def difference_score(kind: str, by: str = "") -> str:
    """Return the name of the score that contains the median error of the latency differences between a problem's
    configs."""
    return f"median error of differences{by} on held-out {kind}s"


def top1_score(by: str) -> str:
    """Return the name of the score that contains the efficiency of the top recommendation on held-out GPUs."""
    return f"efficiency@1{by} on held-out GPUs"


def faded(correction: Array, distance: Array) -> Array:
    """Return a correction for an unmeasured GPU, (C,), reduced according to the distance from the training data."""
    return np.asarray(correction * np.exp(-distance))
