"""Recorded sets of backends and their trees: the parts of a baseline model's file.

Calls that were timed one at a time are converted to calls in a stream. A call between two events also includes the
host's time. The time of an empty call is the floor. Work on the GPU hides the floor: in a call that takes twice the
floor, half of the floor remains (additions of large tensors on A100, V100, T4 and P4), in long calls little. Calls in a
stream or a CUDA graph only include the start of a launch:

    stream = start + max(call - floor**2 / call, work)

where the work is the bound times a ratio that fits the recordings. Recordings do not show which part of a call near the
floor the GPU took, so the interval covers both extremes.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from math import log2

import numpy as np

from kernrec.errors import UsageError
from kernrec.gpu import GPU
from kernrec.model.analytical.microarchitecture import LAUNCH_S, START_S
from kernrec.model.analytical.spread import INTERVAL, Estimate
from kernrec.model.baselines.backends import AT, supports
from kernrec.model.baselines.bound import Bound, PowerBase, Timing, features_of, kind_of, rate_of
from kernrec.model.baselines.compact_trees import CompactTrees, decompressed, expand
from kernrec.model.learn.conformal import Extent, Interval
from kernrec.op import Problem
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

NORMAL_S = LAUNCH_S + START_S
"""Seconds that the start of a launch takes in a stream, as for kernrec's kernels."""


def in_a_stream(call: Estimate, floor_s: float, work_s: float) -> Estimate:
    """Return a call's latency in a stream of calls, which never exceeds the latency of a single call.

    Args:
        call: Latency of the call timed alone.
        floor_s: Seconds of the recorder's floor.
        work_s: Expected seconds of work on the GPU.
    """
    value = min(NORMAL_S + max(call.value - floor_s * floor_s / call.value, work_s), call.value)
    low = min(value * call.low / call.value, NORMAL_S + max(call.low - floor_s, work_s / INTERVAL))
    return Estimate(value, low, call.high, call.source)


Array = np.ndarray

OTHER = "*"
"""Key of the trees for GPUs without recordings."""
BACKEND = "stack."
"""Prefix of the name of a feature that is 1 for one backend and 0 for the others."""


@dataclass(frozen=True)
class RecordedSet:
    """Problems of an op with the same timing."""

    name: str
    op: str
    case: str
    """Case of the op: a key of `CASES` in the op's module of features."""
    backends: Mapping[str, Mapping[str, str | None]]
    """Recorded GPUs by catalog name, with the version if stated, for each backend. A name that ends in `@` and a
    version is superseded, and is used only if this version is requested.
    """
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    alike: tuple[str, ...]
    """Other data types and layouts for which a backend takes about as long."""
    alike_width: float
    """Logarithmic width of the difference: 90 % of these are within a factor exp(`alike_width`) of a recording."""
    timing: Timing
    grid: tuple[str, ...]
    """Dimensions with few recorded sizes."""
    multiples: Mapping[str, Mapping[str, int]]
    """Required multiples of sizes by dimension, for each backend; the backend refuses other problems."""
    local: tuple[str, ...]
    """Backends whose time depends on the host instead of the GPU. They are only reported on recorded GPUs."""
    origin: Mapping[str, str]
    """Description: `source`, `licence`, `library` and the `recorded` problems."""
    kinds: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """Recorded kinds (`kind_of`) by backend and GPU, if only a part of the set's kinds was recorded."""

    def exactly(self, problem: Problem) -> bool:
        """Return whether the data type and layout of a problem were recorded."""
        return problem.dtype in self.dtypes and problem.layout in self.layouts

    def covers(self, problem: Problem) -> bool:
        """Return whether the set covers a problem: its data type, layout (or similar ones) and dimensions."""
        return self.accepts(problem.dtype, problem.layout) and self.has_case(problem)

    def accepts(self, dtype: str, layout: str) -> bool:
        """Return whether the set has problems in this data type and layout, or in a similar data type and layout."""
        return dtype in self.dtypes + self.alike and layout in self.layouts + self.alike

    def has_case(self, problem: Problem) -> bool:
        """Return whether the recorded set covers a problem with these dimensions."""
        return self.is_case(problem.sizes)

    @cached_property
    def is_case(self) -> Callable[[Mapping[str, int]], bool]:
        """Return the function that checks whether the recorded set covers given dimensions."""
        return features_of(self.op).CASES[self.case]

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """Return the recorded GPUs, by catalog name."""
        return tuple(sorted({gpu for devices in self.backends.values() for gpu in devices}))

    def backends_on(self, gpu: GPU, problem: Problem) -> tuple[str, ...]:
        """Return the backends with predictions on a GPU: backends recorded on this GPU with problems of this kind.

        On a GPU without recordings, return all backends that support it and were recorded with such problems anywhere,
        except `local` backends. If the GPU cannot compute in the dtype, return all backends.
        """
        return self.backends_recorded(gpu, problem) if rate_of(gpu, problem.dtype) else tuple(self.backends)

    def backends_recorded(self, gpu: GPU, problem: Problem) -> tuple[str, ...]:
        """Return the backends as in `backends_on`, for a GPU that can compute in the dtype."""
        kind = kind_of(self.op, problem.dtype if problem.dtype in self.dtypes else self.dtypes[0], problem.sizes)
        if (backends := self._backends_on.get((gpu.name, kind))) is None:
            backends = self._backends_on[gpu.name, kind] = self._with_kind(gpu, kind)
        return backends

    @cached_property
    def _backends_on(self) -> dict[tuple[str, str], tuple[str, ...]]:
        return {}

    def _with_kind(self, gpu: GPU, kind: str) -> tuple[str, ...]:
        here = gpu.name in self.gpus
        return tuple(
            backend
            for backend, devices in self.backends.items()
            if AT not in backend
            and supports(backend, gpu.sm)
            and (here or backend not in self.local)
            and any(
                kind in self.kinds.get(backend, {}).get(device, (kind,))
                for device in devices
                if device == gpu.name or not here
            )
        )

    def refusal(self, backend: str, problem: Problem, gpu: GPU) -> str | None:
        """Return the reason why a backend does not run a problem of the set; None if it runs the problem."""
        if not rate_of(gpu, problem.dtype):
            return f"{gpu.title} has no {problem.dtype} arithmetic"
        return self.misaligned(backend, problem)

    def misaligned(self, backend: str, problem: Problem) -> str | None:
        """Return the reason why a problem's sizes prevent a backend from running it; None if they do not."""
        for name, step in self.multiples.get(backend, {}).items():
            if problem.sizes[name] % step:
                return f"{name} = {problem.sizes[name]} is not a multiple of {step}, as {problem.dtype} needs there"
        return None


@dataclass(frozen=True)
class Head:
    """Trees of one quantity for one GPU, or for all GPUs without recordings."""

    columns: tuple[str, ...]
    """Features of the trees, in order."""
    packed: Array = field(repr=False)
    """Trees in the compressed form of the file."""
    recorded: Interval
    """Interval calibrated on held-out problems of recorded sizes; for unrecorded GPUs, on held-out GPUs."""
    between: Interval
    """Interval calibrated on held-out sizes of the grid."""
    sustained: bool = False
    """Whether the trees correct the bound at the rate that the GPU sustains (`Timing.sustained`)."""

    @cached_property
    def column(self) -> dict[str, int]:
        """Return the index of each feature among the columns."""
        return {name: place for place, name in enumerate(self.columns)}

    @cached_property
    def trees(self) -> CompactTrees:
        """Return the trees, expanded on first use. Raises `UsageError` if they are damaged."""
        try:
            trees = expand(*decompressed(self.packed))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UsageError(f"the trees of a backend's model are damaged ({error})") from None
        if len(trees.feature) and trees.feature.max() >= len(self.columns):
            raise UsageError("the trees of a backend's model split on a feature that the model's card does not list")
        return trees


@dataclass(frozen=True)
class SetModel:
    """Trees and recorded region of one recorded set."""

    recorded: RecordedSet
    sizes: Mapping[str, tuple[int, ...]]
    """Recorded sizes of each dimension in `RecordedSet.grid`."""
    extent: Extent
    """Recorded region of the logarithms of the dimensions."""
    heads: Mapping[tuple[str, str], Head]
    """Trees by quantity (`latency` or `power`) and GPU, architecture or `OTHER`. Trees of an architecture predict only
    power, for its GPUs without recordings.
    """
    floors: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Host seconds of a call that was timed alone, and the ratio of the GPU's work to the bound, by GPU. Empty if calls
    were timed in a stream.
    """
    work: Extent | None = None
    """Recorded region of the logarithm of `Bound.work_s`, if there are floors."""
    power_bases: Mapping[str, PowerBase] | None = None
    """Bases that trees of power correct, by GPU; None for the power limit."""

    def off_grid(self, sizes: Mapping[str, int]) -> bool:
        """Return whether a problem's size was not recorded, in a dimension with few recorded sizes."""
        return any(sizes[name] not in recorded for name, recorded in self._grid)

    @cached_property
    def _grid(self) -> list[tuple[str, frozenset[int]]]:
        return [(name, frozenset(sizes)) for name, sizes in self.sizes.items()]

    def outside(self, bound: Bound) -> Array | None:
        """Return the distance of problems from the recorded sizes or work, (N,); None if all are inside."""
        work = None if bound.work_s is None else self.work
        if len(bound.total_s) == 1:
            inside = self.extent.has(bound.log_sizes[:, 0].tolist())
            if inside and (work is None or bound.work_s is None or work.has([log2(bound.work_s.item())])):
                return None
        distances = self.extent.distance(bound.log_sizes.T)
        if work is not None and bound.work_s is not None:
            distances = np.maximum(distances, work.distance(np.log2(bound.work_s)[:, np.newaxis]))
        return distances

    def streamed(self, call: Estimate, gpu: GPU, bound: Bound, number: int) -> Estimate:
        """Convert the time of a single call to a call in a stream; unrecorded GPUs use the lowest floor and ratio."""
        if not self.floors or bound.work_s is None:
            return call
        floor_s, ratio = self.floors.get(gpu.name) or self._least_floor
        return in_a_stream(call, floor_s, ratio * float(bound.work_s[number]))

    @cached_property
    def _least_floor(self) -> tuple[float, float]:
        return min(self.floors.values())


def log_sizes(dims: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the logarithms of the dimensions, to base 2, (N, D), as in the extent of a recorded set."""
    return np.asarray(np.log2(np.maximum(np.stack(list(dims.values()), axis=1), query.LEAST_SIZE)))
