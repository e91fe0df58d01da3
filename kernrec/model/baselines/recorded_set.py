"""Recorded sets of backends, and the trees that were trained on each set: the parts of a baseline model.

Some recorders timed one call at a time, so their times include the host's time. `in_a_stream` converts these times to
the time of a call in a stream of calls or a CUDA graph:

    stream = start + max(call - floor**2 / call, work)

Here, `start` is the start of a launch, `call` is the recorded time, and `floor` is the time of an empty call. `work` is
the lower bound times a ratio that was fitted to the recordings. The GPU's work hides part of the floor, and longer work
hides more. For example, a call of 2 `floor` becomes `start` + 1.5 `floor`. The formula agrees with additions of large
tensors on A100, V100, T4 and P4. The interval is wide, because short calls do not show how long the GPU worked.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.model.analytical.microarchitecture import LAUNCH_S, START_S
from kernrec.model.analytical.spread import INTERVAL, Estimate
from kernrec.model.baselines.bound import PowerBase, Timing, features_of
from kernrec.model.baselines.compact_trees import CompactTrees, decompressed
from kernrec.model.learn.conformal import Extent, Interval
from kernrec.op import Problem
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

NORMAL_S = LAUNCH_S + START_S
"""Seconds that a launch takes in a stream of launches."""


def in_a_stream(call: Estimate, floor_s: float, work_s: float) -> Estimate:
    """Convert the latency of a call that was timed alone to the latency in a stream of calls. `floor_s` is the seconds
    of an empty call, and `work_s` the expected seconds of work on the GPU."""
    value = min(NORMAL_S + max(call.value - floor_s * floor_s / call.value, work_s), call.value)
    low = min(value * call.low / call.value, NORMAL_S + max(call.low - floor_s, work_s / INTERVAL))
    return Estimate(value, low, call.high, call.source)


Array = np.ndarray

OTHER = "*"
"""Key of the trees for GPUs whose architecture has no trees."""
BACKEND = "stack."
"""Prefix of features that are 1 for one backend and 0 for all others, such as `stack.vLLM`."""


@dataclass(frozen=True)
class RecordedSet:
    """Recordings of one op that were timed in the same way."""

    name: str
    op: str
    case: str
    """Case of the op that the set covers: a key of `CASES` in the op's module of features."""
    backends: Mapping[str, Mapping[str, str | None]]
    """Recorded versions, keyed by backend, then by the GPU's catalog name. An unknown version is None. A backend with a
    version in its name, such as `vLLM@0.14.0`, is used only on request."""
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    alike: tuple[str, ...]
    """Unrecorded data types and layouts that take about as long as the recorded ones."""
    alike_width: float
    """Logarithmic half-width of the 90 % interval that `alike` data types and layouts add."""
    timing: Timing
    grid: tuple[str, ...]
    """Dimensions of which only a few sizes were recorded."""
    multiples: Mapping[str, Mapping[str, int]]
    """Required divisor of a size, keyed by backend, then by dimension."""
    local: tuple[str, ...]
    """Backends whose time depends on the host. They are reported only on recorded GPUs."""
    origin: Mapping[str, str]
    """Description of the recordings: `source`, `licence`, `library`, and the `recorded` problems."""
    kinds: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """Recorded kinds of problems (`kind_of`), keyed by backend, then by GPU. A missing entry means all kinds."""

    def accepts(self, dtype: str, layout: str) -> bool:
        """Return whether the set can predict problems in this data type and layout."""
        return dtype in self.dtypes + self.alike and layout in self.layouts + self.alike

    @cached_property
    def is_case(self) -> Callable[[Mapping[str, int]], bool]:
        """Return a function that checks whether the set covers a problem's dimensions."""
        return features_of(self.op).CASES[self.case]

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        return tuple(sorted({gpu for devices in self.backends.values() for gpu in devices}))

    def misaligned(self, backend: str, problem: Problem) -> str | None:
        """Return why a backend cannot run the problem's sizes, or None if it can."""
        for name, step in self.multiples.get(backend, {}).items():
            if problem.sizes[name] % step:
                return f"{name} = {problem.sizes[name]} is not a multiple of {step}, as {problem.dtype} needs there"
        return None


@dataclass(frozen=True)
class Head:
    """Trees that predict one quantity on one GPU or several GPUs."""

    columns: tuple[str, ...]
    """Names of the features, in the trees' order."""
    packed: Array = field(repr=False)
    """Compressed trees."""
    recorded: Interval
    """Interval for problems with recorded sizes."""
    between: Interval
    """Interval for problems with unrecorded sizes."""
    sustained: bool = False
    """Whether the trees correct a bound at the rate that the GPU can sustain (`Timing.sustained`)."""
    overheads_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each backend adds to the bound before the trees correct it, keyed by backend."""

    @cached_property
    def column(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.columns)}

    @cached_property
    def trees(self) -> CompactTrees:
        """Return the trees, decompressed on first use. Raise `UsageError` if they are damaged."""
        try:
            trees = CompactTrees(*decompressed(self.packed))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UsageError(f"the trees of a backend's model are damaged ({error})") from None
        if trees.features > max(len(self.columns), 1):
            raise UsageError("the trees of a backend's model split on a feature that the model's card does not list")
        return trees


@dataclass(frozen=True)
class SetModel:
    """Trees that were trained on a recorded set, with the range of the recorded problems."""

    recorded: RecordedSet
    sizes: Mapping[str, tuple[int, ...]]
    """Recorded sizes of each dimension in `RecordedSet.grid`."""
    extent: Extent
    """Range of the recorded sizes as base-2 logarithms."""
    heads: Mapping[tuple[str, str], Head]
    """Trees, keyed by quantity (`latency` or `power`) and GPU. Unrecorded GPUs use the key of their architecture or
    `OTHER`."""
    floors: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """(Seconds of an empty call, time on the GPU / `Bound.work_s`), keyed by GPU. Empty if calls were queued."""
    work: Extent | None = None
    """Range of log2(`Bound.work_s`) in the recordings, if calls were timed one at a time."""
    power_bases: Mapping[str, PowerBase] | None = None
    """Power model that the trees correct, keyed by recorded GPU. If None, trees correct the power limit."""

    def off_grid(self, sizes: Mapping[str, int]) -> bool:
        """Return whether a problem has an unrecorded size in a dimension of `RecordedSet.grid`."""
        # Libraries run other kernels for unaligned rows (no multiple of 8 elements), so count these rows as unrecorded.
        if not self._grid and self.recorded.case == "product":
            return bool(sizes["n"] % 8 or sizes["k"] % 8)
        return any(sizes[name] not in recorded for name, recorded in self._grid)

    @cached_property
    def extents(self) -> tuple[Any, Any]:
        return self.extent.in_engine, None if self.work is None else self.work.in_engine

    @cached_property
    def _grid(self) -> list[tuple[str, frozenset[int]]]:
        return [(name, frozenset(sizes)) for name, sizes in self.sizes.items()]


def log_sizes(dims: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the base-2 logarithms of sizes, (N, D)."""
    return np.asarray(np.log2(np.maximum(np.stack(list(dims.values()), axis=1), query.LEAST_SIZE)))
