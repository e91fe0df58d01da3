"""A set of recordings of stacks, and the trees that learned it: the parts of a model of stacks as its file has them."""

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from math import log2

import numpy as np

from kernrec.errors import UsageError
from kernrec.gpu import GPU
from kernrec.model.learn.conformal import Interval
from kernrec.model.learn.extent import Extent
from kernrec.model.vendor.bound import Bound, Timing, features_of, kind_of
from kernrec.model.vendor.compact_trees import CompactTrees, decompressed, expand
from kernrec.model.vendor.power_base import PowerBase
from kernrec.model.vendor.precision import rate_of
from kernrec.model.vendor.predicted import Predicted
from kernrec.model.vendor.single_calls import in_a_stream
from kernrec.model.vendor.stacks import AT
from kernrec.op import Problem
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

OTHER = "*"
"""The key of the trees for cards that were not recorded."""
STACK = "stack."
"""The beginning of the name of a feature that is 1 for one stack and 0 for the others."""


@dataclass(frozen=True)
class RecordedSet:
    """Which problems of an op were timed alike, and how."""

    name: str
    op: str
    case: str
    """Which problems of the op; a key of `CASES` of its features."""
    stacks: Mapping[str, Mapping[str, str | None]]
    """By stack, the GPUs that it was recorded on, by their catalog names, with its version if it was stated. A
    stack that ends in `@` and a version has been superseded: it answers only if that version is wanted."""
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    alike: tuple[str, ...]
    """Other data types and layouts, for which a stack takes about as long."""
    alike_width: float
    """About how long: 90 % of these are within a factor exp(`alike_width`) of what was recorded."""
    timing: Timing
    grid: tuple[str, ...]
    """Dimensions of which few sizes were recorded."""
    multiples: Mapping[str, Mapping[str, int]]
    """By stack, the dimensions whose sizes must be multiples of a number: it refuses other problems."""
    local: tuple[str, ...]
    """Stacks whose time is that of the host rather than the card's: they are told of on recorded cards alone."""
    origin: Mapping[str, str]
    """In words: `source`, `licence`, `library` and the `recorded` problems."""
    kinds: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """By stack and card the kinds (`kind_of`) that were recorded, where these are not all of the set's."""

    def exactly(self, problem: Problem) -> bool:
        """Whether the data type and layout of a problem were recorded."""
        return problem.dtype in self.dtypes and problem.layout in self.layouts

    def covers(self, problem: Problem) -> bool:
        """Whether a problem is one of these, or like one."""
        return self.accepts(problem.dtype, problem.layout) and self.has_case(problem)

    def accepts(self, dtype: str, layout: str) -> bool:
        """Whether problems in a data type and layout are among these, or like some."""
        return dtype in self.dtypes + self.alike and layout in self.layouts + self.alike

    def has_case(self, problem: Problem) -> bool:
        """Whether the dimensions of a problem are of its case."""
        return self.is_case(problem.sizes)

    @cached_property
    def is_case(self) -> Callable[[Mapping[str, int]], bool]:
        """Whether dimensions are of its case."""
        return features_of(self.op).CASES[self.case]

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """The cards that were recorded, by their catalog names."""
        return tuple(sorted({gpu for cards in self.stacks.values() for gpu in cards}))

    def stacks_on(self, gpu: GPU, problem: Problem) -> tuple[str, ...]:
        """The stacks that it can tell of on a card: those recorded there with problems of this kind; on a card without
        recordings, those recorded with such problems anywhere, but for `local` ones. All, where the card cannot compute
        in the dtype."""
        return self.stacks_recorded(gpu, problem) if rate_of(gpu, problem.dtype) else tuple(self.stacks)

    def stacks_recorded(self, gpu: GPU, problem: Problem) -> tuple[str, ...]:
        """Those of `stacks_on` on a card that can compute in the dtype."""
        kind = kind_of(self.op, problem.dtype if problem.dtype in self.dtypes else self.dtypes[0], problem.sizes)
        if (stacks := self._stacks_on.get((gpu.name, kind))) is None:
            stacks = self._stacks_on[gpu.name, kind] = self._with_kind(gpu, kind)
        return stacks

    @cached_property
    def _stacks_on(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """The answers of `stacks_on`, by card and kind."""
        return {}

    def _with_kind(self, gpu: GPU, kind: str) -> tuple[str, ...]:
        here = gpu.name in self.gpus
        return tuple(
            stack
            for stack, cards in self.stacks.items()
            if AT not in stack
            and (here or stack not in self.local)
            and any(
                kind in self.kinds.get(stack, {}).get(card, (kind,)) for card in cards if card == gpu.name or not here
            )
        )

    def refusal(self, stack: str, problem: Problem, gpu: GPU) -> str | None:
        """Why a stack does not run a problem that the set covers; None where it does."""
        if not rate_of(gpu, problem.dtype):
            return f"{gpu.title} has no {problem.dtype} arithmetic"
        return self.misaligned(stack, problem)

    def misaligned(self, stack: str, problem: Problem) -> str | None:
        """Why a stack does not run a problem on a card that can compute in its dtype; None where it does."""
        for name, step in self.multiples.get(stack, {}).items():
            if problem.sizes[name] % step:
                return f"{name} = {problem.sizes[name]} is not a multiple of {step}, as {problem.dtype} needs there"
        return None


@dataclass(frozen=True)
class Head:
    """The trees of one quantity for one card, or for those not recorded."""

    columns: tuple[str, ...]
    """The features of the trees, in order."""
    packed: Array = field(repr=False)
    """The trees as the file has them, compressed."""
    recorded: Interval
    """Calibrated on problems left out, of sizes that were recorded; on whole cards for cards not recorded."""
    between: Interval
    """Calibrated on sizes of the grid left out."""
    sustained: bool = False
    """Whether the trees correct the bound at the rate that the GPU sustains (`Timing.sustained`)."""

    @cached_property
    def column(self) -> dict[str, int]:
        """The place of each feature among the columns."""
        return {name: place for place, name in enumerate(self.columns)}

    @cached_property
    def trees(self) -> CompactTrees:
        """Expanded when they are first asked: a query needs those of one card. `UsageError` where they are damaged."""
        try:
            trees = expand(*decompressed(self.packed))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UsageError(f"the trees of a stack's model are damaged ({error})") from None
        if len(trees.feature) and trees.feature.max() >= len(self.columns):
            raise UsageError("the trees of a stack's model split on a feature that their card does not name")
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
    """(`latency` or `power`, catalog name of a card, architecture, or `OTHER`) -> trees; those of an architecture are
    for its cards that were not recorded, and of power alone."""
    floors: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By card, seconds of a call timed alone that are the host's, and the ratio of the card's work to the bound's;
    empty where calls were timed in a stream."""
    work: Extent | None = None
    """The recorded region of the logarithm of `Bound.work_s`, where there are floors."""
    power_bases: Mapping[str, PowerBase] | None = None
    """The bases that trees of power correct, by card; None where that is the power limit."""

    def off_grid(self, sizes: Mapping[str, int]) -> bool:
        """Whether a problem has a size of the grid that was not recorded."""
        return any(sizes[name] not in recorded for name, recorded in self._grid)

    @cached_property
    def _grid(self) -> list[tuple[str, frozenset[int]]]:
        return [(name, frozenset(sizes)) for name, sizes in self.sizes.items()]

    def outside(self, bound: Bound) -> Array | None:
        """How far problems lie outside of what was recorded: by the logarithms of their sizes, or by the card's work in
        them, (N,); None where none does."""
        work = None if bound.work_s is None else self.work
        if len(bound.total_s) == 1:
            inside = self.extent.has(bound.log_sizes[:, 0].tolist())
            if inside and (work is None or bound.work_s is None or work.has([log2(bound.work_s.item())])):
                return None
        distances = self.extent.distance(bound.log_sizes.T)
        if work is not None and bound.work_s is not None:
            distances = np.maximum(distances, work.distance(np.log2(bound.work_s)[:, np.newaxis]))
        return distances

    def streamed(self, call: Predicted, gpu: GPU, bound: Bound, number: int) -> Predicted:
        """A predicted call as one in a stream, where calls were timed alone. A card that was not recorded has the least
        of the floors, with its ratio."""
        if not self.floors or bound.work_s is None:
            return call
        floor_s, ratio = self.floors.get(gpu.name) or self._least_floor
        return in_a_stream(call, floor_s, ratio * float(bound.work_s[number]))

    @cached_property
    def _least_floor(self) -> tuple[float, float]:
        return min(self.floors.values())


def log_sizes(dims: Mapping[str, np.ndarray]) -> np.ndarray:
    """The logarithms of the dimensions, to base 2, (N, D), in which the extent of a recorded set is stated."""
    return np.asarray(np.log2(np.maximum(np.stack(list(dims.values()), axis=1), query.LEAST_SIZE)))
