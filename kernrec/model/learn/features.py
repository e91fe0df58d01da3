"""Features of a candidate for trained models: ratios that have the same meaning on every GPU and for every shape.

Models would memorize absolute times, counts and sizes, which identify a GPU or a shape. So times are divided by the
roofline or by other times, work is per output or per thread, and resources are fractions of the GPU's resources.

`FEATURES` documents all columns except those of tunables, which come last:

    tunable.<name>    log2(1 + value)
    alignment.<name>  log2 of the largest power of two that divides the value, or 0 for values below 1; full warps,
                      full sectors and conflict-free shared-memory banks depend on divisibility, not on size

Increase `VERSION` if the meaning, order or number of features changes.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.analytical.demand import PIPES
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

VERSION = 2
GROUPS = ("schedule", "static", "model", "problem")
TUNABLE = "tunable."
ALIGNMENT = "alignment."


@dataclass(frozen=True)
class Feature:
    """Column of the feature matrix: the ratio of two quantities, `above` and `below`."""

    name: str
    group: str
    unit: str
    """Unit of the feature. It begins with `log2` if the feature is the logarithm of the ratio."""
    meaning: str
    above: str
    below: str = "1"
    bounded: bool = False
    """Whether to limit the ratio to the range from 1e-6 to 1e6, because a quantity can be 0."""

    @property
    def logarithmic(self) -> bool:
        return self.unit.startswith("log2")


def _pipe_features() -> list[Feature]:
    features = []
    for pipe in PIPES:
        short = pipe.replace(" ", "_").lower()
        features += [
            Feature(
                f"{short}_work", "static", "log2", f"time of the {pipe} pipe / roofline time",
                f"pipe_s[{pipe}]", "roofline_s", bounded=True,
            ),
            Feature(
                f"{short}_share", "model", "1", f"time of the {pipe} pipe / time of all busy pipes",
                f"pipe_s[{pipe}]", "max(busy_s, 1e-30)",
            ),
        ]  # fmt: skip
    return features


_INPUTS = (
    "latency_s", "power_w", "energy_j", "clock_hz", "static_j", "clocked_j", "regime",
    "core_s", "dram_s", "fixed_s", "core_j", "dram_j",
    "threads", "resident", "registers", "shared_bytes",
    "flops", "bytes", "blocks", "busy_s", "wait_s", "l2_s",
    *(f"pipe_s[{pipe}]" for pipe in PIPES),
)  # fmt: skip
QUANTITIES = (
    *_INPUTS,
    "1", "SMs", "max_warps", "max_registers", "smem_per_sm", "tdp_w", "l2_bytes",
    "max(flops, 1)", "compute_s", "traffic_s", "roofline_s", "warps", "lanes", "all_threads",
    "max(resident, 1)", "resident_warps", "resident_bytes", "waves", "rounds", "max(busy_s, 1e-30)",
)  # fmt: skip
"""Names of the inputs, properties of the GPU, and derived quantities. Features are ratios of these quantities.

- The analytical model predicts times, energies and powers, summed over all launches of a config. `clocked_j` (under the
  power limit) and `core_j` (at nominal voltage) are dynamic energies of the core. `wait_s` is the time that blocks wait
  for memory, barriers or results. `l2_s` and `dram_s` are the times of the traffic at full bandwidth. `core_s` scales
  with the core clock, and `fixed_s` is the overhead of launches.
- Sizes and counts describe the longest launch: `threads` and `shared_bytes` of a block, and `registers` of a thread.
  `resident` is the number of blocks that an SM can hold at the same time.
- `compute_s` (at the f32 peak) and `traffic_s` (of the problem's bytes) are lower bounds on the time of any kernel.
  `roofline_s` is the larger bound. `lanes` is the number of lanes in a block's warps. `waves` is the number of rounds
  in which the SMs run the blocks, and `rounds` is `waves` rounded up to an integer.
"""
_ROW = {name: row for row, name in enumerate(QUANTITIES)}
_ROWS: Mapping[str, int | slice] = {**_ROW, "pipe_s": slice(_ROW[f"pipe_s[{PIPES[0]}]"], len(_INPUTS))}


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """Quantities of C candidates on one GPU from the analytical model. Each of `QUANTITIES` is an attribute."""

    gpu: GPU
    quantities: Array
    """One row for each of `QUANTITIES`. Unknown values are NaN. Evaluating features overwrites derived quantities."""
    tunables: Mapping[str, Array]
    """Values of each tunable."""

    @classmethod
    def of(cls, gpu: GPU, tunables: Mapping[str, Array], count: int, **quantities: float | Array) -> "ModelInputs":
        """Create the inputs of `count` candidates. Quantities without a keyword argument are NaN (unknown)."""
        return cls(gpu, np.full((len(QUANTITIES), count), np.nan), tunables).changed(**quantities)

    def changed(self, **quantities: float | Array) -> "ModelInputs":
        """Return a copy in which each keyword argument replaces the quantity of the same name."""
        rows = self.quantities.copy()
        for name, values in quantities.items():
            rows[_ROWS[name]] = values
        return ModelInputs(self.gpu, rows, self.tunables)

    def __getattr__(self, name: str) -> Array:
        if name not in _ROWS:
            raise AttributeError(name)
        return np.asarray(self.quantities[_ROWS[name]])

    def __len__(self) -> int:
        return int(self.quantities.shape[1])


FEATURES: tuple[Feature, ...] = (
    Feature("warps", "schedule", "log2", "warps of a block", "warps"),
    Feature("lanes_used", "schedule", "1", "share of the lanes of its warps that a block uses", "threads", "lanes"),
    Feature("blocks_per_sm", "schedule", "log2", "blocks that each SM runs", "blocks", "SMs", bounded=True),
    Feature("flops_per_thread", "schedule", "log2 FLOP", "arithmetic of a thread", "max(flops, 1)", "all_threads"),
    Feature("resident_blocks", "static", "log2", "blocks that an SM holds at once", "max(resident, 1)"),
    Feature("occupancy", "static", "1", "resident warps over the most an SM holds", "resident_warps", "max_warps"),
    Feature("waves", "static", "log2", "rounds of resident blocks", "waves", bounded=True),
    Feature("last_wave", "static", "1", "share of the rounds' places that hold a block", "waves", "rounds"),
    Feature("registers", "static", "1", "registers of a thread over their limit", "registers", "max_registers"),
    Feature(
        "shared_memory", "static", "1", "shared memory of resident blocks over an SM's", "resident_bytes",
        "smem_per_sm",
    ),
    *_pipe_features(),
    Feature(
        "prior_over_roofline", "model", "log2", "predicted latency / roofline latency", "latency_s", "roofline_s",
        bounded=True,
    ),
    Feature("wait_share", "model", "log2", "latency of blocks over time of pipes", "wait_s", "busy_s", bounded=True),
    Feature("l2_share", "model", "1", "time at L2's bandwidth over core time", "l2_s", "core_s"),
    Feature("dram_share", "model", "1", "time at DRAM's bandwidth over latency", "dram_s", "latency_s"),
    Feature("launch_share", "model", "1", "launch overhead over latency", "fixed_s", "latency_s"),
    Feature(
        "traffic_excess", "model", "log2", "bytes past L2 over compulsory bytes", "dram_s", "traffic_s", bounded=True
    ),
    Feature("power_over_limit", "model", "1", "the predicted mean power over the TDP", "power_w", "tdp_w"),
    Feature(
        "intensity", "problem", "log2", "arithmetic intensity of the problem over the GPU's balance", "compute_s",
        "traffic_s",
    ),
    Feature("footprint", "problem", "log2", "compulsory bytes over the L2's size", "bytes", "l2_bytes"),
)  # fmt: skip
"""All columns of the feature matrix except for the tunables, in order."""


def names(tunables: Sequence[str] = (), groups: Sequence[str] = GROUPS) -> tuple[str, ...]:
    """Return the names of the features of some groups. The group `schedule` includes the features of tunables."""
    fixed = tuple(feature.name for feature in FEATURES if feature.group in groups)
    if "schedule" not in groups:
        return fixed
    return fixed + tuple(prefix + name for prefix in (TUNABLE, ALIGNMENT) for name in tunables)


_BY_NAME = {feature.name: feature for feature in FEATURES}


def parts(columns: Sequence[str]) -> Array:
    """Return each column's index in `GROUPS`."""
    return np.array([GROUPS.index(_BY_NAME[name].group if name in _BY_NAME else "schedule") for name in columns])


def _alignment(values: Array) -> Array:
    """Return log2 of the largest power of two that divides each value."""
    whole = np.nan_to_num(values).astype(np.int64)
    power = np.log2(np.where(whole > 0, whole & -whole, 1))
    return np.where(np.isnan(values), np.nan, power)


def matrix(inputs: ModelInputs, columns: Sequence[str]) -> Array:
    """Return the features of C candidates as a float32 array of shape (C, F). Unknown features are NaN."""
    filled = of_tunables(inputs.tunables, columns, len(inputs))
    plan_of(inputs.gpu, columns).fill(inputs.quantities, filled)
    return filled


def of_tunables(tunables: Mapping[str, Array], columns: Sequence[str], count: int) -> Array:
    """Return only the features of tunables, array of shape (C, F). All other columns are NaN."""
    filled = np.full((count, len(columns)), np.nan, dtype=np.float32)
    for place, name in enumerate(columns):
        kind, _, tunable = name.partition(".")
        if tunable and (values := tunables.get(tunable)) is not None:
            whole = kind + "." == TUNABLE
            filled[:, place] = np.log2(1.0 + np.maximum(values, 0)) if whole else _alignment(values)
    return filled


def plan_of(gpu: GPU, columns: Sequence[str]) -> Any:
    """Return an engine object that computes all features in `columns` except tunables."""
    limits = gpu.limits
    figures = (
        1.0, gpu.sms, limits.max_warps_per_sm, limits.max_registers_per_thread, limits.smem_per_sm, gpu.tdp_w,
        gpu.l2_bytes, gpu.peak_flops("f32"), gpu.memory_bandwidth,
    )  # fmt: skip
    return query.FeaturePlan(np.array(figures, dtype=np.float64), _ratios(tuple(columns)))


@lru_cache(maxsize=64)
def _ratios(columns: tuple[str, ...]) -> Array:
    ratios = [(_BY_NAME[name], place) for place, name in enumerate(columns) if "." not in name]
    rows = [(_ROW[f.above], _ROW[f.below], place, f.bounded, f.logarithmic) for f, place in ratios]
    return np.array(rows, dtype=np.int64).reshape(-1, 5)


_TUNABLE = "unaligned"
ROW_KINDS = {0: "rows of 16 elements", 8: "rows of 16 bytes"}
"""Alignments of matrix rows in the training data, keyed by the value of the tunable `unaligned`."""
OTHER_ROWS = "other rows"


def row_kind(tunables: Mapping[str, np.ndarray], row: int = 0) -> str:
    """Return the row alignment that a config is made for, or an empty text if no tunable states the alignment."""
    values = tunables.get(_TUNABLE)
    return "" if values is None or row >= len(values) else ROW_KINDS.get(int(values[row]), OTHER_ROWS)
