"""Microarchitectural figures of each GPU generation that the time model needs and no data sheet gives.

The figures and their sources are in `microarchitecture.toml`.
"""

from functools import cache
from pathlib import Path

from kernrec.gpu import GPU
from kernrec.util.cache import shipped_toml
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Microarchitecture:
    """The figures of one generation."""

    l2_bytes_per_clk_sm: float
    """Sustained read bandwidth from L2 with all SMs active, bytes per clock and SM."""
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


@cache
def _microarchitectures() -> dict[str, Microarchitecture]:
    generations = shipped_toml(Path(__file__).with_name("microarchitecture.toml"))
    return {name: Microarchitecture(**figures) for name, figures in generations.items()}


def microarchitecture(gpu: GPU) -> Microarchitecture:
    """The figures of a GPU's generation; data-center Ampere and Blackwell have their own."""
    special = {80: "ampere_datacenter", 100: "blackwell_datacenter"}.get(gpu.sm)
    return _microarchitectures()[special or gpu.generation]
