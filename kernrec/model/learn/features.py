"""The features of a candidate that models take: ratios that mean the same on every GPU and shape.

A feature never identifies a GPU or a shape. Absolute times, counts and sizes would be fingerprints that a model
memorizes and that do not transfer to another GPU. So times are ratios to the roofline and to other components of the
prior, work is per output and per thread, and resources are shares of what the GPU has.

    schedule   the config: its tunables, threads, blocks, and the waves in which they run
    static     the demand of its code on the GPU: pipe work over the roofline's, registers, shared memory
    prior      how the analytic prior divides the time
    problem    the problem relative to the GPU: arithmetic intensity, compulsory bytes

`matrix` computes the features of a whole space, (C, F), with NaN for what is not known: a kernel without a static
profile has schedule and problem features only. `FEATURES` documents all columns but the tunables, which come last, each
in two columns:

    tunable.<name>    log2(1 + value)
    alignment.<name>  log2 of the largest power of two that divides the value, 0 for values below 1: full warps, full
                      sectors and conflict-free shared-memory banks depend on divisibility, not on size

A change of the meaning, order or number of features increases `VERSION`: a model needs the version it was trained with.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.demand import PIPES
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

VERSION = 2
GROUPS = ("schedule", "static", "prior", "problem")
TUNABLE = "tunable."
ALIGNMENT = "alignment."


@dataclass(frozen=True)
class ModelInputs:
    """Inputs of the features of C candidates on one GPU and problem; arrays (C,), None where not known."""

    gpu: GPU
    flops: float | Array
    """Arithmetic of the problem, or of each candidate's."""
    bytes: float | Array
    """Compulsory traffic of the problem, or of each candidate's."""
    tunables: Mapping[str, Array]
    """Value of each tunable."""
    latency_s: Array
    """Latency by the prior."""
    power_w: Array
    """The prior's mean power."""
    threads: Array | None = None
    """Threads per block of the longest launch."""
    blocks: Array | None = None
    """Blocks of the longest launch."""
    resident: Array | None = None
    """Blocks that an SM holds at the same time."""
    registers: Array | None = None
    """Registers of a thread."""
    shared_bytes: Array | None = None
    """Shared memory per block."""
    pipe_s: Array | None = None
    """Seconds that each pipe is busy, (P, C)."""
    busy_s: Array | None = None
    """Seconds that the pipes are busy, by the prior."""
    wait_s: Array | None = None
    """Seconds of latency, by the prior."""
    l2_s: Array | None = None
    """Seconds that L2 bandwidth takes."""
    dram_s: Array | None = None
    """Seconds that DRAM bandwidth takes."""
    core_s: Array | None = None
    """Seconds of the core clock domain."""
    fixed_s: Array | None = None
    """Seconds of launch overhead."""
    clock_hz: Array | None = None
    """Core clock that the power limit leaves; for the least time, not a feature."""
    capped: Array | None = None
    """Whether the power limit lowers the clock; for the prior's interval, not a feature."""
    core_j: Array | None = None
    """Joules of core events at nominal voltage; for calibrating the prior, not a feature."""
    dram_j: Array | None = None
    """Joules of DRAM traffic; for calibrating the prior, not a feature."""

    def __len__(self) -> int:
        return len(self.latency_s)


class _Quantities:
    """Quantities that several features share, each computed once; unknown ones are NaN."""

    def __init__(self, inputs: ModelInputs) -> None:
        gpu = inputs.gpu
        self.inputs = inputs
        self.gpu = gpu
        self.unknown = np.full(len(inputs), np.nan)
        # The time of the problem's arithmetic at the f32 peak, and of its bytes: the lower bound of any kernel.
        self.flops = np.maximum(inputs.flops, 1.0)
        self.compute_s = self.flops / gpu.peak_flops("f32")
        self.traffic_s = inputs.bytes / gpu.memory_bandwidth
        self.roofline_s = np.maximum(self.compute_s, self.traffic_s)
        self.threads = self.or_nan(inputs.threads)
        self.blocks = self.or_nan(inputs.blocks)
        self.resident = self.or_nan(inputs.resident)
        self.warps = np.ceil(self.threads / 32.0)
        self.waves = self.blocks / (gpu.sms * np.maximum(self.resident, 1.0))
        self.core_s = self.or_nan(inputs.core_s)
        self.busy_s = self.or_nan(inputs.busy_s)

    def or_nan(self, values: Array | None) -> Array:
        return self.unknown if values is None else np.asarray(values, dtype=np.float64)

    def pipe(self, name: str) -> Array:
        return self.unknown if self.inputs.pipe_s is None else self.inputs.pipe_s[PIPES.index(name)]

    def same(self, ratio: float | Array) -> Array:
        """log2 of a ratio that all candidates of a problem have in common."""
        return np.full(len(self.inputs), np.log2(ratio))

    def log_ratio(self, above: Array | float, below: Array | float) -> Array:
        """log2 of a ratio, kept within a factor of a million."""
        return np.asarray(np.log2(np.clip(np.divide(above, np.maximum(below, 1e-30)), 1e-6, 1e6)))


@dataclass(frozen=True)
class Feature:
    """One column of the feature matrix."""

    name: str
    group: str
    unit: str
    """`log2` for the logarithm of a ratio."""
    meaning: str
    formula: str
    """How it is computed from the fields of `ModelInputs`."""
    value: Callable[[_Quantities], Array] = field(repr=False)


def _pipe_features() -> list[Feature]:
    pipe_features = []
    for pipe in PIPES:
        short = pipe.replace(" ", "_").lower()
        pipe_features += [
            Feature(
                f"{short}_work", "static", "log2", f"time of the {pipe} pipe over the roofline's",
                f"log2(pipe_s[{pipe}] / roofline_s)", lambda q, pipe=pipe: q.log_ratio(q.pipe(pipe), q.roofline_s),  # type: ignore[misc]
            ),
            Feature(
                f"{short}_share", "prior", "1", f"time of the {pipe} pipe over that of all busy pipes",
                f"pipe_s[{pipe}] / busy_s", lambda q, pipe=pipe: q.pipe(pipe) / np.maximum(q.busy_s, 1e-30),  # type: ignore[misc]
            ),
        ]  # fmt: skip
    return pipe_features


FEATURES: tuple[Feature, ...] = (
    Feature("warps", "schedule", "log2", "warps of a block", "log2(ceil(threads / 32))", lambda q: np.log2(q.warps)),
    Feature(
        "lanes_used", "schedule", "1", "share of the lanes of its warps that a block uses", "threads / (32 * warps)",
        lambda q: q.threads / (32.0 * q.warps),
    ),
    Feature(
        "blocks_per_sm", "schedule", "log2", "blocks that each SM runs", "log2(blocks / SMs)",
        lambda q: q.log_ratio(q.blocks, float(q.gpu.sms)),
    ),
    Feature(
        "flops_per_thread", "schedule", "log2 FLOP", "arithmetic of a thread", "log2(flops / (blocks * threads))",
        lambda q: np.log2(q.flops / (q.blocks * q.threads)),
    ),
    Feature(
        "resident_blocks", "static", "log2", "blocks that an SM holds at once", "log2(resident)",
        lambda q: np.log2(np.maximum(q.resident, 1.0)),
    ),
    Feature(
        "occupancy", "static", "1", "resident warps over the most an SM holds", "resident * warps / max_warps",
        lambda q: q.resident * q.warps / q.gpu.limits.max_warps_per_sm,
    ),
    Feature(
        "waves", "static", "log2", "rounds of resident blocks", "log2(blocks / (SMs * resident))",
        lambda q: q.log_ratio(q.waves, 1.0),
    ),
    Feature(
        "last_wave", "static", "1", "share of the rounds' places that hold a block", "waves / ceil(waves)",
        lambda q: q.waves / np.maximum(np.ceil(q.waves), 1.0),
    ),
    Feature(
        "registers", "static", "1", "registers of a thread over the most it may have", "registers / 255",
        lambda q: q.or_nan(q.inputs.registers) / q.gpu.limits.max_registers_per_thread,
    ),
    Feature(
        "shared_memory", "static", "1", "shared memory of resident blocks over an SM's",
        "resident * shared_bytes / smem_per_sm",
        lambda q: q.resident * q.or_nan(q.inputs.shared_bytes) / q.gpu.limits.smem_per_sm,
    ),
    *_pipe_features(),
    Feature(
        "prior_over_roofline", "prior", "log2", "the prior's latency over the roofline's",
        "log2(latency_s / roofline_s)", lambda q: q.log_ratio(q.inputs.latency_s, q.roofline_s),
    ),
    Feature(
        "wait_share", "prior", "log2", "latency of blocks over time of pipes", "log2(wait_s / busy_s)",
        lambda q: q.log_ratio(q.or_nan(q.inputs.wait_s), q.busy_s),
    ),
    Feature(
        "l2_share", "prior", "1", "time at L2's bandwidth over core time", "l2_s / core_s",
        lambda q: q.or_nan(q.inputs.l2_s) / q.core_s,
    ),
    Feature(
        "dram_share", "prior", "1", "time at DRAM's bandwidth over latency", "dram_s / latency_s",
        lambda q: q.or_nan(q.inputs.dram_s) / q.inputs.latency_s,
    ),
    Feature(
        "launch_share", "prior", "1", "launch overhead over latency", "fixed_s / latency_s",
        lambda q: q.or_nan(q.inputs.fixed_s) / q.inputs.latency_s,
    ),
    Feature(
        "traffic_excess", "prior", "log2", "bytes past L2 over compulsory bytes", "log2(dram_s / (bytes / bandwidth))",
        lambda q: q.log_ratio(q.or_nan(q.inputs.dram_s), q.traffic_s),
    ),
    Feature(
        "power_over_limit", "prior", "1", "the prior's mean power over the TDP", "power_w / tdp_w",
        lambda q: q.inputs.power_w / q.gpu.tdp_w,
    ),
    Feature(
        "intensity", "problem", "log2", "arithmetic intensity of the problem over the GPU's balance",
        "log2(compute_s / (bytes / bandwidth))", lambda q: q.same(q.compute_s / q.traffic_s),
    ),
    Feature(
        "footprint", "problem", "log2", "compulsory bytes over the L2's size", "log2(bytes / l2_bytes)",
        lambda q: q.same(q.inputs.bytes / q.gpu.l2_bytes),
    ),
)  # fmt: skip
"""Every column but the tunables, in order."""


def names(tunables: Sequence[str] = (), groups: Sequence[str] = GROUPS) -> tuple[str, ...]:
    """The names of the columns: the features of `groups` in order, then the tunables if `schedule` is one of them."""
    fixed = tuple(feature.name for feature in FEATURES if feature.group in groups)
    if "schedule" not in groups:
        return fixed
    return fixed + tuple(prefix + name for prefix in (TUNABLE, ALIGNMENT) for name in tunables)


_BY_NAME = {feature.name: feature for feature in FEATURES}


def parts(columns: Sequence[str]) -> Array:
    """The group of each column, (F,), as its position in `GROUPS`; tunables belong to `schedule`."""
    return np.array([GROUPS.index(_BY_NAME[name].group if name in _BY_NAME else "schedule") for name in columns])


def _alignment(values: Array) -> Array:
    """log2 of the largest power of two that divides each value; 0 for values below 1, NaN for unknown ones."""
    whole = np.nan_to_num(values).astype(np.int64)
    power = np.log2(np.where(whole > 0, whole & -whole, 1))
    return np.where(np.isnan(values), np.nan, power)


def matrix(inputs: ModelInputs, columns: Sequence[str]) -> Array:
    """The feature matrix of candidates.

    Args:
        inputs: the C candidates.
        columns: names of F features, as from `names`.

    Returns:
        The features, (C, F), float32; NaN where an input is not known or the kernel does not have a tunable.
    """
    quantities = _Quantities(inputs)
    rows = np.empty((len(columns), len(inputs)))
    for i, name in enumerate(columns):
        kind, dot, tunable = name.partition(".")
        if not dot:
            rows[i] = _BY_NAME[name].value(quantities)
        elif (values := inputs.tunables.get(tunable)) is None:
            rows[i] = np.nan
        else:
            rows[i] = np.log2(1.0 + np.maximum(values, 0)) if kind + dot == TUNABLE else _alignment(values)
    return np.ascontiguousarray(rows.T, dtype=np.float32)
