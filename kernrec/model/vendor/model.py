"""The model of a vendor library, as a query uses it: its latency and power for a problem on a GPU.

Trees correct the roofline of `kernrec.model.vendor.roofline`: log(measured / roofline) of latency, log(power / TDP) of
power. Each card of the recordings has trees of its own. For any other card there are few and shallow ones, over ratios
alone, whose predictions are `transferred`; deeper ones have learned the recorded cards by heart and do worse there than
the roofline. Trained by `kernrec.training.train_vendor_model`, stored by `kernrec.model.vendor.model_file`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from math import hypot

import numpy as np

from kernrec.errors import UsageError
from kernrec.gpu import GPU
from kernrec.model.learn.conformal import Interval
from kernrec.model.learn.extent import Extent
from kernrec.model.vendor.compact_trees import CompactTrees, decompressed, expand
from kernrec.model.vendor.roofline import DIMS, Timing, features, rate_of
from kernrec.op import Problem
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

OTHER = "*"
"""The key of the trees for cards that were not recorded."""
_KEPT = 4096
"""Predictions that a model keeps at most."""


@dataclass(frozen=True)
class RecordedSet:
    """Which problems a recorder timed, and how."""

    name: str
    case: str
    """Which problems of the op: `product`, `prompt` or `token`."""
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    alike: tuple[str, ...]
    """Other data types and layouts, for which the library takes about as long."""
    alike_width: float
    """About how long: 90 % of these are within a factor exp(`alike_width`) of what was recorded."""
    timing: Timing
    grid: tuple[str, ...]
    """Dimensions of which few sizes were recorded."""
    origin: Mapping[str, str]
    """In words: `source`, `licence`, `library` and the `recorded` problems."""

    def exactly(self, problem: Problem) -> bool:
        """Whether the data type and layout of a problem were recorded."""
        return problem.dtype in self.dtypes and problem.layout in self.layouts

    def covers(self, problem: Problem) -> bool:
        """Whether a problem is one of these, or like one."""
        alike = problem.dtype in self.dtypes + self.alike and problem.layout in self.layouts + self.alike
        return alike and CASES[self.case](problem.sizes)


CASES: Mapping[str, Callable[[Mapping[str, int]], bool]] = {
    "product": lambda d: d["batch"] == 1 and not d["bias"] and not d["activation"],
    "prompt": lambda d: bool(d["causal"]) and d["queries"] == d["keys"],
    "token": lambda d: d["queries"] == 1 < d["keys"],
}
"""Whether the dimensions of a problem are of a case."""


@dataclass(frozen=True)
class Head:
    """The trees of one quantity for one card, or for those not recorded."""

    columns: tuple[str, ...]
    """The features of the trees, in order."""
    packed: Array
    """The trees as the file has them, compressed."""
    recorded: Interval
    """Calibrated on problems left out, of sizes that were recorded; on whole cards for cards not recorded."""
    between: Interval
    """Calibrated on sizes of the grid left out."""

    @cached_property
    def trees(self) -> CompactTrees:
        """Expanded when they are first asked: a query needs those of one card. `UsageError` where they are damaged."""
        try:
            trees = expand(*decompressed(self.packed))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UsageError(f"the trees of a vendor library are damaged ({error})") from None
        if len(trees.feature) and trees.feature.max() >= len(self.columns):
            raise UsageError("the trees of a vendor library split on a feature that their card does not name")
        return trees


@dataclass(frozen=True)
class SetModel:
    """The trees and the recorded region of one recorded set."""

    recorded: RecordedSet
    sizes: Mapping[str, tuple[int, ...]]
    """The sizes that were recorded of the dimensions of the grid."""
    extent: Extent
    """The recorded region of the logarithms of the dimensions."""
    heads: Mapping[tuple[str, str], Head]
    """(`latency` or `power`, catalog name of a card or `OTHER`) -> trees."""

    def gpus(self, quantity: str = "latency") -> tuple[str, ...]:
        """The cards that were recorded, by their catalog names."""
        return tuple(gpu for name, gpu in self.heads if name == quantity and gpu != OTHER)


@dataclass(frozen=True)
class Predicted:
    """A quantity with its 90 % interval; seconds or watts."""

    value: float
    low: float
    high: float
    transferred: bool
    """Whether the card was not recorded."""


@dataclass(frozen=True)
class VendorPrediction:
    """Latency and power of the library for a problem, at the default power limit."""

    latency_s: Predicted
    power_w: Predicted | None
    """None where nobody recorded power."""
    gpus: tuple[str, ...]
    """The cards that the latency was learned on."""
    recorded_as: str | None
    """Data type and layout that were recorded, where they are not the problem's."""


@dataclass(frozen=True)
class VendorModel:
    """The model of the vendor library of one op."""

    op: str
    library: str
    """Its name, for people."""
    sets: tuple[SetModel, ...]
    """Of those that cover a problem the first that has the card is taken, else the first."""

    _predicted: dict[tuple[Problem, str], VendorPrediction | None] = field(
        default_factory=dict, repr=False, compare=False
    )
    """The last predictions, by problem and card."""

    def predict(self, problem: Problem, gpu: GPU) -> VendorPrediction | None:
        """The library's costs; None for a problem of a kind that was not recorded, or not of this card."""
        self.predict_many([problem], gpu)
        return self._predicted[problem, gpu.name]

    def predict_many(self, problems: Sequence[Problem], gpu: GPU) -> None:
        """Predicts problems of the op together, for `predict` to tell: one pass over the trees takes as long for a few
        problems as for one."""
        if len(self._predicted) > _KEPT:
            self._predicted.clear()
        together: dict[tuple[int, str, str], list[Problem]] = {}
        for problem in problems:
            if (problem, gpu.name) in self._predicted:
                continue
            covering = [place for place, entry in enumerate(self.sets) if entry.recorded.covers(problem)]
            if not covering or not rate_of(gpu, problem.dtype):
                self._predicted[problem, gpu.name] = None
                continue
            chosen = next((place for place in covering if gpu.name in self.sets[place].gpus()), covering[0])
            together.setdefault((chosen, problem.dtype, problem.layout), []).append(problem)
        for (place, _, _), alike in together.items():
            for problem, predicted in zip(alike, self._of_set(self.sets[place], alike, gpu), strict=True):
                self._predicted[problem, gpu.name] = predicted

    def _of_set(self, chosen: SetModel, problems: Sequence[Problem], gpu: GPU) -> Iterator[VendorPrediction]:
        """The predictions of problems of one data type and layout that a set covers."""
        recorded, first = chosen.recorded, problems[0]
        alike = 0.0 if recorded.exactly(first) else recorded.alike_width
        dims = {name: np.array([float(problem.sizes[name]) for problem in problems]) for name in DIMS[self.op]}
        roofline, columns = features(self.op, gpu, first.dtype, first.layout, dims, recorded.timing)
        distances = chosen.extent.distance(log_sizes(dims))
        on_grid = [all(p.sizes[name] in sizes for name, sizes in chosen.sizes.items()) for p in problems]

        def quantity(name: str, base: Array, most: float) -> list[Predicted] | None:
            transferred = (name, gpu.name) not in chosen.heads
            if (head := chosen.heads.get((name, OTHER if transferred else gpu.name))) is None:
                return None
            rows = np.stack([columns[column] for column in head.columns], axis=1)
            values = np.minimum(base * np.exp(head.trees.predict(rows)), most)
            predicted = []
            for value, distance, on in zip(values, distances, on_grid, strict=True):
                interval = head.recorded if on or transferred else head.between
                low, high = replace(interval, width=hypot(interval.width, alike)).around(value, distance)
                predicted.append(Predicted(float(value), float(low), min(float(high), most), transferred))
            return predicted

        latency = quantity("latency", roofline, np.inf)
        assert latency is not None, "every set has trees for all cards"
        nothing: list[Predicted | None] = [None] * len(problems)
        power = quantity("power", np.full(len(problems), gpu.tdp_w), gpu.tdp_w) or nothing
        recorded_as = f"{recorded.dtypes[0]}, {recorded.layouts[0]}" if alike else None
        for latency_s, power_w in zip(latency, power, strict=True):
            yield VendorPrediction(latency_s, power_w, chosen.gpus(), recorded_as)


def log_sizes(dims: Mapping[str, np.ndarray]) -> np.ndarray:
    """The logarithms of the dimensions, to base 2, (N, D), in which the extent of a recorded set is stated."""
    return np.asarray(np.log2(np.stack(list(dims.values()), axis=1)))
