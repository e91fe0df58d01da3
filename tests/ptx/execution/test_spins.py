"""Test that threads spinning on a value run last, so that the threads that store the value make progress."""

import numpy as np
import pytest

from kernrec.ptx import EmulationError, KernelLaunch, emulate, parse
from kernrec.ptx.analysis.spin_loops import spins
from tests.helpers.ptx_text import cuda

RELAY = r"""
// Every block but the last waits for the one after it, takes its number, adds 1, and passes it on.
extern "C" __global__ void relay(volatile int* passed, int* out) {
    int mine = 1;
    if (blockIdx.x + 1 < gridDim.x) {
        int got;
        while ((got = passed[blockIdx.x + 1]) == 0);
        mine = got + 1;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x == 0) passed[blockIdx.x] = mine;
}
"""


def relay(source: str, blocks: int) -> list[int]:
    buffers = {"passed": np.zeros(blocks, np.int32), "out": np.zeros(blocks * 32, np.int32)}
    launch = KernelLaunch("relay", (blocks,), (32,), ["passed", "out"], buffers)
    emulate(cuda(source), launch, budget=100_000)
    return buffers["out"][::32].tolist()


def test_concurrent_blocks_wait_for_each_other():
    assert relay(RELAY, 4) == [4, 3, 2, 1]


def test_endless_wait_is_a_deadlock():
    silent = RELAY.replace("if (threadIdx.x == 0) passed", "if (threadIdx.x == 99) passed")
    with pytest.raises(
        EmulationError, match=r"deadlock: block \(\d+, 0, 0\) thread \(0, 0, 0\) waits for what another"
    ):
        relay(silent, 4)


LOOPS = {
    "@p bra AGAIN": ("ld.volatile.global.u32 %r1, [%rd1]; setp.eq.u32 %p1, %r1, 0; @%p1 bra AGAIN;", True),
    "counts": (
        "ld.volatile.global.u32 %r1, [%rd1]; add.u32 %r2, %r2, 1; setp.ne.u32 %p1, %r2, %r1; @%p1 bra AGAIN;",
        False,
    ),
    "walks": ("ld.global.u32 %r1, [%rd1]; add.u64 %rd1, %rd1, 4; setp.eq.u32 %p1, %r1, 0; @%p1 bra AGAIN;", False),
    "takes a lock": ("atom.global.cas.b32 %r1, [%rd1], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra AGAIN;", True),
    "takes numbers": ("atom.global.add.u32 %r1, [%rd1], 1; setp.lt.u32 %p1, %r1, 9; @%p1 bra AGAIN;", False),
    "stores": (
        "st.global.u32 [%rd1], 1; ld.volatile.global.u32 %r1, [%rd1+4]; setp.eq.u32 %p1, %r1, 0; @%p1 bra AGAIN;",
        False,
    ),
}


@pytest.mark.parametrize(("body", "waits"), LOOPS.values(), ids=LOOPS)
def test_only_a_loop_ended_by_other_blocks_is_a_wait(body, waits):
    module = parse(f"""
        .version 8.0 .target sm_80 .address_size 64
        .visible .entry k(.param .u64 p) {{
            .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %rd<2>;
            ld.param.u64 %rd1, [p];
            mov.u32 %r2, 0;
            AGAIN: {body}
            ret;
        }}""")
    assert [spins(block) for block in module.functions["k"].blocks] == [False, waits, False]
