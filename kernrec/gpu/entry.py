"""Define an entry of the GPU catalog (`GPU`) and the resource limits of its multiprocessors (`SmLimits`)."""

from collections.abc import Mapping

from kernrec.util.light_dataclass import dataclass

_CODE_SM = {103: 100, 121: 120}
_FIRST_COMPILED_SM = 75  # Oldest target of NVRTC 13.
_FOUR_BITS = ("nvfp4", "f4e2m1")


def code_sm(sm: int) -> int:
    """Return the compute capability whose kernels and profiles apply to `sm`: 100 for 103, 120 for 121, else `sm`.

    10.3 and 12.1 belong to the families of 10.0 and 12.0 (CUDA C++ Programming Guide 13, family-specific targets).
    """
    return _CODE_SM.get(sm, sm)


@dataclass(frozen=True)
class SmLimits:
    """Resource limits of one streaming multiprocessor (SM), which all GPUs of a compute capability share.

    Shared memory sizes (`smem`) are in bytes; registers are 32-bit.
    """

    sm: int
    """Compute capability, such as 89."""
    max_threads_per_block: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    registers_per_block: int
    max_registers_per_thread: int
    register_allocation_unit: int
    """Granularity of a warp's register allocation, in registers."""
    warp_allocation_granularity: int
    """Granularity of a block's warp allocation, in warps: the number of partitions of the SM."""
    smem_per_sm: int
    smem_per_block: int
    """Largest shared memory that a block can use (with opt-in), in bytes."""
    smem_reserved_per_block: int
    """Additional bytes that the driver reserves per block."""
    smem_allocation_unit: int
    """Granularity of a block's shared memory allocation, in bytes."""
    schedulers: int
    unified_bytes: int
    """Bytes shared by L1 and shared memory."""
    carveouts: tuple[int, ...]
    """Possible sizes of shared memory in bytes, ascending; L1 gets the rest of `unified_bytes`."""


@dataclass(frozen=True)
class GPU:
    """One catalog entry, in SI units."""

    name: str
    """Name in the catalog, such as `a100-sxm4-80gb`."""
    title: str
    aliases: tuple[str, ...]
    generation: str
    chip: str
    sm: int
    """Compute capability, such as 89."""
    sms: int
    """Number of streaming multiprocessors."""
    base_clock_hz: float
    boost_clock_hz: float
    tensor_clock_hz: float
    """Clock of the data sheet's tensor peaks in Hz, which is below the boost clock on a few GPUs."""
    memory_bytes: int
    memory_bandwidth: float
    """Memory bandwidth in bytes per second."""
    memory_bus_bits: int
    memory_rate_hz: float
    """Memory data rate in bits per second and pin."""
    l2_bytes: int
    tdp_w: float
    power_min_w: float
    """Lowest power limit that can be set, in watts."""
    power_max_w: float
    """Highest power limit that can be set, in watts."""
    idle_w: float | None
    """Idle power in watts; None if not published."""
    datasheet_f32_flops: float
    """Data sheet's f32 peak in FLOP/s."""
    datasheet_tensor_flops: Mapping[str, float]
    """Data sheet's dense tensor-core peak in FLOP/s, by dtype."""
    fma_per_clk_sm: Mapping[str, int]
    """Fused multiply-adds per SM and clock outside the tensor cores, by dtype (`f64`, `f32`, `f16`, `bf16`, `i32`;
    `i32_add` is the integer add). A dtype without hardware is absent."""
    tensor_fma_per_clk_sm: Mapping[str, int]
    """Dense fused multiply-adds per SM and clock on tensor cores, by dtype. `f16`, `bf16`, `tf32`, `fp8` and `fp4`
    accumulate in f32.
    """
    limits: SmLimits
    sources: Mapping[str, str]
    """Source document of each figure, by field name."""

    def __hash__(self) -> int:
        """Hash only the name: caches hash a GPU many times per query, and few GPUs share a name."""
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<GPU {self.name}: {self.title}, sm_{self.sm}>"

    @property
    def arch(self) -> str:
        """Return the compiler's name of the architecture, such as `sm_89`."""
        return f"sm_{self.sm}"

    @property
    def power_range_assumed(self) -> bool:
        """Return whether the range of power limits is assumed, because no source states it."""
        return self.sources.get("power_min_w", "").startswith("assumption")

    @property
    def baselines_only(self) -> bool:
        """Return whether no kernel can be compiled for the GPU, so that only baselines are predicted."""
        return self.sm < _FIRST_COMPILED_SM

    def peak_flops(self, dtype: str, tensor: bool = False) -> float:
        """Return the peak operations per second at the data sheet's clock; 0 without hardware. An FMA counts as 2."""
        rates, clock_hz = (
            (self.tensor_fma_per_clk_sm, self.tensor_clock_hz) if tensor else (self.fma_per_clk_sm, self.boost_clock_hz)
        )
        return 2.0 * self.sms * rates.get(_rate_name(dtype), 0) * clock_hz

    def tensor_rate(self, dtype: str) -> int:
        """Return the tensor cores' dense FMAs per clock and SM in a dtype; 0 without hardware."""
        return self.tensor_fma_per_clk_sm.get(_rate_name(dtype), 0)

    def multiplies(self, dtype: str) -> bool:
        """Return whether the GPU can multiply matrices in a dtype. 16-bit types work on any GPU."""
        return dtype in ("f16", "bf16") or self.tensor_rate(dtype) > 0 or self.fma_per_clk_sm.get(dtype, 0) > 0


def _rate_name(dtype: str) -> str:
    return "fp8" if dtype.startswith("f8") else "fp4" if dtype in _FOUR_BITS else dtype
