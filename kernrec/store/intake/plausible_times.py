"""Bound the plausible times of a problem on a GPU.

The bounds are generous, so that no true recording is refused. Rows outside have a wrong shape, unit or kernel.
"""

from kernrec.gpu import GPU
from kernrec.op import Problem
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.util.human import human

_MARGIN = 0.7
"""Factor on the lower bound, because some boards exceed their data sheet. An RTX 3090 reaches 1.2 times the
bandwidth."""
_LEAST_S = 0.3e-6
"""Minimum time of a launch in seconds. An empty kernel takes about a microsecond."""
_WINOGRAD = 4.0
"""Largest speedup of a convolution by Winograd's algorithm: F(4x4, 3x3) saves 3 of 4 multiplications (Lavin and Gray,
arXiv 1509.09308)."""
_SERIAL_FLOP_S, _SERIAL_ACCESS_S, _SERIAL_START_S = 50e-9, 2e-6, 1e-3
"""Seconds that a single thread needs for one operation, for one memory access, and to start."""


def floor_s(problem: Problem, gpu: GPU) -> float:
    """Return a lower bound, in seconds, for the time of any kernel for a problem on a GPU.

    The bound is the longer of two times: to transfer all bytes that do not fit into L2 at DRAM bandwidth, and to do the
    operations at the GPU's highest peak.
    """
    dtypes = ("f16", "bf16", "tf32") if ELEMENT_BYTES[problem.dtype] > 1 else ("f16", "fp8", "i8")
    beyond_l2 = max(problem.bytes - gpu.l2_bytes, 0)
    peak = max(
        gpu.peak_flops(problem.dtype),
        *(gpu.peak_flops(dtype, tensor=True) for dtype in gpu.tensor_fma_per_clk_sm if dtype in dtypes),
        gpu.peak_flops("f32"),
    )
    saved = _WINOGRAD if problem.op == "conv2d" else 1.0
    return max(_MARGIN * max(beyond_l2 / gpu.memory_bandwidth, problem.flops / saved / peak), _LEAST_S)


def ceiling_s(problem: Problem) -> float | None:
    """Return the seconds that a single thread would need, which no kernel exceeds. Return None if the op's number of
    operations is unknown."""
    if not problem.flops:
        return None
    elements = sum(tensor.touched for tensor in problem.tensors.values())
    return _SERIAL_START_S + problem.flops * _SERIAL_FLOP_S + elements * _SERIAL_ACCESS_S


def implausible(times_s: list[float], problem: Problem, gpu: GPU) -> str | None:
    """Return why recorded times (in seconds) are implausible, or None if they are plausible."""
    least, most = floor_s(problem, gpu), ceiling_s(problem)
    below = [time for time in times_s if time < least]
    if below:
        return (
            f"{len(below)} of {len(times_s)} times are below {human(least, 's')}, the minimum for {problem.key} on"
            f" {gpu.title} (the shortest is {human(min(below), 's')}): wrong unit, shape or GPU?"
        )
    if most is not None and (above := [time for time in times_s if time > most]):
        return (
            f"{len(above)} of {len(times_s)} times are longer than {human(most, 's')}, the time of a single thread for"
            f" {problem.key} (the longest is {human(max(above), 's')}): wrong unit or shape?"
        )
    return None
