"""Test which results the emulator may skip, and that its counts stay equal."""

from dataclasses import replace

import numpy as np
import pytest

from kernrec.profile.sample_profile import SAMPLING, sampled_counts
from kernrec.ptx import KernelLaunch, parse
from kernrec.ptx.analysis.unneeded_results import unneeded_results
from tests.helpers.paths import ROOT, beside
from tests.helpers.ptx_text import cuda


def skipped(body: str) -> list[str]:
    """Return the instructions of a kernel body whose results affect no count."""
    text = beside(__file__, "dependence_head.ptx") + body + "\nDONE:\n    ret;\n}\n"
    function = parse(text).functions["k"]
    texts = [function.instructions[place].text.strip() for place in sorted(unneeded_results(function))]
    return [text for text in texts if not text.startswith("ld.param")]


@pytest.mark.parametrize(("body", "expected"), [
    ("add.u32 %r4, %r3, 1; st.global.u32 [%rd4], %r4;", ["ld.global.u32 %r3, [%rd4];", "add.u32 %r4, %r3, 1;"]),
    # The sum is an address.
    ("cvt.u64.u32 %rd5, %r2; add.s64 %rd6, %rd4, %rd5; ld.global.u32 %r4, [%rd6];",
     ["ld.global.u32 %r3, [%rd4];", "ld.global.u32 %r4, [%rd6];"]),
    # A shuffle names its lanes in a register.
    ("mov.u32 %r5, -1; shfl.sync.bfly.b32 %r4, %r3, 1, 31, %r5; st.global.u32 [%rd4], %r4;",
     ["ld.global.u32 %r3, [%rd4];", "shfl.sync.bfly.b32 %r4, %r3, 1, 31, %r5;"]),
    # Data decide the address or the branch.
    ("mul.wide.u32 %rd5, %r3, 4; ld.global.u32 %r4, [%rd5];", []),
    ("setp.gt.u32 %p2, %r3, 7;\n@%p2 bra DONE;", []),
    ("st.shared.u32 [tile], %r2; ld.shared.u32 %r4, [tile]; cvt.u64.u32 %rd5, %r4; ld.global.u32 %r5, [%rd5];", []),
    # The carry of the first sum is part of the address.
    ("add.cc.u32 %r4, %r1, %r2; addc.u32 %r5, %r1, 0; cvt.u64.u32 %rd5, %r5; st.global.u32 [%rd5], %r3;", []),
    # The kernel writes a tensor map.
    ("st.global.u32 [%rd4], %r3; fence.proxy.tensormap::generic.acquire.gpu [%rd4], 128;", []),
])  # fmt: skip
def test_only_results_without_effect_on_counts_are_skipped(body, expected):
    assert skipped(body) == expected


TEXTBOOK = ROOT / "datasets" / "kernels" / "textbook"
PRODUCT = """extern "C" __global__ void product(const unsigned *a, float *y, int size) {
    unsigned x = a[threadIdx.x];
    float d[4] = {};
    for (int k = 0; k < size; k++)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                     "{%0, %1, %2, %3}, {%4, %4}, {%4}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(x));
    y[blockIdx.x * blockDim.x + threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}"""


@pytest.mark.parametrize("name", ["nbody", "matvec_shared", "product"])
def test_counts_are_equal_without_results(name):
    source = PRODUCT if name == "product" else (TEXTBOOK / f"{name}.cu").read_text(encoding="utf-8")
    module, size = cuda(source, defines={"BLOCK": 64}), 256
    buffers = {buffer: np.zeros(size * size, np.uint32) for buffer in ("a", "x", "y")}
    arguments = ["a", "x", "y"] if name == "matvec_shared" else ["a", "y"]
    launch = KernelLaunch(name, (size // 64, 1, 1), (64, 1, 1), [*arguments, np.int32(size)], buffers)
    assert unneeded_results(module.functions[name])
    counts = sampled_counts(module, launch)
    assert sampled_counts(module, launch, replace(SAMPLING, results=False)) == counts
    assert ("mma.f16" in counts) == (name == "product")
