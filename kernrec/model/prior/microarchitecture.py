"""What the time model needs of a GPU beyond its data sheet, by generation.

Figures and their sources are in `microarchitecture.toml`.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernrec.gpu import GPU
from kernrec.util.cache import shipped_toml


@dataclass(frozen=True)
class Microarchitecture:
    """The figures of `microarchitecture.toml` for one generation; bytes, clocks and lanes are per SM."""

    l2_bytes_per_clk_sm: float
    l2_latency_clk: float
    dram_latency_clk: float
    dram_efficiency: float
    mma_sync_share: float
    lsu_lanes: float


@cache
def _microarchitectures() -> dict[str, Microarchitecture]:
    found = shipped_toml(Path(__file__).with_name("microarchitecture.toml"))
    return {name: Microarchitecture(**figures) for name, figures in found.items()}


def microarchitecture(gpu: GPU) -> Microarchitecture:
    """The machine figures of a GPU's generation; data-centre Ampere and Blackwell have their own."""
    special = {80: "ampere_datacenter", 100: "blackwell_datacenter"}.get(gpu.sm)
    return _microarchitectures()[special or gpu.generation]
