"""One entry of the GPU catalog (`GPU`) and the resource limits of its multiprocessors (`SmLimits`)."""

from collections.abc import Mapping

from kernrec.util.light_dataclass import dataclass

_CODE_SM = {103: 100, 121: 120}
_FIRST_COMPILED_SM = 75  # NVRTC 13 has no earlier target
_FOUR_BITS = ("nvfp4", "f4e2m1")


def code_sm(sm: int) -> int:
    """The compute capability whose kernels and profiles stand for `sm`: 100 for 103, 120 for 121, else itself.

    10.3 and 12.1 are of the families of 10.0 and 12.0 (CUDA C++ Programming Guide 13, family-specific targets).
    """
    return _CODE_SM.get(sm, sm)


@dataclass(frozen=True)
class SmLimits:
    """Resource limits of one streaming multiprocessor (SM); the same for all GPUs of a compute capability.

    Shared-memory sizes (`smem`) are in bytes; registers are 32-bit.
    """

    sm: int
    """The compute capability, such as 89."""
    max_threads_per_block: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    registers_per_block: int
    max_registers_per_thread: int
    register_allocation_unit: int
    """A warp's registers are allocated in multiples of this."""
    warp_allocation_granularity: int
    """A block's warps are allocated in multiples of this: the number of the SM's partitions."""
    smem_per_sm: int
    smem_per_block: int
    """The most shared memory that a block can use (with opt-in)."""
    smem_reserved_per_block: int
    """Bytes that the driver reserves per block in addition."""
    smem_allocation_unit: int
    """A block's shared memory is allocated in multiples of this."""
    schedulers: int
    unified_bytes: int
    """Bytes that L1 and shared memory share."""
    carveouts: tuple[int, ...]
    """The sizes that shared memory can have of these, ascending; L1 has the rest."""


@dataclass(frozen=True)
class GPU:
    """One catalog entry, in SI units."""

    name: str
    """The catalog's name, such as `a100-sxm4-80gb`."""
    title: str
    aliases: tuple[str, ...]
    generation: str
    chip: str
    sm: int
    """The compute capability, such as 89."""
    sms: int
    """The number of streaming multiprocessors."""
    base_clock_hz: float
    boost_clock_hz: float
    tensor_clock_hz: float
    """The clock of the data sheet's tensor peaks; on a few GPUs below the boost clock."""
    memory_bytes: int
    memory_bandwidth: float
    """Bytes per second."""
    memory_bus_bits: int
    memory_rate_hz: float
    """Bits per second and pin."""
    l2_bytes: int
    tdp_w: float
    power_min_w: float
    """The lowest power limit that can be set."""
    power_max_w: float
    """The highest power limit that can be set."""
    idle_w: float | None
    """Power when idle; None where it is not published."""
    datasheet_f32_flops: float
    """FLOP/s."""
    datasheet_tensor_flops: Mapping[str, float]
    """FLOP/s of the tensor cores by dtype, dense."""
    fma_per_clk_sm: Mapping[str, int]
    """Fused multiply-adds per SM and clock outside the tensor cores, by dtype (`f64`, `f32`, `f16`, `bf16`, `i32`;
    `i32_add` is the integer add). A dtype without hardware is absent."""
    tensor_fma_per_clk_sm: Mapping[str, int]
    """The same on tensor cores, dense; `f16`, `bf16`, `tf32`, `fp8` and `fp4` accumulate in f32."""
    limits: SmLimits
    sources: Mapping[str, str]
    """The document that each figure was taken from, by field name."""

    def __hash__(self) -> int:
        """Of the name: caches ask for it many times in a query, and few cards of a name differ."""
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<GPU {self.name}: {self.title}, sm_{self.sm}>"

    @property
    def arch(self) -> str:
        """The compiler's name of the architecture, such as `sm_89`."""
        return f"sm_{self.sm}"

    @property
    def power_range_assumed(self) -> bool:
        """Whether no source states the range of power limits."""
        return self.sources.get("power_min_w", "").startswith("assumption")

    @property
    def lines_only(self) -> bool:
        """Whether no kernel can be compiled for the GPU, so that stacks' lines alone are predicted."""
        return self.sm < _FIRST_COMPILED_SM

    def peak_flops(self, dtype: str, tensor: bool = False) -> float:
        """Peak operations per second at the data sheet's clock, an FMA counted as two; 0 without hardware."""
        rates, clock_hz = (
            (self.tensor_fma_per_clk_sm, self.tensor_clock_hz) if tensor else (self.fma_per_clk_sm, self.boost_clock_hz)
        )
        return 2.0 * self.sms * rates.get(_rate_name(dtype), 0) * clock_hz

    def tensor_rate(self, dtype: str) -> int:
        """Tensor cores' dense FMAs in a dtype, per clock and SM; 0 without hardware."""
        return self.tensor_fma_per_clk_sm.get(_rate_name(dtype), 0)

    def multiplies(self, dtype: str) -> bool:
        """Return whether the GPU has instructions for products in a dtype; those of 16 bits run on any."""
        return dtype in ("f16", "bf16") or self.tensor_rate(dtype) > 0 or self.fma_per_clk_sm.get(dtype, 0) > 0


def _rate_name(dtype: str) -> str:
    """The key of a dtype among the rates."""
    return "fp8" if dtype.startswith("f8") else "fp4" if dtype in _FOUR_BITS else dtype
