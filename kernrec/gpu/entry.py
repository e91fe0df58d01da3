"""Define GPUs, the resource limits of their SMs, and occupancy as in NVIDIA's calculator (`cuda_occupancy.h`)."""

from collections.abc import Mapping
from functools import cache
from typing import Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

from kernrec.util.light_dataclass import dataclass

# Source: CUDA C++ Programming Guide 13, family-specific targets
_CODE_SM = {103: 100, 121: 120}
_FIRST_COMPILED_SM = 75  # Oldest compute capability that NVRTC 13 can compile for.
_FOUR_BITS = ("nvfp4", "f4e2m1")


def code_sm(sm: int) -> int:
    """Return the compute capability to compile for, so that code runs on `sm`: 100 for 103, 120 for 121, else `sm`."""
    return _CODE_SM.get(sm, sm)


@dataclass(frozen=True)
class SmLimits:
    """Resource limits of an SM (streaming multiprocessor), in bytes and 32-bit registers."""

    sm: int
    max_threads_per_block: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    registers_per_block: int
    max_registers_per_thread: int
    register_allocation_unit: int
    """Granularity of a warp's register allocation, in registers."""
    warp_allocation_granularity: int
    """Granularity of a block's warp allocation, in warps."""
    smem_per_sm: int
    smem_per_block: int
    """Maximum shared memory of a block, in bytes, if the kernel opts in."""
    smem_reserved_per_block: int
    """Additional shared memory that the driver reserves for each block, in bytes."""
    smem_allocation_unit: int
    """Granularity of a block's shared memory allocation, in bytes."""
    schedulers: int
    unified_bytes: int
    """Bytes of the memory that L1 and shared memory divide between them."""
    carveouts: tuple[int, ...]
    """Sizes in bytes that the driver can select for shared memory, ascending. L1 gets the rest of `unified_bytes`."""


@dataclass(frozen=True)
class GPU:
    """A GPU in the catalog, in SI units."""

    name: str
    """Name in the catalog, such as `a100-sxm4-80gb`."""
    title: str
    aliases: tuple[str, ...]
    generation: str
    chip: str
    sm: int
    sms: int
    base_clock_hz: float
    boost_clock_hz: float
    tensor_clock_hz: float
    """Clock in Hz at which the data sheet states tensor-core peaks. On a few GPUs, it is below the boost clock."""
    memory_bytes: int
    usable_bytes: int
    """Memory in bytes that programs can use. By default, data-center GPUs with GDDR6 use 1/16 of their memory for ECC.
    For example, nvidia-smi reports 15,360 MiB for a T4 with 16 GiB."""
    memory_bandwidth: float
    """Memory bandwidth in bytes per second."""
    memory_bus_bits: int
    memory_rate_hz: float
    """Memory data rate per pin, in bits per second."""
    l2_bytes: int
    tdp_w: float
    power_min_w: float
    power_max_w: float
    """Highest power limit that users can set, in watts. `power_min_w` is the lowest power limit."""
    idle_w: float | None
    """Idle power in watts, or None if no source states it."""
    datasheet_f32_flops: float
    datasheet_tensor_flops: Mapping[str, float]
    """Dense tensor-core peak in FLOP/s according to the data sheet, keyed by dtype."""
    fma_per_clk_sm: Mapping[str, int]
    """FMAs per SM and clock outside the tensor cores, keyed by dtype. Unsupported dtypes are missing. `i32_add` is the
    rate of integer additions."""
    tensor_fma_per_clk_sm: Mapping[str, int]
    """Dense FMAs per SM and clock on tensor cores, keyed by dtype. Floats other than f64 accumulate in f32."""
    limits: SmLimits
    sources: Mapping[str, str]

    def __hash__(self) -> int:
        """Hash only the name, because caches hash a GPU many times per query."""
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<GPU {self.name}: {self.title}, sm_{self.sm}>"

    @property
    def arch(self) -> str:
        return f"sm_{self.sm}"

    @property
    def power_range_assumed(self) -> bool:
        """Return whether no source states the range of power limits, so that kernrec assumes a range."""
        return self.sources.get("power_min_w", "").startswith("assumption")

    @property
    def baselines_only(self) -> bool:
        """Return whether kernrec only predicts the time of libraries such as cuBLAS and cannot compile kernels."""
        return self.sm < _FIRST_COMPILED_SM

    def peak_flops(self, dtype: str, tensor: bool = False) -> float:
        """Return the peak FLOP/s at the data sheet's clock, or 0 if the GPU does not support `dtype`. An FMA counts as
        two operations."""
        rates, clock_hz = (
            (self.tensor_fma_per_clk_sm, self.tensor_clock_hz) if tensor else (self.fma_per_clk_sm, self.boost_clock_hz)
        )
        return 2.0 * self.sms * rates.get(_rate_name(dtype), 0) * clock_hz

    def tensor_rate(self, dtype: str) -> int:
        """Return the tensor cores' dense FMAs per clock and SM, or 0 if they do not support `dtype`."""
        return self.tensor_fma_per_clk_sm.get(_rate_name(dtype), 0)

    def multiplies(self, dtype: str) -> bool:
        """Return whether the GPU can multiply matrices in a dtype. Every GPU can multiply `f16` and `bf16`."""
        return dtype in ("f16", "bf16") or self.tensor_rate(dtype) > 0 or self.fma_per_clk_sm.get(dtype, 0) > 0


def _rate_name(dtype: str) -> str:
    return "fp8" if dtype.startswith("f8") else "fp4" if dtype in _FOUR_BITS else dtype


LIMITERS = ("warps", "registers", "shared memory", "blocks")
"""Resources that can limit occupancy. If two resources allow the same number of blocks, the first counts."""

Ints = npt.NDArray[np.integer]
Count = TypeVar("Count", int, Ints)
Share = TypeVar("Share", float, npt.NDArray[np.floating])

_WARP = 32
_UNLIMITED = 1 << 20  # Block limit of a resource that the kernel does not use. The value exceeds all real limits.


@dataclass(frozen=True)
class Occupancy(Generic[Count, Share]):
    """Number of resident blocks and warps per SM. Fields are numbers for one launch, and arrays for many launches."""

    blocks: Count
    """Number of resident blocks per SM, or 0 if the kernel cannot be launched."""
    warps: Count
    fraction: Share
    """Resident warps as a fraction of the SM's maximum."""
    limiter: Count
    """Index of the limiting resource in `LIMITERS`, or -1 if `blocks` is 0."""


@overload
def occupancy(  # type: ignore[overload-overlap]  # mypy cannot say "at least one array" below
    limits: SmLimits, threads: int, registers: int, smem_bytes: int
) -> Occupancy[int, float]: ...
@overload
def occupancy(
    limits: SmLimits, threads: Ints | int, registers: Ints | int, smem_bytes: Ints | int
) -> Occupancy[Ints, npt.NDArray[np.floating]]: ...
def occupancy(
    limits: SmLimits, threads: Ints | int, registers: Ints | int, smem_bytes: Ints | int
) -> Occupancy[int, float] | Occupancy[Ints, npt.NDArray[np.floating]]:
    """Return the occupancy of a kernel with `smem_bytes` of static and dynamic shared memory per block. If any argument
    is an array, the result contains arrays."""
    by_warps_and_registers, columns, by_smem = _tables(limits)
    unit = limits.smem_allocation_unit
    warps = -(-threads // _WARP)
    # The first and last entries of a table are 0 blocks, and serve all values outside the table's range.
    column = np.clip(warps, 0, columns - 1)
    last_row = limits.max_registers_per_thread + 1
    row = np.where(registers >= 0, np.minimum(registers, last_row), last_row)
    units = np.where(smem_bytes >= 0, np.minimum(-(-smem_bytes // unit), len(by_smem) - 1), -1)
    value = np.minimum(by_warps_and_registers[row * columns + column], by_smem[units])
    blocks, limiter = value >> 2, np.where(value >> 2 > 0, value & 3, -1)
    resident = blocks * warps
    fraction = resident / limits.max_warps_per_sm
    if np.ndim(value) == 0:
        return Occupancy(int(blocks), int(resident), float(fraction), int(limiter))
    return Occupancy(blocks, resident, fraction, limiter)


def l1_bytes(limits: SmLimits, blocks: Ints, smem_bytes: Ints) -> Ints:
    """Return the bytes of an SM that remain for L1 if `blocks` blocks with `smem_bytes` each are resident. Assume that
    the driver selects the smallest sufficient size of shared memory."""
    unit = limits.smem_allocation_unit
    per_block = -(-(smem_bytes + limits.smem_reserved_per_block * (smem_bytes > 0)) // unit) * unit
    sizes = np.array(limits.carveouts)
    carved = sizes[np.minimum(np.searchsorted(sizes, blocks * per_block), len(sizes) - 1)]
    return np.asarray(limits.unified_bytes - carved)


@cache
def _tables(limits: SmLimits) -> tuple[Ints, int, Ints]:
    """Return (table indexed by registers and warps, length of its rows, table indexed by shared memory).

    Each entry is `blocks * 4 + limiter`, with 0 blocks if a launch is impossible. So the minimum of two entries is the
    entry with fewer blocks.
    """
    max_warps = limits.max_threads_per_block // _WARP
    warps = np.arange(1, max_warps + 1)
    registers = np.arange(1, limits.max_registers_per_thread + 1)[:, None]
    partitions = limits.warp_allocation_granularity
    per_warp = -(-registers * _WARP // limits.register_allocation_unit) * limits.register_allocation_unit
    by_registers = limits.registers_per_sm // partitions // per_warp * partitions // warps
    by_registers[per_warp * (-(-warps // partitions) * partitions) > limits.registers_per_block] = 0

    values = np.zeros((limits.max_registers_per_thread + 2, max_warps + 2), np.int64)
    values[:-1, 1:-1] = np.minimum(limits.max_warps_per_sm // warps * 4, limits.max_blocks_per_sm * 4 + 3)
    values[1:-1, 1:-1] = np.minimum(values[1:-1, 1:-1], by_registers * 4 + 1)

    unit = limits.smem_allocation_unit
    size = np.arange(limits.smem_per_block // unit + 1) * unit + limits.smem_reserved_per_block
    by_smem = np.zeros(len(size) + 1, np.int64)
    by_smem[:-1] = np.where(size > 0, limits.smem_per_sm // np.maximum(size, 1), _UNLIMITED) * 4 + 2
    return values.ravel(), max_warps + 2, by_smem
