"""Test which buffers hold indexes into other buffers."""

import pytest

from kernrec.compile import compile_source
from kernrec.profile.ptx_kernel import kernel_of_ptx
from kernrec.ptx import parse
from kernrec.ptx.analysis.dependence import global_pointers
from kernrec.ptx.analysis.indexes import Index, indexes_of
from tests.helpers.ptx_text import module, ptx

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
def test_index_has_its_target_and_bytes_per_step(body, targets):
    function = module(START + body, PARAMETERS).functions["k"]
    assert indexes_of(function) == ({"idx": Index(targets, ascending=False)} if targets else {})  # type: ignore[arg-type]


def test_indexes_in_ptx_cover_the_tensor_they_index(tmp_path):
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
"""Maps a body to the parameter numbers behind its reads and its writes, or to None if they are unknown."""


@pytest.mark.parametrize("body", BODIES)
def test_reads_and_writes_follow_from_parameters(nvrtc, body):
    source = f'extern "C" __global__ void k(int* x, int* y, int n) {{ int i = threadIdx.x; {body} }}'
    function = parse(compile_source(source, 80).ptx).functions["k"]
    numbers = {parameter.name: number for number, parameter in enumerate(function.parameters)}
    pointers = global_pointers(function)
    assert (pointers and tuple({numbers[name] for name in names} for names in pointers)) == BODIES[body]
