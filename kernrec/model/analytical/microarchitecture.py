"""Microarchitectural figures that the time model needs and data sheets lack.

Figures of each GPU generation and their sources are in `microarchitecture.toml`. Constants that apply to all GPUs are
defined in `engine/query`, with their sources.
"""

from functools import cache
from pathlib import Path

from kernrec.gpu import GPU, code_sm
from kernrec.util.cache import shipped_toml
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Microarchitecture:
    """Figures of one GPU generation."""

    l2_bytes_per_clk_slice: float
    """Sustained read bandwidth of an L2 slice with all SMs active, in bytes per clock."""
    l2_latency_clk: float
    """Load-to-use latency of an L2 hit, in clocks."""
    dram_latency_clk: float
    """Load-to-use latency of an L2 miss, in clocks at boost."""
    dram_efficiency: float
    """Fraction of the data sheet's bandwidth that a copy reaches."""
    mma_sync_share: float
    """Fraction of the tensor cores' rate that `mma.sync` reaches."""
    lsu_lanes: float
    """Lanes per SM and clock whose addresses the load/store units accept."""
    shared_wavefronts_per_clk: float
    """Wavefronts of shared memory per SM and clock."""


@cache
def _microarchitectures() -> dict[str, Microarchitecture]:
    generations = shipped_toml(Path(__file__).with_name("microarchitecture.toml"))
    return {name: Microarchitecture(**figures) for name, figures in generations.items()}


def microarchitecture(gpu: GPU) -> Microarchitecture:
    """Return a GPU generation's figures. Older GPUs use Turing's; data-center Ampere and Blackwell have their own."""
    special = {80: "ampere_datacenter", 100: "blackwell_datacenter"}.get(code_sm(gpu.sm))
    return _microarchitectures()["turing" if gpu.sm < 75 else special or gpu.generation]


_HBM_BITS = 1024
"""Bus width in bits above which the memory is HBM, whose stacks have 1,024 bits each."""


def l2_bytes_per_clk(gpu: GPU) -> float:
    """Return the sustained read bandwidth of L2 with all SMs active, in bytes per clock."""
    # L2 has a slice per 8 bits of a GDDR bus or 64 bits of HBM (512 KiB each on GA100: 80 slices, 40 MiB).
    slices = gpu.memory_bus_bits / (64 if gpu.memory_bus_bits > _HBM_BITS else 8)
    return slices * microarchitecture(gpu).l2_bytes_per_clk_slice


LAUNCH_S: float = query.LAUNCH_S
START_S: float = query.START_S
BARRIER_CLK: float = query.BARRIER_CLK
BARRIER_WARP_CLK: float = query.BARRIER_WARP_CLK
SCHEDULERS: float = query.SCHEDULERS
OVERLAP = int(query.OVERLAP)
CLOCKS: int = query.CLOCKS
RESTING: float = query.RESTING
CAPPED: float = query.CAPPED

BLOCKS, CONCURRENT, WARPS, PREFETCH, DRAM_BYTES, DRAM_SLOWDOWN, SERIAL_CLK = range(7)
WAIT_ROUNDS, OVERLAPPED, LONE_WAITS, LOOPS = range(7, 11)
"""Rows of `launch_time.LaunchWork`, in the order of `WorkRow` in engine/query/launch.h."""
TIMES, RESOURCE = 8, 7
"""Number of rows of `launch_time.LaunchTime.rows`. The last row is the index of the bottleneck in `RESOURCES`."""
