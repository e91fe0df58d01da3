"""Test which code depends on data, and how many loads wait for each other."""

import numpy as np
import pytest

from kernrec.compile import compile_source
from kernrec.profile.ptx_kernel import kernel_of_ptx
from kernrec.ptx import EmulationError, KernelLaunch, emulate, parse
from kernrec.ptx.analysis.dependence import blocks_run_alike, data_dependences, global_pointers, load_depths, spins
from kernrec.ptx.analysis.indexes import Index, indexes_of
from kernrec.ptx.analysis.liveness import live_registers
from tests.helpers.paths import beside
from tests.helpers.ptx_text import cuda, module, ptx


def kernel(body: str):  # type: ignore[no-untyped-def]
    return parse(beside(__file__, "dependence_head.ptx") + body + "\nDONE:\n    ret;\n}\n").functions["k"]


def test_address_from_a_loaded_index_is_data_dependent():
    dependences = data_dependences(
        kernel("mul.wide.u32 %rd5, %r3, 4; add.s64 %rd6, %rd2, %rd5;\nld.global.u32 %r4, [%rd6];")
    )
    assert [(d.kind, d.text) for d in dependences] == [("load", "ld.global.u32 %r4, [%rd6];")]


def test_independent_loads_wait_once_and_dependent_loads_each_time():
    apart = kernel("ld.global.u32 %r4, [%rd4+4];\nld.global.u32 %r5, [%rd4+8];")
    chained = kernel("cvt.u64.u32 %rd5, %r3;\nld.global.u64 %rd6, [%rd5];\nld.global.u32 %r4, [%rd6];")
    assert max(depth for _, depth in load_depths(apart.instructions)) == 1
    assert max(depth for _, depth in load_depths(chained.instructions)) == 3


def test_only_simultaneously_live_values_need_registers():
    alone = live_registers(kernel(""))
    sums = "add.u32 %r7, %r4, %r5; add.u32 %r7, %r7, %r6; st.global.u32 [%rd4], %r7;"
    stored = kernel("add.u32 %r4, %r3, 1; add.u32 %r5, %r3, 2; add.u32 %r6, %r3, 3;\n" + sums)
    reused = kernel("add.u32 %r4, %r3, 1; add.u32 %r4, %r4, 2; add.u32 %r4, %r4, 3;\nst.global.u32 [%rd4], %r4;")
    assert live_registers(reused) <= live_registers(stored)
    assert live_registers(stored) == 2 + 3  # the address and three terms
    assert alone >= 2


@pytest.mark.parametrize(
    ("body", "alike"),
    [
        ("", True),
        ("mov.u32 %r4, %ctaid.x; mad.lo.u32 %r5, %r4, 64, %r2;\nst.global.u32 [%rd4], %r5;", True),
        ("mov.u32 %r4, %nctaid.x; add.u32 %r5, %r4, %r1; setp.gt.u32 %p2, %r5, 7;\n@%p2 bra DONE;", True),
        ("mov.u32 %r4, %ctaid.x; mad.lo.u32 %r5, %r4, 64, %r2; setp.gt.u32 %p2, %r5, %r1;\n@%p2 bra DONE;", False),
        ("mov.u32 %r4, %ctaid.x; setp.gt.u32 %p2, %r4, 7; selp.u32 %r5, 1, 0, %p2; bar.sync %r5;", False),
        ("mov.u32 %r4, %smid; setp.gt.u32 %p2, %r4, 7;\n@%p2 exit;", False),
        ("setp.gt.u32 %p2, %r3, 7;\n@%p2 bra DONE;", False),
        ("ld.shared.u32 %r4, [tile]; setp.gt.u32 %p2, %r4, 7;\n@%p2 bra DONE;", False),
        ("mov.u32 %r4, 5;\nLOOP:\nsub.u32 %r4, %r4, 1; setp.gt.u32 %p2, %r4, 0;\n@%p2 bra LOOP;", True),
    ],
)  # fmt: skip
def test_blocks_run_alike_if_branches_ignore_block_index_and_data(body, alike):
    assert blocks_run_alike(kernel(body)) is alike


RELAY = beside(__file__, "relay.cu")


def relay(source: str, blocks: int) -> list[int]:
    buffers = {"passed": np.zeros(blocks, np.int32), "out": np.zeros(blocks * 32, np.int32)}
    launch = KernelLaunch("relay", (blocks,), (32,), ["passed", "out"], buffers)
    emulate(cuda(source), launch, budget=100_000)
    return buffers["out"][::32].tolist()


def test_emulated_blocks_can_wait_for_each_other():
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
def test_only_loops_that_poll_memory_count_as_waiting_for_other_blocks(body, waits):
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


PARAMETERS = "u64 x, u64 idx, u64 y, u32 c"
START = """
ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [idx]; ld.param.u64 %rd3, [y]; ld.param.u32 %r9, [c];
mov.u32 %r1, %tid.x; mul.wide.u32 %rd4, %r1, 4; add.s64 %rd5, %rd2, %rd4; ld.global.u32 %r2, [%rd5];
"""


@pytest.mark.parametrize(("body", "targets"), [
    ("mul.wide.u32 %rd6, %r2, 4; add.s64 %rd7, %rd1, %rd6; ld.global.f32 %f1, [%rd7+8];", {"x": (4, ())}),
    (
        "mad.lo.s32 %r3, %r2, %r9, %r1; mul.wide.s32 %rd6, %r3, 2; add.s64 %rd7, %rd1, %rd6;"
        " ld.global.u16 %rs1, [%rd7];",
        {"x": (2, ("c",))},
    ),
    (
        "cvt.u64.u32 %rd6, %r2; shl.b64 %rd8, %rd6, 3; add.s64 %rd7, %rd8, %rd3; st.global.u64 [%rd7], %rd4;",
        {"y": (8, ())},
    ),
    ("and.b32 %r3, %r2, 15; mul.wide.u32 %rd6, %r3, 4; add.s64 %rd7, %rd1, %rd6; ld.global.f32 %f1, [%rd7];", {}),
    ("add.s64 %rd7, %rd3, %rd4; st.global.u32 [%rd7], %r2;", {}),
])  # fmt: skip
def test_index_parameter_names_its_target_and_stride_in_bytes(body, targets):
    function = module(START + body, PARAMETERS).functions["k"]
    assert indexes_of(function) == ({"idx": Index(targets, ascending=False)} if targets else {})  # type: ignore[arg-type]


def test_ptx_index_values_cover_the_tensor_they_index(tmp_path):
    gather = "mad.lo.s32 %r3, %r2, %r9, %r1; mul.wide.s32 %rd6, %r3, 4;"
    gather += " add.s64 %rd7, %rd1, %rd6; ld.global.f32 %f1, [%rd7];"
    (path := tmp_path / "k.ptx").write_text(ptx(START + gather, PARAMETERS))
    kernel, _ = kernel_of_ptx(path, None, [1], [32], ["x=f32[6400]", "idx=u32[32]", "y=f32[32]", "i32:64"])
    assert kernel.spec["problem"]["tensors"]["idx"]["values"] == "index x 64"


BODIES = {
    "y[i] = x[i];": ({0}, {1}),
    "y[i] += x[i];": ({0, 1}, {1}),
    "atomicAdd(&y[i], x[i]);": ({0}, {1}),
    "atomicAdd(&y[x[i]], 1);": None,
    "if (atomicAdd(&y[0], 1) < n) x[i] = 3;": ({1}, {0, 1}),
    "__shared__ int own[64]; own[i] = x[i]; __syncthreads(); y[own[63 - i]] = n;": None,
    "(n > 3 ? x : y)[i] = 3;": (set(), {0, 1}),
    "((int*)*(long long*)x)[i] = n;": None,
}
"""For each kernel body: parameters that it reads through and that it writes through, or None if unknown."""


@pytest.mark.parametrize("body", BODIES)
def test_reads_and_writes_follow_from_parameters(nvrtc, body):
    source = f'extern "C" __global__ void k(int* x, int* y, int n) {{ int i = threadIdx.x; {body} }}'
    function = parse(compile_source(source, 80).ptx).functions["k"]
    numbers = {parameter.name: number for number, parameter in enumerate(function.parameters)}
    pointers = global_pointers(function)
    assert (pointers and tuple({numbers[name] for name in names} for names in pointers)) == BODIES[body]
