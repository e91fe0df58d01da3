"""What the learner is told of a candidate: ratios that mean the same on every GPU and shape.

A feature never names a GPU or a shape: absolute times, counts and sizes would be fingerprints that a model memorises
and that carry nothing to a GPU it has not seen. So times come as ratios to the roofline and to the prior's other
components, work as per output and per thread, resources as shares of what the GPU has.

    schedule   what the config says: its tunables, threads, blocks, the waves in which they run
    static     what its code asks of the GPU: pipe work over the roofline's, registers, shared memory
    prior      how the analytic prior divides the time
    problem    the problem against the GPU: intensity, footprint

`matrix` gives a whole space at once, (C, F), NaN for what is not known: a kernel without a static profile has schedule
and problem features alone. `FEATURES` is the documentation as data; tunables come after it, each twice:

    tunable.<name>    log2(1 + value)
    alignment.<name>  log2 of the largest power of two that divides the value, 0 for values below 1: full warps, whole
                      sectors and shared-memory banks without conflicts are matters of divisibility, not of size

A change of meaning, order or number raises `VERSION`: a model fits the version that it was trained on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.demand import PIPES

Array = np.ndarray

VERSION = 2
GROUPS = ("schedule", "static", "prior", "problem")
TUNABLE = "tunable."
ALIGNMENT = "alignment."


@dataclass(frozen=True)
class ModelInputs:
    """What is known of C candidates on one GPU and problem; arrays (C,), None where it is not known.

    tunables: value of each. flops, bytes: of the problem, arithmetic and compulsory traffic. latency_s, power_w: the
    prior's estimate, under which nothing else of the prior is needed.
    threads, blocks: of the longest launch. resident: blocks on an SM. registers: per thread. shared_bytes: per block.
    pipe_s (P, C): time that each pipe is busy. busy_s, wait_s: time of the pipes and of latency, as the prior sees it.
    l2_s, dram_s, core_s: time at L2's and DRAM's bandwidth, and of the core domain. fixed_s: launch overhead.
    core_j, dram_j: energy of the core's events at nominal voltage, and of DRAM traffic; for calibrating the prior, no
    feature is made of them.
    """

    gpu: GPU
    flops: float
    bytes: float
    tunables: Mapping[str, Array]
    latency_s: Array
    power_w: Array
    threads: Array | None = None
    blocks: Array | None = None
    resident: Array | None = None
    registers: Array | None = None
    shared_bytes: Array | None = None
    pipe_s: Array | None = None
    busy_s: Array | None = None
    wait_s: Array | None = None
    l2_s: Array | None = None
    dram_s: Array | None = None
    core_s: Array | None = None
    fixed_s: Array | None = None
    core_j: Array | None = None
    dram_j: Array | None = None

    def __len__(self) -> int:
        return len(self.latency_s)


class _Quantities:
    """The inputs with what several features share, each computed once; what is not known is NaN."""

    def __init__(self, inputs: ModelInputs) -> None:
        gpu = inputs.gpu
        self.inputs = inputs
        self.gpu = gpu
        self.nothing = np.full(len(inputs), np.nan)
        # The time of the problem's arithmetic at the f32 peak, or of its bytes: what nothing can beat.
        self.compute_s = max(inputs.flops, 1.0) / gpu.peak_flops("f32")
        self.traffic_s = inputs.bytes / gpu.memory_bandwidth
        self.roofline_s = max(self.compute_s, self.traffic_s)
        self.threads = self.known(inputs.threads)
        self.blocks = self.known(inputs.blocks)
        self.resident = self.known(inputs.resident)
        self.warps = np.ceil(self.threads / 32.0)
        self.waves = self.blocks / (gpu.sms * np.maximum(self.resident, 1.0))
        self.core_s = self.known(inputs.core_s)
        self.busy_s = self.known(inputs.busy_s)

    def known(self, values: Array | None) -> Array:
        return self.nothing if values is None else np.asarray(values, dtype=np.float64)

    def pipe(self, name: str) -> Array:
        return self.nothing if self.inputs.pipe_s is None else self.inputs.pipe_s[PIPES.index(name)]

    def same(self, ratio: float) -> Array:
        """log2 of a ratio that all candidates have in common."""
        return np.full(len(self.inputs), np.log2(ratio))

    def log_ratio(self, above: Array | float, below: Array | float) -> Array:
        """log2 of a ratio, kept within a factor of a million."""
        return np.log2(np.clip(np.divide(above, np.maximum(below, 1e-30)), 1e-6, 1e6))


@dataclass(frozen=True)
class Feature:
    """One column: its name and group, its unit, what it means, and the formula in words of `ModelInputs`."""

    name: str
    group: str
    unit: str
    meaning: str
    formula: str
    value: Callable[[_Quantities], Array] = field(repr=False)


def _pipe_features() -> list[Feature]:
    found = []
    for pipe in PIPES:
        short = pipe.replace(" ", "_").lower()
        found.append(
            Feature(
                f"{short}_work", "static", "log2", f"time of the {pipe} pipe over the roofline's",
                f"log2(pipe_s[{pipe}] / roofline_s)", lambda q, pipe=pipe: q.log_ratio(q.pipe(pipe), q.roofline_s),  # type: ignore[misc]
            )
        )  # fmt: skip
        found.append(
            Feature(
                f"{short}_share", "prior", "1", f"time of the {pipe} pipe over that of all busy pipes",
                f"pipe_s[{pipe}] / busy_s", lambda q, pipe=pipe: q.pipe(pipe) / np.maximum(q.busy_s, 1e-30),  # type: ignore[misc]
            )
        )  # fmt: skip
    return found


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
        lambda q: np.log2(max(q.inputs.flops, 1.0) / (q.blocks * q.threads)),
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
        lambda q: q.known(q.inputs.registers) / q.gpu.limits.max_registers_per_thread,
    ),
    Feature(
        "shared_memory", "static", "1", "shared memory of resident blocks over an SM's",
        "resident * shared_bytes / smem_per_sm",
        lambda q: q.resident * q.known(q.inputs.shared_bytes) / q.gpu.limits.smem_per_sm,
    ),
    *_pipe_features(),
    Feature(
        "prior_over_roofline", "prior", "log2", "the prior's latency over the roofline's",
        "log2(latency_s / roofline_s)", lambda q: q.log_ratio(q.inputs.latency_s, q.roofline_s),
    ),
    Feature(
        "wait_share", "prior", "log2", "latency of blocks over time of pipes", "log2(wait_s / busy_s)",
        lambda q: q.log_ratio(q.known(q.inputs.wait_s), q.busy_s),
    ),
    Feature(
        "l2_share", "prior", "1", "time at L2's bandwidth over core time", "l2_s / core_s",
        lambda q: q.known(q.inputs.l2_s) / q.core_s,
    ),
    Feature(
        "dram_share", "prior", "1", "time at DRAM's bandwidth over latency", "dram_s / latency_s",
        lambda q: q.known(q.inputs.dram_s) / q.inputs.latency_s,
    ),
    Feature(
        "launch_share", "prior", "1", "launch overhead over latency", "fixed_s / latency_s",
        lambda q: q.known(q.inputs.fixed_s) / q.inputs.latency_s,
    ),
    Feature(
        "traffic_excess", "prior", "log2", "bytes past L2 over compulsory bytes", "log2(dram_s / (bytes / bandwidth))",
        lambda q: q.log_ratio(q.known(q.inputs.dram_s), q.traffic_s),
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
    """The names of the columns: features of `groups` in order, then the tunables where `schedule` is among them."""
    fixed = tuple(feature.name for feature in FEATURES if feature.group in groups)
    if "schedule" not in groups:
        return fixed
    return fixed + tuple(prefix + name for prefix in (TUNABLE, ALIGNMENT) for name in tunables)


_BY_NAME = {feature.name: feature for feature in FEATURES}


def parts(columns: Sequence[str]) -> Array:
    """The number of the group of each column, (F,): its place in `GROUPS`; tunables are of the schedule."""
    return np.array([GROUPS.index(_BY_NAME[name].group if name in _BY_NAME else "schedule") for name in columns])


def _alignment(values: Array) -> Array:
    """log2 of the largest power of two that divides each value; 0 for what is below 1, NaN for what is not known."""
    whole = np.nan_to_num(values).astype(np.int64)
    found = np.log2(np.where(whole > 0, whole & -whole, 1))
    return np.where(np.isnan(values), np.nan, found)


def matrix(inputs: ModelInputs, columns: Sequence[str]) -> Array:
    """The columns named, (C, F) float32; NaN where a fact is not known or a tunable is not this kernel's."""
    quantities = _Quantities(inputs)
    found = np.empty((len(columns), len(inputs)))
    for i, name in enumerate(columns):
        kind, dot, tunable = name.partition(".")
        if not dot:
            found[i] = _BY_NAME[name].value(quantities)
        elif (values := inputs.tunables.get(tunable)) is None:
            found[i] = np.nan
        else:
            found[i] = np.log2(1.0 + np.maximum(values, 0)) if kind + dot == TUNABLE else _alignment(values)
    return np.ascontiguousarray(found.T, dtype=np.float32)
