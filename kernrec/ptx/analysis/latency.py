"""How long a warp takes for a basic block if nothing else runs: the longest chain of dependent instructions.

Latencies in clocks, from issue to the issue of an instruction that uses the result: 4 of 32-bit arithmetic, 5 of
integer multiplication, 14 to 20 of conversions and special functions, 23 of shared memory and shuffles (Jia et al.,
"Dissecting the NVIDIA Turing T4 GPU via Microbenchmarking", arXiv 1903.07486, and Abdelkhalik et al., arXiv 2208.11174,
tables of instruction latency, rounded; 23 clocks of shared memory were also measured on an RTX 2070 and an RTX 3060).
What is the same on all generations within a few clocks is taken as one figure. Loads from global memory count no time
here: `dependence.load_chain` counts them, and what they take depends on caches.
"""

from kernrec.ptx.analysis.issue_cost import classify
from kernrec.ptx.ir.program import BasicBlock, Instruction, accumulates

_LATENCY_CLK = {
    "fma32": 4, "alu": 4, "setp": 6, "imad": 5, "wide64": 5, "f16": 5, "f64": 8, "mov": 0, "cvt": 14, "mufu": 20,
    "ld_shared": 23, "st_shared": 1, "shfl": 23, "ld_const": 8, "ld_global": 1, "st_global": 1, "ld_local": 30,
    "st_local": 1, "mma": 18, "atomic": 1, "cp_async": 1, "branch": 8, "bar": 1, "other": 4,
}  # fmt: skip
_SHARED_ATOMIC_CLK = 50  # an addition to shared memory whose old value is used (assumption: twice a load)
_WGMMA_COLUMNS_PER_CLK = 2
"""Columns of `wgmma.mma_async` that the tensor cores of an SM finish in a clock: 64 rows, 32 bytes along K, at 2,048
multiply-adds of f16 a clock (H100 data sheet)."""


def chain_clk(block: BasicBlock) -> int:
    """Clocks that a warp needs at least for the block: its longest chain, or an instruction a clock."""
    ready: dict[str, int] = {}  # by register: when its value is there
    last, issued = 0, 0
    for ins in block.instructions:
        cost = classify(ins)
        slots = sum(count for name, count in cost if name != "mov")
        latency = sum(_LATENCY_CLK.get(name, 4) * count for name, count in cost)
        if ins.opcode == "atom" and "shared" in ins.modifiers:
            latency = _SHARED_ATOMIC_CLK
        elif accumulates(ins):
            latency = max(_wgmma_columns(ins) // _WGMMA_COLUMNS_PER_CLK, _LATENCY_CLK["mma"])
        done = max((ready.get(name, 0) for name in ins.sources), default=0) + latency
        for name in ins.results:
            ready[name] = done
        last = max(last, done)
        issued += slots
    return max(last, issued)


def _wgmma_columns(ins: Instruction) -> int:
    shape = next((mark for mark in ins.modifiers if mark.startswith("m64n")), "m64n8k16")
    return int(shape[4 : shape.index("k")])
