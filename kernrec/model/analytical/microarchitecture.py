"""GPU figures that the analytical model of time needs, but that data sheets do not contain. `microarchitecture.toml`
and `engine/query` state the sources."""

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
    """Load-to-use latency of an L2 miss, in clocks at the boost clock."""
    dram_efficiency: float
    """Fraction of the data sheet's DRAM bandwidth that a copy kernel reaches."""
    mma_sync_share: float
    """Fraction of the tensor cores' rate that `mma.sync` reaches."""
    lsu_lanes: float
    """Number of addresses (one per lane) that an SM's load/store units accept per clock."""
    shared_wavefronts_per_clk: float
    """Number of shared-memory wavefronts per SM and clock."""
    l1_lines_per_clk: float
    """Number of lines that L1 looks up per SM and clock."""


@cache
def _microarchitectures() -> dict[str, Microarchitecture]:
    generations = shipped_toml(Path(__file__).with_name("microarchitecture.toml"))
    generations["turing_tu106"] = generations["turing"] | generations["turing_tu106"]
    return {name: Microarchitecture(**figures) for name, figures in generations.items()}


def microarchitecture(gpu: GPU) -> Microarchitecture:
    """Return the figures of a GPU's generation."""
    special = {80: "ampere_datacenter", 100: "blackwell_datacenter"}.get(code_sm(gpu.sm))
    special = "turing_tu106" if gpu.chip == "TU106" else special
    # GPUs older than Turing use the figures of Turing.
    return _microarchitectures()["turing" if gpu.sm < 75 else special or gpu.generation]


_HBM_BITS = 1024
"""Bus width in bits above which a GPU's memory is HBM. Each HBM stack has 1,024 bits."""


def l2_bytes_per_clk(gpu: GPU) -> float:
    """Return the sustained read bandwidth of L2 with all SMs active, in bytes per clock."""
    # L2 has one slice for each 8 bits of a GDDR bus, or for each 64 bits of an HBM bus. For example, GA100 has 80
    # slices of 512 KiB, which is 40 MiB.
    slices = gpu.memory_bus_bits / (64 if gpu.memory_bus_bits > _HBM_BITS else 8)
    return slices * microarchitecture(gpu).l2_bytes_per_clk_slice


LAUNCH_S: float = query.LAUNCH_S
START_S: float = query.START_S
BARRIER_CLK: float = query.BARRIER_CLK
BARRIER_WARP_CLK: float = query.BARRIER_WARP_CLK
SCHEDULERS: float = query.SCHEDULERS
OVERLAP = int(query.OVERLAP)
CLOCKS: int = query.CLOCKS

BLOCKS, CONCURRENT, WARPS, PREFETCH, DRAM_BYTES, DRAM_SLOWDOWN, SERIAL_CLK = range(7)
WAIT_ROUNDS, OVERLAPPED, LONE_WAITS, LOOPS = range(7, 11)
"""Row indices of `launch_time.LaunchWork.rows`, in the order of `WorkRow` in engine/query/launch.h."""
TIMES = 8
"""Number of rows that the engine computes for `LaunchTime`."""
