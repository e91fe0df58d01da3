"""Test that warps of a block can pass registers to one another, within the block's registers."""

import numpy as np

from kernrec.ptx import KernelLaunch, emulate
from kernrec.ptx.state.register_pool import registers_at_launch
from tests.helpers.ptx_text import cuda

KERNEL = """
extern "C" __global__ void __launch_bounds__(384, 1) k(int* o) {
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 LESS;");
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 MORE;");
    }
    o[threadIdx.x] = threadIdx.x;
}
"""


def launch(less: int, more: int) -> np.ndarray:
    """Return the output of a block in which two warpgroups request registers and a third releases some."""
    out = np.zeros(384, np.int32)
    program = cuda(KERNEL.replace("LESS", str(less)).replace("MORE", str(more)), "sm_90a")
    emulate(program, KernelLaunch("k", (1,), (384,), ["o"], {"o": out}))
    return out


def test_block_has_the_registers_its_warps_requested():
    np.testing.assert_array_equal(launch(40, 232), np.arange(384))


def test_warps_that_request_too_many_registers_wait_forever(refuses):
    refuses(lambda less, more: launch(less, more), [(48, 232), (40, 240)])


def test_impossible_register_count_is_an_error(refuses):
    refuses(lambda less, more: launch(less, more), [(20, 232), (40, 160)])


def test_launch_registers_follow_the_kernel_or_its_block_limit():
    assert registers_at_launch({"maxntid": (384, 1, 1), "minnctapersm": (1,)}) == 168
    assert registers_at_launch({"maxntid": (512, 1, 1)}) == 128
    assert registers_at_launch({"maxntid": (256,), "minnctapersm": (2,)}) == 128
    assert registers_at_launch({"maxntid": (256,), "maxnreg": (90,)}) == 96
    assert registers_at_launch({"maxntid": (32,)}) == 256
    assert registers_at_launch({}) is None
