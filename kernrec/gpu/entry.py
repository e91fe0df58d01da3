"""What the catalog says of one GPU: `GPU`, and `SmLimits` for what one of its multiprocessors can hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SmLimits:
    """What one streaming multiprocessor (SM) can hold; the same for all GPUs of a compute capability.

    Shared-memory sizes are in bytes, registers are 32-bit. `smem_per_block` is the most a block may ask for (with
    opt-in); `smem_reserved_per_block` is what the driver takes on top of it. Registers are allocated per warp in
    multiples of `register_allocation_unit`, warps in multiples of `warp_allocation_granularity` per SM.
    """

    sm: int
    max_threads_per_block: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    registers_per_block: int
    max_registers_per_thread: int
    register_allocation_unit: int
    warp_allocation_granularity: int
    smem_per_sm: int
    smem_per_block: int
    smem_reserved_per_block: int
    smem_allocation_unit: int
    schedulers: int


@dataclass(frozen=True)
class GPU:
    """One catalog entry, in SI units. `sources` names, for every figure, the document it was read in.

    `fma_per_clk_sm` holds fused multiply-adds per SM and clock on the ordinary pipes, by dtype (`f64`, `f32`, `f16`,
    `bf16`, `i32`; `i32_add` is the integer add); `tensor_fma_per_clk_sm` the same on tensor cores, dense, where `f16`,
    `bf16`, `tf32` and `fp8` accumulate in f32. A dtype without hardware is absent. Tensor peaks hold at
    `tensor_clock_hz`, which is below the boost clock on a few cards. `memory_rate_hz` is bits per second and pin.
    `power_min_w` to `power_max_w` is the range of the settable power limit. `idle_w` is None where it is not published.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    generation: str
    chip: str
    sm: int
    sms: int
    base_clock_hz: float
    boost_clock_hz: float
    tensor_clock_hz: float
    memory_bytes: int
    memory_bandwidth: float
    memory_bus_bits: int
    memory_rate_hz: float
    l2_bytes: int
    tdp_w: float
    power_min_w: float
    power_max_w: float
    idle_w: float | None
    datasheet_f32_flops: float
    datasheet_tensor_flops: Mapping[str, float] = field(hash=False)
    fma_per_clk_sm: Mapping[str, int] = field(hash=False)
    tensor_fma_per_clk_sm: Mapping[str, int] = field(hash=False)
    limits: SmLimits
    sources: Mapping[str, str] = field(hash=False)

    @property
    def arch(self) -> str:
        """The compiler's name of the architecture, such as `sm_89`."""
        return f"sm_{self.sm}"

    def peak_flops(self, dtype: str, tensor: bool = False) -> float:
        """Operations per second at the clock of the data sheet's peaks, an FMA counted as two; 0 without hardware."""
        rates, clock_hz = (
            (self.tensor_fma_per_clk_sm, self.tensor_clock_hz) if tensor else (self.fma_per_clk_sm, self.boost_clock_hz)
        )
        return 2.0 * self.sms * rates.get(dtype, 0) * clock_hz
