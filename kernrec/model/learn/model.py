"""Trained model for queries: boosted trees that correct the analytical model, with intervals and scores.

`kernrec.training.train_model` trains models, and `kernrec.model.learn.model_file` stores them. Using a model needs
neither XGBoost nor scikit-learn.

A correction makes some configs faster than predicted. On a GPU with recordings, the recordings limit it. On another
GPU, only physics does (`least_seconds`): every multiprocessor must perform the arithmetic of its blocks at the rate of
its pipes, the compulsory bytes must pass between DRAM and L2 once, and the launch has an overhead. (The fastest config
of each recorded problem of Triton's matmul, on an A100 and an H100, took at least 0.95 times this minimum.)
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
"""Exponent of the smooth maximum of a corrected time and the bound. For equal times, it is 2**(1/16) = 1.04 times them,
because no kernel reaches the peak. Configs near the bound keep their order. Among 4, 8, 16 and 32, this exponent ranked
recorded f32 matmuls best without larger errors of their times.
"""


def least_seconds(inputs: ModelInputs) -> Array:
    """Return the minimum seconds of the candidates, (C,).

    The bound counts the code's arithmetic at the clock under the power limit, in the modeled rounds of blocks. Unknown
    parts of the time count as zero.
    """
    return _least_seconds(inputs.gpu, inputs.quantities())


def _least_seconds(gpu: GPU, quantities: Array) -> Array:
    seconds = np.empty(quantities.shape[1])
    query.least_seconds(quantities, gpu.memory_bandwidth, gpu.boost_clock_hz, seconds)
    return seconds


def least_log_ratio(inputs: ModelInputs) -> Array:
    """Return log(minimum time / analytical model's time) of the candidates, (C,)."""
    return least_log_ratio_of(inputs.gpu, inputs.quantities())


def least_log_ratio_of(gpu: GPU, quantities: Array) -> Array:
    """Return `least_log_ratio` for rows of `features.QUANTITIES` with the inputs, (Q, C)."""
    return np.asarray(np.log(_least_seconds(gpu, quantities) / quantities[_LATENCY]))


def bounded(log_ratio: Array, least: Array) -> Array:
    """Return log(expected / analytical), (C,), raised if the expected time would be near or below the minimum.

    Args:
        log_ratio: Predicted logarithm of the ratio.
        least: Result of `least_log_ratio`.
    """
    return np.logaddexp(_SHARPNESS * log_ratio, _SHARPNESS * least) / _SHARPNESS


HEADS = ("latency", "power")
"""Predicted quantities with their own trees: log(measured / analytical) of latency and of power."""
SHAPE = "shape"
"""Key of the trees for unmeasured GPUs, which predict latency differences between a problem's configs."""


@dataclass(frozen=True)
class Model:
    """Boosted trees for each head, with intervals and scores on held-out data."""

    columns: tuple[str, ...]
    """Names of the features, in the order of the trees' columns."""
    extent: Extent
    """Region of feature space that the training data covers."""
    intervals: Mapping[str, Mapping[str, Interval]]
    """Intervals by quantity (`latency` or `energy`) and key. A key is a GPU with its own interval, `conformal.on_dtype`
    (GPU and data type), `conformal.on_rows` (GPU, data type and kind of rows), `*` for all GPUs together,
    `conformal.NEW_GPU` or `conformal.NEW_KERNEL`.
    """
    scores: Mapping[str, float | str]
    """Scores on held-out groups, by name."""
    gpus: tuple[str, ...]
    """GPUs in the training data. `kernels` (name -> source hash) and `ops` also describe the training data."""
    kernels: Mapping[str, str]
    ops: tuple[str, ...]
    helps_new_kernels: bool = False
    """Whether the model was better than the analytical model on every held-out kernel; False if the training data has
    only one kernel.
    """
    forests: Mapping[str, Forest] = field(repr=False, default_factory=dict)
    """Trees by head or `SHAPE`."""

    @property
    def helps_new_gpus(self) -> bool:
        """Return False if GPUs were held out and the analytical model was better on them.

        If trees correct differences between the configs of a problem, the model also must not have recommended worse
        configs.
        """
        judged = self._judged
        ascending = (judged("GPU"), judged("GPU", " of the prior")), (top1_score(" of the prior"), top1_score(""))
        return all(float(self.scores.get(low, 0.0)) <= float(self.scores.get(high, 0.0)) for low, high in ascending)

    @property
    def tried_on_new_gpus(self) -> bool:
        """Return whether any GPU was held out, so that `helps_new_gpus` was tested."""
        return self._judged("GPU") in self.scores

    @property
    def _judged(self) -> Callable[..., str]:
        return difference_score if SHAPE in self.forests else transfer_score

    def rows(self, inputs: ModelInputs) -> Array:
        """Return the model's features of candidates, (C, F)."""
        return matrix(inputs, self.columns)

    def log_ratio(
        self, rows: Array, gpu_known: bool = True, least: Array | None = None
    ) -> tuple[dict[str, Array], Array]:
        """Predict the correction of candidates.

        Args:
            rows: Features, (C, F), as from `rows`.
            gpu_known: False for a GPU outside the training data. Trees for unknown GPUs only correct the differences
                between the configs of a problem, and less with distance.
            least: Lower bound of the correction by these trees from `lower_bound.least_log_ratio`, (C,); None for no
                bound.

        Returns:
            log(expected / analytical) by head, arrays (C,); and the distance of each candidate from the training data,
                (C,).
        """
        distance = self.extent.distance(rows)
        parts = self.parts(gpu_known)
        if parts == (SHAPE,):
            ratio = faded(self.forests[SHAPE].predict(rows), distance)
            return {"latency": ratio if least is None else bounded(ratio, least)}, distance
        return {head: self.forests[head].predict(rows) for head in parts}, distance

    def parts(self, gpu_known: bool) -> tuple[str, ...]:
        """Return the keys in `forests` of the trees that `log_ratio` uses."""
        return self._parts[0 if gpu_known else 1]

    @cached_property
    def _parts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        heads = tuple([head for head in HEADS if head in self.forests])
        return heads, (SHAPE,) if SHAPE in self.forests else heads


def transfer_score(kind: str, by: str = "") -> str:
    """Return the name of the score for the median latency error on held-out GPUs or kernels.

    Args:
        by: ` of the prior` for the analytical model, otherwise the trained model.
    """
    return f"median latency error{by} on held-out {kind}s"


def difference_score(kind: str, by: str = "") -> str:
    """Return the name of the score for the median error of differences between a problem's configs (`SHAPE` trees)."""
    return f"median error of differences{by} on held-out {kind}s"


def top1_score(by: str) -> str:
    """Return the name of the score for the top recommendation's efficiency on held-out GPUs."""
    return f"efficiency@1{by} on held-out GPUs"


def faded(correction: Array, distance: Array) -> Array:
    """Return a correction on an unmeasured GPU, (C,), reduced with the distance from the training data."""
    return np.asarray(correction * np.exp(-distance))
