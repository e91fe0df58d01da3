"""Test the `kernrec check` command on PTX, which needs no compiler, and on CUDA."""

import json
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.helpers.command import run_here

SCALE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x, .param .f32 a, .param .u32 n)
{
    .reg .pred %p<2>; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %rd<4>;
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    ld.param.u32 %r5, [n];
    setp.ge.u32 %p1, %r4, %r5;
    @%p1 bra DONE;
    ld.param.u64 %rd1, [x]; cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r4, 4; add.s64 %rd3, %rd2, %rd3;
    ld.param.f32 %f1, [a];
    ld.global.f32 %f2, [%rd3]; mul.f32 %f3, %f2, %f1; st.global.f32 [%rd3], %f3;
DONE:
    ret;
}
"""


@pytest.fixture
def scale(tmp_path):
    path = tmp_path / "scale.ptx"
    path.write_text(SCALE)
    return path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_here("check", *arguments)


def test_check_runs_a_kernel_and_counts_its_operations(scale, tmp_path):
    inputs, result = tmp_path / "x.npy", tmp_path / "y.npy"
    values = np.arange(100, dtype=np.float32)
    np.save(inputs, values)
    done = run(
        scale, f"x=@{inputs}", "f32:2.5", "u32:100", "--grid", "4", "--block", "32", "--save", f"x={result}", "--json"
    )
    counts = json.loads(done.stdout)
    assert done.returncode == 0
    assert (np.load(result) == values * 2.5).all()
    # Three full warps read four sectors each, and the four threads of the last warp read one: 13 sectors.
    assert counts["global.x.read_sectors"] == counts["global.x.write_sectors"] == 13
    assert counts["global.x.read_bytes"] == 400
    assert counts["issue.fma32"] == 4


def test_table_states_that_no_gpu_was_used(scale):
    command = [sys.executable, "-m", "kernrec", "check", scale, "x=f32[64]", "f32:2", "u32:64", "--grid", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "global.x.read_requests   2" in done.stdout
    assert "not measured on a GPU" in done.stderr


def test_finding_is_printed_and_written_as_json(scale, tmp_path):
    launch = (scale, "x=f32[63]", "f32:2", "u32:64", "--grid", "2", "--junit", tmp_path / "report.xml")
    done = run(*launch)
    assert done.returncode == 1
    line = SCALE[: SCALE.index("ld.global")].count("\n") + 1
    assert done.stdout.startswith(f"scale.ptx:{line}: error: thread (31, 0, 0) of block (1, 0, 0) accesses 4 bytes")
    assert "[out-of-bounds, kernel scale]" in done.stdout
    (failure,) = ElementTree.parse(tmp_path / "report.xml").getroot().iter("failure")
    assert failure.get("type") == "out-of-bounds"
    (finding,) = json.loads(run(*launch, "--json").stdout)["findings"]
    assert (finding["memory"], finding["byte"], finding["line"]) == ("x", 252, line)


def test_exponential_macros_stop_at_the_limit(tmp_path, monkeypatch):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    monkeypatch.setattr("kernrec.profile.ptx_kernel._COMPILE_LIMIT_S", 1.0)
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    macros = ["#define M0(x) x", *(f"#define M{i}(x) {' + '.join([f'M{i - 1}(x)'] * 10)}" for i in range(1, 7))]
    kernel = 'extern "C" __global__ void k(float* a) { a[0] = M6(a[1]); }'
    (path := tmp_path / "bomb.cu").write_text("\n".join([*macros, kernel]))
    done = run(path, "a=f32[64]")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "kernrec: bomb.cu: compiling took longer than 1 s\n"


COPY = """
.version 8.0
.target sm_80
.address_size 64
.global .texref legacy;
.visible .entry copy(.param .u64 t, .param .u64 y)
{
    .reg .b32 %r<4>; .reg .f32 %f<10>; .reg .b64 %rd<4>;
    mov.u32 %r1, %tid.x; cvt.rn.f32.u32 %f1, %r1; mov.f32 %f2, 0f3f800000;
    ld.param.u64 %rd1, [t];
    tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%rd1, {%f1, %f2}];
    tex.1d.v4.f32.s32 {%f6, %f7, %f8, %f9}, [legacy, {%r1}];
    add.f32 %f4, %f4, %f6;
    ld.param.u64 %rd2, [y]; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd2, %rd2, %rd3;
    st.global.f32 [%rd2], %f4; ret;
}
"""


BOX = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry box(.param .align 64 .b8 x[128], .param .u64 y)
{
    .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<4>;
    .shared .align 128 .b8 tile[512]; .shared .align 8 .b64 bar;
    mov.u32 %r1, bar; mov.u32 %r2, tile; mov.b64 %rd1, x; cvta.param.u64 %rd1, %rd1;
    mov.u32 %r3, %tid.x; mov.u32 %r4, %cluster_ctarank;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra WAIT;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 128;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1, {4, %r4}], [%r1];
WAIT:
    bar.sync 0;
LOOP:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra LOOP;
    shl.b32 %r5, %r3, 2; add.u32 %r6, %r2, %r5; ld.shared.u32 %r7, [%r6];
    ld.param.u64 %rd2, [y]; mad.lo.u32 %r8, %r4, 128, %r5; cvt.u64.u32 %rd3, %r8; add.u64 %rd2, %rd2, %rd3;
    st.global.u32 [%rd2], %r7;
    ret;
}
"""


def test_kernel_with_a_tensor_map_and_a_cluster_runs(tmp_path):
    path, matrix, result = tmp_path / "box.ptx", tmp_path / "x.npy", tmp_path / "y.npy"
    path.write_text(BOX)
    x = np.arange(12 * 16, dtype=np.int32).reshape(12, 16)
    np.save(matrix, x)
    launch = ["y=zeros:i32[64]", "--grid", "2", "--cluster", "2", "--gpu", "h200", "--save", f"y={result}", "--json"]
    done = run(path, f"x=map(box=4x8):@{matrix}", *launch)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(result).reshape(2, 4, 8), [x[:4, 4:12], x[1:5, 4:12]])
    assert json.loads(done.stdout)["bulk.shared_write_bytes"] == 256
    refused = run(path, f"x=map(box=4x8,swizzle=16):@{matrix}", *launch)
    assert refused.returncode == 2
    assert "swizzles 0, 32, 64, 128" in refused.stderr
