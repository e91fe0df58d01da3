"""Trained model for queries: boosted trees that correct the analytical model, with intervals and scores.

On GPUs without recordings, a correction is limited by a physical minimum time (`least_seconds`): every SM must do the
arithmetic of its blocks, the compulsory bytes must pass once between DRAM and L2, and a launch has an overhead. The
fastest recorded config of each Triton matmul on an A100 and an H100 took at least 0.95 times this minimum.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.learn.conformal import Extent, Interval, unknown_interval
from kernrec.model.learn.features import ModelInputs, of_tunables, plan_of
from kernrec.model.learn.forest import Forest
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray


def least_seconds(inputs: ModelInputs) -> Array:
    """Return the minimum time of each of C candidates in seconds."""
    gpu, seconds = inputs.gpu, np.empty(len(inputs))
    # The minimum uses the predicted clock and the predicted number of rounds of blocks. Unknown parts count as zero.
    query.least_seconds(inputs.quantities, gpu.memory_bandwidth, gpu.boost_clock_hz, seconds)
    return seconds


def bounded(log_ratio: Array, least: Array) -> Array:
    """Raise corrections smoothly, so that each is at least `least`.

    Args:
        log_ratio: log(corrected time / analytical time) of each candidate.
        least: log(minimum time / analytical time) of each candidate.
    """
    raised = np.empty(len(log_ratio))
    query.bounded(log_ratio, least, raised)
    return raised


_NO_WIDTHS = np.zeros((1, 2))
HEADS = ("latency", "power")
"""Quantities that a model corrects. The trees of each quantity predict log(measured / analytical)."""
SHAPE = "shape"
"""Key of the trees for GPUs without measurements. They predict how latencies differ between a problem's configs."""


@dataclass(frozen=True)
class Model:
    """Boosted trees for latency and power, with intervals and with scores on held-out data."""

    columns: tuple[str, ...]
    """Names of the features, in the trees' order."""
    extent: Extent
    """Range of the features in the training data."""
    intervals: Mapping[str, Mapping[str, Interval]]
    """Intervals, keyed by quantity (`latency` or `energy`), then by `*` (all GPUs), the name of a GPU, a key from
    `conformal.on_dtype` or `conformal.on_rows`, `conformal.NEW_GPU`, or `conformal.NEW_KERNEL`."""
    scores: Mapping[str, float | str]
    """Scores of the model on held-out groups, keyed by name."""
    gpus: tuple[str, ...]
    """GPUs in the training data. `kernels` maps the kernels in the training data to hashes of their sources."""
    kernels: Mapping[str, str]
    ops: tuple[str, ...]
    helps_new_kernels: bool = False
    """Whether the model was more accurate than the analytical model on each of two or more held-out kernels."""
    forests: Mapping[str, Forest] = field(repr=False, default_factory=dict)
    """Trees, keyed by a member of `HEADS` or by `SHAPE`."""

    @property
    def helps_new_gpus(self) -> bool:
        """Return whether the model was at least as good as the analytical model on held-out GPUs. Return True if no GPU
        was held out."""
        judged = self._judged
        # The model's error must not exceed the analytical model's error, and the model's top-1 score must not be lower.
        ascending = (judged("GPU"), judged("GPU", ANALYTICAL)), (top1_score(ANALYTICAL), top1_score(""))
        return all(float(self.scores.get(low, 0.0)) <= float(self.scores.get(high, 0.0)) for low, high in ascending)

    @property
    def tried_on_new_gpus(self) -> bool:
        """Return whether the model was tested on held-out GPUs."""
        return self._judged("GPU") in self.scores

    @property
    def _judged(self) -> Callable[..., str]:
        return difference_score if SHAPE in self.forests else transfer_score

    def log_ratio(self, inputs: ModelInputs, gpu_known: bool = True) -> tuple[dict[str, Array], Array]:
        """Predict log(corrected / analytical) for C candidates. Return the logarithms (C,), keyed by quantity, and the
        distances (C,) from the training data. `gpu_known` states whether the GPU is in the training data."""
        # On unknown GPUs, corrections shrink with the distance from the training data, and `least_seconds` limits them.
        in_engine = learned_model([(self, gpu_known)], inputs.gpu, inputs.tunables, [0] * len(inputs))
        latency, power, distance = in_engine.predict(inputs.quantities)
        return {"latency": latency} | ({"power": power} if "power" in self.parts(gpu_known) else {}), distance

    def parts(self, gpu_known: bool) -> tuple[str, ...]:
        """Return the keys of the trees that `log_ratio` uses."""
        return self._parts[0 if gpu_known else 1]

    @cached_property
    def _parts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        heads = tuple([head for head in HEADS if head in self.forests])
        return heads, (SHAPE,) if SHAPE in self.forests else heads


ANALYTICAL = " of the analytical model"
"""Part of a score's name if the score rates the analytical model."""


def learned_model(
    models: Sequence[tuple[Model, bool]],
    gpu: GPU,
    tunables: Mapping[str, Array],
    row_kinds: Sequence[int],
    source: float = 0.0,
    half_widths: Array = _NO_WIDTHS,
) -> Any:
    """Return an engine object that corrects the costs of C configs on a GPU with one or more models in sequence.

    Args:
        models: Pairs (model, whether the GPU is in its training data), in the order in which they apply.
        tunables: Values of each tunable, keyed by tunable.
        row_kinds: Row of `half_widths` that applies to each config.
        source: Index in `SOURCES` of the source of the corrected costs.
        half_widths: Logarithmic half-widths of the intervals of latency and energy, (kinds, 2).
    """
    layers = []
    for model, gpu_known in models:
        latency, *power = (model.forests[part].in_engine for part in model.parts(gpu_known))
        of_space = of_tunables(tunables, model.columns, len(row_kinds))
        of_model = plan_of(gpu, model.columns), of_space, model.extent.in_engine
        layers.append((*of_model, latency, power[0] if power else None, model.parts(gpu_known) == (SHAPE,)))
    return query.LearnedModel(
        layers,
        not all(gpu_known for _, gpu_known in models),
        gpu.memory_bandwidth,
        gpu.boost_clock_hz,
        source,
        unknown_interval("problem").width,
        row_kinds,
        half_widths,
    )


def transfer_score(kind: str, by: str = "") -> str:
    """Return the name of the score for the median latency error on held-out GPUs or kernels. `by` is `ANALYTICAL` for
    the analytical model, or empty for the trained model."""
    return f"median latency error{by} on held-out {kind}s"


def difference_score(kind: str, by: str = "") -> str:
    """Return the name of a score: the median error of latency differences between configs of one problem."""
    return f"median error of differences{by} on held-out {kind}s"


def top1_score(by: str) -> str:
    """Return the name of a score: the best time divided by the top recommendation's time, on held-out GPUs."""
    return f"efficiency@1{by} on held-out GPUs"
