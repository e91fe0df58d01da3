"""Test which buffers hold indexes into other buffers."""

import pytest

from kernrec.profile.ptx_kernel import kernel_of_ptx
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
