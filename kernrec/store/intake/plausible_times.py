"""Bounds of the time of a problem on a GPU: a floor that no kernel can undercut, and a ceiling that none can need.

A row with the wrong shape, unit or kernel would be used in answers and teach models. Both bounds are far from what
kernels do, so that no true recording is refused.
"""

from kernrec.gpu import GPU
from kernrec.op import Problem
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.util.human import human

_MARGIN = 0.7
"""Boards run above the data sheet's clocks: an RTX 3090 reached 1.10 times its f32 peak, memory 1.2 times."""
_LEAST_S = 0.3e-6
"""A kernel that does nothing takes about a microsecond; a fraction of that cannot be the time of a launch."""
_WINOGRAD = 4.0
"""F(4x4, 3x3) needs a quarter of a convolution's multiplications (Lavin and Gray, arXiv 1509.09308)."""
_SERIAL_FLOP_S, _SERIAL_ACCESS_S, _SERIAL_START_S = 50e-9, 2e-6, 1e-3
"""One thread alone: an operation in 50 clocks, an element of memory in twice the latency of DRAM."""


def floor_s(problem: Problem, gpu: GPU) -> float:
    """Return the time in seconds that no kernel can undercut.

    It is the time of the compulsory bytes past L2 at the memory's bandwidth, or of the operations at the highest peak
    of any data type of eight bits or more, with a margin for boards above their data sheet.
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
    """Return the time in seconds of a single thread; None if the spec does not state the number of operations."""
    if not problem.flops:
        return None
    elements = sum(tensor.touched for tensor in problem.tensors.values())
    return _SERIAL_START_S + problem.flops * _SERIAL_FLOP_S + elements * _SERIAL_ACCESS_S


def implausible(times_s: list[float], problem: Problem, gpu: GPU) -> str | None:
    """Return what is wrong with recorded times in one line, or None."""
    least, most = floor_s(problem, gpu), ceiling_s(problem)
    below = [time for time in times_s if time < least]
    if below:
        return (
            f"{len(below)} of {len(times_s)} times are below {human(least, 's')}, which {problem.key} needs on"
            f" {gpu.title} at its peak (the least is {human(min(below), 's')}): wrong unit, shape or GPU?"
        )
    if most is not None and (above := [time for time in times_s if time > most]):
        return (
            f"{len(above)} of {len(times_s)} times are above {human(most, 's')}, in which a single thread does"
            f" {problem.key} (the most is {human(max(above), 's')}): wrong unit or shape?"
        )
    return None
