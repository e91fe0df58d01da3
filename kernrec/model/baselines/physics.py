"""Predict the baseline of an unrecorded problem from its bytes, its arithmetic and the efficiency of similar operators.

    time = start + (arithmetic^3 + memory^3 + longest block^3)^(1/3)

start          the start of a launch
memory         compulsory bytes from DRAM, at the fraction of the bandwidth that recorded operators reach
arithmetic     matmuls, and convolutions as implicit matmuls, in waves of tiles (`features.matmul`); attention at the
               fraction of the tensor cores' rate that recorded kernels reach
longest block  an operator over rows processes each row in one block, whose few threads repeatedly wait for DRAM
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.analytical.microarchitecture import microarchitecture
from kernrec.model.analytical.spread import Estimate, Source
from kernrec.model.baselines.bound import BaselinePrediction, Timing, device_of, features_of, rate_of
from kernrec.model.baselines.features.matmul import is_matvec
from kernrec.model.baselines.recorded_set import NORMAL_S
from kernrec.op import Problem
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.op.equivalent import as_matmul
from kernrec.util.light_dataclass import dataclass

FACTOR = 2.0
"""Half-width of the 90 % interval, as a factor. It covers 92 % of DeepBench's 282 times on a V100 and a P100."""
_COLD = Timing(0.0, np.inf)
_DRAM_SHARE = 0.9
"""Fraction of a copy's bandwidth that operators other than matrix-vector products reach."""
_MATVEC_SHARE = 0.75
"""Fraction of a copy's bandwidth that matrix-vector products reach: 1,350 GB/s on an A100 and 2,200 GB/s on an H100."""
_BLOCK_BYTES = {"layernorm": 128 * 16, "rmsnorm": 512 * 16, "softmax": 1024 * 16, "reduce": 512 * 16}
"""Bytes that a block loads before it waits, keyed by op. Each thread loads 16 bytes."""
_PASSES = {"layernorm": 2, "rmsnorm": 2, "softmax": 3, "reduce": 1}
"""Number of times that a block reads a long row, keyed by op."""
_WAIT_S = 0.6e-6
"""Seconds that a block waits for a load from DRAM."""
_ATTENTION_SHARE = {True: 0.55, False: 0.35}
"""Fraction of the data sheet's rate that attention reaches with tensor cores (True) and without them (False)."""
_CONVOLUTION = {True: 1.2, False: 1.0}
"""Time of a convolution relative to a matmul of the same size, with tensor cores (True) and without them (False)."""
_WINOGRAD = 0.55
"""Time of a 3x3 convolution by Winograd's algorithm relative to an implicit matmul, outside of tensor cores."""
_WINOGRAD_CHANNELS = 32
_DEPTHWISE_SHARE = 0.25
"""Fraction of the rate outside of tensor cores that convolutions with few channels per group reach."""
_FEW_CHANNELS = 8
_CHANNELS_PER_LOAD = 8
"""Number of channels that an implicit matmul on tensor cores loads at once. Missing channels are zeros."""


@dataclass(frozen=True)
class Busy:
    """Times in seconds that determine the duration of a call."""

    math_s: float
    """Time of the arithmetic at the kernel's rate."""
    peak_s: float
    """Time of the arithmetic at the data sheet's rate."""
    block_s: float = 0.0
    """Time of the longest block."""
    dram_share: float = _DRAM_SHARE
    """Fraction of a copy's bandwidth that the kernel reaches."""


@lru_cache(maxsize=1024)
def derived(problem: Problem, gpu: GPU) -> BaselinePrediction | None:
    """Return the predicted baseline of a problem at the default power limit. Return None if the GPU has no arithmetic
    in the data type."""
    problem = as_matmul(problem)
    # Operators over rows always compute in f32.
    if problem.op in _BUSY and not rate_of(gpu, problem.dtype):
        return None
    busy = _BUSY.get(problem.op, _rows)(problem, gpu)
    dram_s = problem.bytes / gpu.memory_bandwidth
    memory_s = dram_s / (microarchitecture(gpu).dram_efficiency * busy.dram_share)
    work_s = (busy.math_s**3 + memory_s**3 + busy.block_s**3) ** (1 / 3)
    latency_s = NORMAL_S + work_s
    device = device_of(gpu, problem.dtype, _COLD)
    parts = {"math": busy.peak_s, "dram": dram_s, "l2": problem.bytes / device.l2, "launch": NORMAL_S}
    latency = Estimate(latency_s, latency_s / FACTOR, latency_s * FACTOR, Source.PREDICTED)
    library = "cuDNN" if problem.op == "conv2d" else "PyTorch"
    if problem.op == "attention" and ELEMENT_BYTES[problem.dtype] < 2:
        # PyTorch does not support 8-bit attention.
        library = "vLLM"
    return BaselinePrediction(library, None, latency, None, (), None, parts)


def _rows(problem: Problem, gpu: GPU) -> Busy:
    sizes, in_flight = problem.sizes, _BLOCK_BYTES.get(problem.op)
    flops_s = problem.flops / gpu.peak_flops("f32")
    if in_flight is None:
        return Busy(flops_s, flops_s)
    row_bytes = sizes["columns"] * ELEMENT_BYTES[problem.dtype]
    resident = 2048 * 16 / in_flight * gpu.sms  # Number of blocks that run at the same time.
    waits = np.ceil(row_bytes / in_flight) * _PASSES[problem.op] * np.ceil(sizes["rows"] / resident)
    return Busy(flops_s, flops_s, float(waits) * _WAIT_S)


def _product(problem: Problem, gpu: GPU) -> Busy:
    sizes = problem.sizes
    if not gpu.peak_flops(problem.dtype, tensor=True) and is_matvec(sizes):
        flops_s = problem.flops / rate_of(gpu, problem.dtype)
        return Busy(flops_s, flops_s, dram_share=_MATVEC_SHARE)
    dims = [sizes[name] for name in ("batch", "m", "n", "k")]
    return _tiles(gpu, problem.dtype, problem.layout, dims, problem.flops)


def _convolution(problem: Problem, gpu: GPU) -> Busy:
    sizes, groups = problem.sizes, problem.sizes["groups"]
    tensor = gpu.peak_flops(problem.dtype, tensor=True) > 0
    depth = sizes["c"] // groups
    if min(depth, sizes["k"] // groups) < _FEW_CHANNELS and groups > 1:
        rate = gpu.peak_flops("f32")
        return Busy(problem.flops / (rate * _DEPTHWISE_SHARE), problem.flops / rate)
    outputs = sizes["n"] * sizes["p"] * sizes["q"]
    loaded = -(-depth // _CHANNELS_PER_LOAD) * _CHANNELS_PER_LOAD if tensor else depth
    dims = [groups, outputs, sizes["k"] // groups, loaded * sizes["r"] * sizes["s"]]
    product = _tiles(gpu, problem.dtype, "nt", dims, problem.flops)
    factor = _CONVOLUTION[tensor]
    plain = sizes["r"] == sizes["s"] == 3 and sizes["stride"] == sizes["dilation"] == groups == 1
    if plain and not tensor and min(depth, sizes["k"]) >= _WINOGRAD_CHANNELS:
        factor *= _WINOGRAD
    return Busy(product.math_s * factor, product.peak_s * min(factor, 1.0))


def _tiles(gpu: GPU, dtype: str, layout: str, dims: list[int], flops: float) -> Busy:
    device = device_of(gpu, dtype, _COLD)
    bound = features_of("matmul").bound(device, np.array(dims, dtype=float)[:, np.newaxis], layout)
    share = 2.0 ** bound.table[bound.names.index("share.tiles"), 0]
    return Busy(float(bound.total_s[0] * share), flops / device.peak_flops)


def _attention(problem: Problem, gpu: GPU) -> Busy:
    rate = rate_of(gpu, problem.dtype)
    tensor = gpu.peak_flops(problem.dtype, tensor=True) > 0
    return Busy(problem.flops / (rate * _ATTENTION_SHARE[tensor]), problem.flops / rate)


_BUSY: Mapping[str, Callable[[Problem, GPU], Busy]] = {
    "matmul": _product, "conv2d": _convolution, "attention": _attention, "moe": _attention,
}  # fmt: skip
