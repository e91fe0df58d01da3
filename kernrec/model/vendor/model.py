"""The model of what people run today: latency and power of each stack for a problem on a GPU.

Trees correct the bound of `kernrec.model.vendor.bound`: log(measured / bound) of latency, log(power / TDP) of power, or
of products log(power / `kernrec.model.vendor.power_base`).
A recorded set is what was recorded alike; its trees tell stacks apart by a feature `stack.NAME`. Recorded cards have
trees that learned them; for any other card there are few and shallow ones, over ratios alone, whose predictions are
`transferred`; deeper ones have learned the recorded cards by heart and do worse there than the bound. Trained by
`kernrec.training.train_vendor_model`, stored by `kernrec.model.vendor.model_file`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, lru_cache
from math import hypot

import numpy as np

from kernrec.errors import UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.model.learn.conformal import Interval
from kernrec.model.learn.extent import Extent
from kernrec.model.vendor.bound import LEAST_SIZE, Bound, Timing, features, features_of, kind_of, used
from kernrec.model.vendor.compact_trees import CompactTrees, decompressed, expand
from kernrec.model.vendor.power_base import PowerBase, power_base
from kernrec.model.vendor.precision import rate_of
from kernrec.model.vendor.predicted import Predicted
from kernrec.model.vendor.single_calls import NORMAL_S, in_a_stream
from kernrec.op import Problem
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

OTHER = "*"
"""The key of the trees for cards that were not recorded."""
STACK = "stack."
"""The beginning of the name of a feature that is 1 for one stack and 0 for the others."""
_KEPT = 4096
"""Predictions that a model keeps at most."""
_KEPT_FEATURES = 256
"""Problems whose features it keeps until their power is asked."""
_MOST_RATIO = 20.0
"""Largest logarithm of a correction; only trees that no training made go beyond it."""


@dataclass(frozen=True)
class RecordedSet:
    """Which problems of an op were timed alike, and how."""

    name: str
    op: str
    case: str
    """Which problems of the op; a key of `CASES` of its features."""
    stacks: Mapping[str, Mapping[str, str | None]]
    """By stack, the cards that it was recorded on, by their catalog names, with its version where that was stated."""
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
        alike = problem.dtype in self.dtypes + self.alike and problem.layout in self.layouts + self.alike
        return alike and features_of(self.op).CASES[self.case](problem.sizes)

    def gpus(self) -> tuple[str, ...]:
        """The cards that were recorded, by their catalog names."""
        return tuple(sorted({gpu for cards in self.stacks.values() for gpu in cards}))

    def stacks_on(self, gpu: GPU, problem: Problem) -> tuple[str, ...]:
        """The stacks that it can tell of on a card: those recorded there with problems of this kind; on a card without
        recordings, those recorded with such problems anywhere, but for `local` ones. All, where the card cannot compute
        in the dtype."""
        if not rate_of(gpu, problem.dtype):
            return tuple(self.stacks)
        kind = kind_of(self.op, problem.dtype if problem.dtype in self.dtypes else self.dtypes[0], problem.sizes)
        here = gpu.name in self.gpus()
        return tuple(
            stack
            for stack, cards in self.stacks.items()
            if (here or stack not in self.local)
            and any(
                kind in self.kinds.get(stack, {}).get(card, (kind,)) for card in cards if card == gpu.name or not here
            )
        )

    def refusal(self, stack: str, problem: Problem, gpu: GPU) -> str | None:
        """Why a stack does not run a problem that the set covers; None where it does."""
        if not rate_of(gpu, problem.dtype):
            return f"{gpu.title} has no {problem.dtype} arithmetic"
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
    """(`latency` or `power`, catalog name of a card or `OTHER`) -> trees."""
    floors: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By card, seconds of a call timed alone that are the host's, and the ratio of the card's work to the bound's;
    empty where calls were timed in a stream."""
    work: Extent | None = None
    """The recorded region of the logarithm of `Bound.work_s`, where there are floors."""
    power_bases: Mapping[str, PowerBase] | None = None
    """The bases that trees of power correct, by card; None where that is the power limit."""

    def outside(self, sizes: Array, bound: Bound) -> Array:
        """How far problems lie outside of what was recorded: by the logarithms of their sizes (N, D), or by the card's
        work in them, (N,)."""
        distance: Array = self.extent.distance(sizes)
        if self.work is None or bound.work_s is None:
            return distance
        return np.asarray(np.maximum(distance, self.work.distance(np.log2(bound.work_s)[:, None])))

    def streamed(self, call: Predicted, gpu: GPU, bound: Bound, number: int) -> Predicted:
        """A predicted call as one in a stream, where calls were timed alone. A card that was not recorded has the least
        of the floors, with its ratio."""
        if not self.floors or bound.work_s is None:
            return call
        floor_s, ratio = self.floors.get(gpu.name, min(self.floors.values()))
        return in_a_stream(call, floor_s, ratio * float(bound.work_s[number]))


@dataclass(frozen=True)
class StackPrediction:
    """Latency and power of a stack for a problem, at the card's default power limit and unlocked clock."""

    stack: str
    version: str | None
    """As it was recorded on this card; None where it was not, or no version was stated."""
    latency_s: Predicted
    power_w: Predicted | None
    """None where nobody recorded power."""
    gpus: tuple[str, ...]
    """The cards that the latency was learned on."""
    recorded_as: str | None
    """Data type and layout that were recorded, where they are not the problem's."""
    busy: Mapping[str, float]
    """Seconds that `math`, `dram`, `l2` and the `launch` are busy at the rates of the data sheet; they overlap. Other
    power limits and clocks are reached by them."""


@dataclass(frozen=True)
class VendorModel:
    """The model of the stacks that run one op."""

    op: str
    sets: tuple[SetModel, ...]
    """Of those that cover a problem and have a stack, the first that has the card is taken, else one that has its
    architecture, else that with most architectures."""

    _predicted: dict[tuple[Problem, str], tuple[StackPrediction, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """The last predictions, by problem and card."""
    _timed: dict[tuple[Problem, str], list[tuple["_Timed", int]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Those whose power nobody asked yet: sets, each with the problem's place in it."""

    def __repr__(self) -> str:
        return f"<VendorModel {self.op}: {', '.join(self.stacks)} from {len(self.sets)} recorded sets>"

    @property
    def stacks(self) -> tuple[str, ...]:
        """All stacks that it can tell of."""
        return tuple(dict.fromkeys(stack for entry in self.sets for stack in entry.recorded.stacks))

    def predict(self, problem: Problem, gpu: GPU) -> tuple[StackPrediction, ...]:
        """A prediction for each stack that runs the problem, fastest first; empty where nobody recorded such problems.

        Of stacks whose set has the card recorded none is added that is recorded on other cards alone.
        """
        self.predict_many([problem], gpu)
        return self._predicted[problem, gpu.name]

    def knows(self, problem: Problem, gpu: GPU) -> bool:
        """Whether a problem was predicted before."""
        return (problem, gpu.name) in self._predicted or (problem, gpu.name) in self._timed

    def predict_latency(
        self, problem: Problem, gpu: GPU, beside: Sequence[Problem] = ()
    ) -> tuple[StackPrediction, ...]:
        """The predictions of `predict` without power, which takes as long again.

        beside: further problems of the op that will be asked about: all together take hardly longer than one.
        """
        if (problem, gpu.name) in self._predicted:
            return self._predicted[problem, gpu.name]
        self._time([problem, *beside], gpu)
        return _fastest_first(self._timed[problem, gpu.name], with_power=False)

    def outside(self, problem: Problem) -> str | None:
        """The cases that were recorded in a problem's data type, in words, where it is none of them; else None."""
        alike = [e.recorded for e in self.sets if problem.dtype in e.recorded.dtypes + e.recorded.alike]
        if any(recorded.covers(problem) for recorded in alike):
            return None
        words = getattr(features_of(self.op), "RECORDED", {})
        return " and ".join(dict.fromkeys(words[recorded.case] for recorded in alike if recorded.case in words)) or None

    def refusals(self, problem: Problem, gpu: GPU) -> Mapping[str, str]:
        """Why a stack cannot run a problem of a kind that it was recorded for, by stack; others are absent."""
        answers = {
            (stack, place): entry.recorded.refusal(stack, problem, gpu)
            for place, entry in enumerate(self.sets)
            if entry.recorded.covers(problem)
            for stack in entry.recorded.stacks_on(gpu, problem)
        }
        run = {stack for (stack, _), reason in answers.items() if reason is None}
        return {stack: reason for (stack, _), reason in answers.items() if reason is not None and stack not in run}

    def predict_many(self, problems: Sequence[Problem], gpu: GPU) -> None:
        """Predicts problems of the op together, for `predict` to tell: one pass over the trees takes as long for a few
        problems as for one."""
        if len(self._predicted) > _KEPT:
            self._predicted.clear()
        new = [problem for problem in dict.fromkeys(problems) if (problem, gpu.name) not in self._predicted]
        self._time(new, gpu)
        for problem in new:
            parts = self._timed.pop((problem, gpu.name))
            self._predicted[problem, gpu.name] = _fastest_first(parts, with_power=True)

    def _time(self, problems: Sequence[Problem], gpu: GPU) -> None:
        """Makes problems known to `_timed`."""
        if len(self._timed) > _KEPT_FEATURES:
            self._timed.clear()
        together: dict[tuple[int, tuple[str, ...], str, str], list[Problem]] = {}
        for problem in problems:
            if (problem, gpu.name) not in self._timed:
                self._timed[problem, gpu.name] = []
                for place, stacks in self._chosen(problem, gpu).items():
                    together.setdefault((place, stacks, problem.dtype, problem.layout), []).append(problem)
        for (place, stacks, _, _), alike in together.items():
            timed = _Timed.of(self.sets[place], stacks, alike, gpu)
            for number, problem in enumerate(alike):
                self._timed[problem, gpu.name].append((timed, number))

    def _chosen(self, problem: Problem, gpu: GPU) -> Mapping[int, tuple[str, ...]]:
        """The sets that predict a problem, by their place in `sets`, each with the stacks that it predicts."""
        covering = [place for place, entry in enumerate(self.sets) if entry.recorded.covers(problem)]
        covering.sort(key=lambda place: _farness(self.sets[place].recorded.gpus(), gpu))
        taken: set[str] = set()
        chosen = {}
        for place in covering:
            recorded = self.sets[place].recorded
            if taken and gpu.name not in recorded.gpus():
                break
            here = recorded.stacks_on(gpu, problem)
            runs = [stack for stack in here if stack not in taken and not recorded.refusal(stack, problem, gpu)]
            if runs:
                chosen[place] = tuple(runs)
            taken.update(here)
        return chosen


@dataclass(frozen=True)
class _Timed:
    """S stacks for N problems of one data type and layout that a set covers, on one card; power is lazy."""

    chosen: SetModel
    stacks: Sequence[str]
    gpu: GPU
    alike: float
    """Logarithmic width that the interval has more, since another data type or layout was recorded."""
    bound: Bound
    columns: Mapping[str, Array]
    """Features, (N,) or (S, 1) each."""
    distances: Array
    """From what was recorded, (N,)."""
    on_grid: Sequence[bool]
    """Whether the sizes of each problem were recorded."""

    @classmethod
    def of(cls, chosen: SetModel, stacks: Sequence[str], problems: Sequence[Problem], gpu: GPU) -> "_Timed":
        """The features of problems."""
        recorded, first = chosen.recorded, problems[0]
        names = features_of(recorded.op).DIMS
        dims = {name: np.array([float(problem.sizes[name]) for problem in problems]) for name in names}
        bound, columns = features(recorded.op, gpu, first.dtype, first.layout, dims, recorded.timing)
        columns |= {STACK + name: np.array([[float(name == stack)] for stack in stacks]) for name in recorded.stacks}
        on_grid = [all(p.sizes[name] in sizes for name, sizes in chosen.sizes.items()) for p in problems]
        alike = 0.0 if recorded.exactly(first) else recorded.alike_width
        return cls(chosen, stacks, gpu, alike, bound, columns, chosen.outside(log_sizes(dims), bound), on_grid)

    @cached_property
    def latency(self) -> list[list[Predicted]]:
        """Seconds: for each problem a list of stacks."""
        return self._quantity("latency", self.bound.total_s, np.inf, self.columns)

    @cached_property
    def power(self) -> list[list[Predicted]] | None:
        """Watts, as `latency`; None where nobody recorded power."""
        if ("power", OTHER) not in self.chosen.heads:
            return None
        seconds = np.array([[predicted.value for predicted in part] for part in self.latency]).T
        columns = {**self.columns, **used(self.bound, seconds)}
        base = np.full(seconds.shape, self.gpu.tdp_w)
        if (bases := self.chosen.power_bases) is not None:
            base = (bases.get(self.gpu.name) or power_base(self.gpu)).watts(self.bound, seconds, self.gpu.tdp_w)
        return self._quantity("power", base, self.gpu.tdp_w, columns)

    def predictions(self, number: int, with_power: bool) -> Iterator[StackPrediction]:
        """Those of one of the problems."""
        recorded = self.chosen.recorded
        recorded_as = f"{recorded.dtypes[0]}, {recorded.layouts[0]}" if self.alike else None
        busy = {name: float(seconds[number]) for name, seconds in self.bound.parts.items()}
        if self.chosen.floors:
            busy["launch"] = NORMAL_S
        latency, power, gpus = self.latency[number], self.power if with_power else None, recorded.gpus()
        for place, stack in enumerate(self.stacks):
            version, watts = recorded.stacks[stack].get(self.gpu.name), None if power is None else power[number][place]
            latency_s = self.chosen.streamed(latency[place], self.gpu, self.bound, number)
            yield StackPrediction(stack, version, latency_s, watts, gpus, recorded_as, busy)

    def _quantity(self, name: str, base: Array, most: float, columns: Mapping[str, Array]) -> list[list[Predicted]]:
        transferred = (name, self.gpu.name) not in self.chosen.heads
        head = self.chosen.heads[name, OTHER if transferred else self.gpu.name]
        rows = np.empty((len(self.stacks), len(self.on_grid), len(head.columns)), dtype=np.float32)
        for place, column in enumerate(head.columns):
            rows[:, :, place] = columns[column]
        ratios = head.trees.predict(rows.reshape(-1, len(head.columns))).reshape(rows.shape[:2])
        # Trees that learned other cards could pass the roof of this one.
        least = self.bound.parts["math"] if transferred and name == "latency" else 0.0
        values = np.clip(base * np.exp(np.clip(ratios, -_MOST_RATIO, _MOST_RATIO)), least, most)
        recorded, between = head.recorded, head.between
        if self.alike:
            recorded, between = (replace(each, width=hypot(each.width, self.alike)) for each in (recorded, between))
        return [
            _predicted(values[:, number], recorded if on or transferred else between, distance, most, transferred)
            for number, (on, distance) in enumerate(zip(self.on_grid, self.distances, strict=True))
        ]


@lru_cache(maxsize=1024)
def _farness(recorded: tuple[str, ...], gpu: GPU) -> tuple[bool, bool, int]:
    """The order of sets for a card: those that have it, then those with its architecture, then those with most."""
    architectures = {find_gpu(name).arch for name in recorded}
    return gpu.name not in recorded, gpu.arch not in architectures, -len(architectures)


def _fastest_first(parts: Sequence[tuple[_Timed, int]], with_power: bool) -> tuple[StackPrediction, ...]:
    predictions = [each for timed, number in parts for each in timed.predictions(number, with_power)]
    return tuple(sorted(predictions, key=lambda each: each.latency_s.value))


def _predicted(values: Array, interval: Interval, distance: Array, most: float, transferred: bool) -> list[Predicted]:
    """The quantity of each stack for one problem."""
    low, high = interval.around(values, distance)
    ends = zip(values.tolist(), low.tolist(), np.minimum(high, most).tolist(), strict=True)
    return [Predicted(*each, transferred) for each in ends]


def log_sizes(dims: Mapping[str, np.ndarray]) -> np.ndarray:
    """The logarithms of the dimensions, to base 2, (N, D), in which the extent of a recorded set is stated."""
    return np.asarray(np.log2(np.maximum(np.stack(list(dims.values()), axis=1), LEAST_SIZE)))
