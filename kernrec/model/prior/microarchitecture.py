"""Microarchitectural figures of each GPU generation that the time model needs and no data sheet gives.

The figures and their sources are in `microarchitecture.toml`.
"""

from functools import cache
from pathlib import Path

from kernrec.gpu import GPU, code_sm
from kernrec.util.cache import shipped_toml
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Microarchitecture:
    """The figures of one generation."""

    l2_bytes_per_clk_slice: float
    """Sustained read bandwidth of a slice of L2 with all SMs active, bytes per clock."""
    l2_latency_clk: float
    """Load-to-use latency of a hit in L2, clocks."""
    dram_latency_clk: float
    """Load-to-use latency of a miss in L2, clocks at boost."""
    dram_efficiency: float
    """Share of the data sheet's bandwidth that a copy reaches."""
    mma_sync_share: float
    """Share of the tensor cores' rate that `mma.sync` reaches."""
    lsu_lanes: float
    """Lanes per SM and clock whose addresses the load/store units take."""
    shared_wavefronts_per_clk: float
    """Passes through the banks of shared memory per SM and clock."""


@cache
def _microarchitectures() -> dict[str, Microarchitecture]:
    generations = shipped_toml(Path(__file__).with_name("microarchitecture.toml"))
    return {name: Microarchitecture(**figures) for name, figures in generations.items()}


def microarchitecture(gpu: GPU) -> Microarchitecture:
    """The figures of a GPU's generation; data-center Ampere and Blackwell have their own, earlier ones Turing's."""
    special = {80: "ampere_datacenter", 100: "blackwell_datacenter"}.get(code_sm(gpu.sm))
    return _microarchitectures()["turing" if gpu.sm < 75 else special or gpu.generation]


_HBM_BITS = 1024
"""A wider bus is that of HBM: it comes in stacks of 1,024 bits."""


def l2_bytes_per_clk(gpu: GPU) -> float:
    """Sustained read bandwidth of L2 with all SMs active, bytes per clock."""
    # A slice for 8 bits of a GDDR bus, for 64 bits of HBM (512 KiB each on GA100: 80 slices, 40 MiB).
    slices = gpu.memory_bus_bits / (64 if gpu.memory_bus_bits > _HBM_BITS else 8)
    return slices * microarchitecture(gpu).l2_bytes_per_clk_slice
