"""Test that `kernrec check` reports the line of every planted bug, and reports nothing for correct kernels."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from kernrec.cli import app
from kernrec.ptx import KernelLaunch, parse
from kernrec.ptx.execution.emulator import Emulation
from kernrec.ptx.execution.watched import CheckedMemory, EmulationOptions
from tests.helpers.ptx_text import ptx


@dataclass(frozen=True)
class Case:
    """Kernel with one launch. `kind` and `memory` describe the finding that `kernrec check` must report."""

    name: str
    source: str
    arguments: list[str]
    grid: int = 1
    block: int = 64
    shared: int = 0
    kind: str = ""
    memory: str = ""


CASES = tomllib.loads(Path(__file__).with_name("planted.toml").read_text())
BUGS, CLEAN = ([Case(**case) for case in CASES[group]] for group in ("bugs", "clean"))

pytestmark = pytest.mark.usefixtures("compiled_here", "nvrtc")


def run(case: Case, folder: Path, *options: object) -> int:
    (path := folder / "case.cu").write_text(case.source)
    words = ["check", path, *case.arguments, "--grid", case.grid, "--block", case.block, "--shared", case.shared]
    return app.run([str(word) for word in (*words, *options)])


@pytest.mark.parametrize("case", BUGS, ids=lambda case: case.name)
def test_bug_is_reported_with_its_source_line(case, tmp_path, capsys):
    assert run(case, tmp_path) == 1
    printed = capsys.readouterr()
    assert f"[{case.kind}, kernel " in printed.out, printed.out + printed.err
    lines = [number for number, text in enumerate(case.source.splitlines(), 1) if "// BUG" in text]
    (finding,) = [line for line in printed.out.splitlines() if f"[{case.kind}, " in line][:1]
    assert not lines or finding.startswith(f"case.cu:{lines[0]}: error: "), finding
    named = (f" of {case.memory}", f" before `{case.memory}`")
    assert not case.memory or any(name in finding for name in named), finding


def test_race_on_one_element_suggests_an_atomic(tmp_path, capsys):
    source = "__global__ void f(const int *x, int *y) {\n    y[x[threadIdx.x + blockIdx.x * 64] & 3] += 1;\n}\n"
    assert run(Case("two", source, ["x=i32[128]", "y=i32[4]"], grid=2), tmp_path) == 1
    assert "use an atomic operation, such as atomicAdd() [race-" in capsys.readouterr().out


def test_race_between_two_elements_suggests_a_barrier(tmp_path, capsys):
    source = """__global__ void f(int *y) {
    __shared__ int s[64];
    s[threadIdx.x] = y[threadIdx.x];
    __syncthreads();
    for (int d = 32; d > 0; d /= 2)
        if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d];
    y[threadIdx.x] = s[0];
}
"""
    assert run(Case("sum", source, ["y=i32[64]"]), tmp_path) == 1
    printed = capsys.readouterr().out
    assert "put __sync" in printed
    assert "atomicAdd" not in printed


def test_check_refuses_only_kernels_that_launch_other_kernels(tmp_path, capsys):
    source = "__global__ void f(int *x) { x[threadIdx.x] = 1; }\n__global__ void g(int *x) { f<<<1, 64>>>(x); }\n"
    options = ("x=i32[64]", "--grid", "1", "--block", "64")
    (path := tmp_path / "case.cu").write_text(source)
    assert app.run(["check", f"{path}:f", *options]) == 0
    assert app.run(["check", f"{path}:g", *options]) == 1
    assert "launches a kernel" in capsys.readouterr().err


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: case.name)
def test_correct_kernel_has_no_findings(case, tmp_path, capsys):
    assert run(case, tmp_path) == 0, capsys.readouterr().out


GUARDED = """.version 8.6
.target sm_80
.address_size 64
.visible .entry f(.param .u64 y)
{
.reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %a<3>;
ld.param.u64 %a0, [y]; mov.u32 %r0, %ctaid.x; setp.eq.u32 %p0, %r0, 0;
@%p0 mov.u32 %r1, 5;
@%p0 setp.eq.u32 %p1, %r0, 0;
selp.b32 %r2, 7, %r1, %p1;
mul.wide.u32 %a1, %r0, 4; add.u64 %a2, %a0, %a1; st.global.u32 [%a2], %r2;
ret;
}
"""


@pytest.mark.parametrize("together", [1, 3])
def test_unassigned_register_is_zero_in_every_block(together):
    y = np.full(3, -1, np.int32)
    emulation = Emulation(parse(GUARDED), KernelLaunch("f", (3,), (1,), ["y"], {"y": y}), EmulationOptions(together))
    for first in range(0, 3, together):
        emulation.run(range(3)[first : first + together])
    assert y.tolist() == [7, 0, 0]


INCREMENT = """.version 8.6
.target sm_80
.address_size 64
.visible .entry f(.param .u64 y)
{
.reg .b32 %r<5>; .reg .b64 %a<3>;
ld.param.u64 %a0, [y]; mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;
mad.lo.u32 %r3, %r0, %r1, %r2;
mul.wide.u32 %a1, %r3, 4; add.u64 %a2, %a0, %a1;
ld.global.u32 %r4, [%a2]; add.u32 %r4, %r4, 1; st.global.u32 [%a2], %r4;
ld.global.u32 %r4, [%a2]; add.u32 %r4, %r4, 1; st.global.u32 [%a2], %r4;
ret;
}
"""


def test_race_check_has_no_false_alarm_with_80000_threads():
    blocks, threads = 80, 1024  # More than 65,536 threads.
    y = np.zeros(blocks * threads, np.int32)
    launch = KernelLaunch("f", (blocks,), (threads,), ["y"], {"y": y})
    options = EmulationOptions(blocks, batch_lanes=y.size, checked=CheckedMemory())
    emulation = Emulation(parse(INCREMENT), launch, options)
    emulation.run(range(blocks))
    assert not emulation.findings
    assert (y == 2).all()


def test_barrier_of_a_cluster_orders_accesses_to_shared_memory():
    body = """mov.u32 %r1, %tid.x; shl.b32 %r1, %r1, 2; mov.u32 %r2, held; add.u32 %r1, %r1, %r2;
      mov.u32 %r3, %cluster_ctarank; xor.b32 %r3, %r3, 1; mapa.shared::cluster.u32 %r3, %r1, %r3;
      st.shared.u32 [%r1], 7; barrier.cluster.arrive; barrier.cluster.wait; ld.shared::cluster.u32 %r4, [%r3];
      barrier.cluster.arrive; barrier.cluster.wait;"""
    text = ptx(".shared .align 4 .b8 held[128]; " + body, target="sm_90").replace(
        ")\n{", ").reqnctapercluster 2, 1, 1 {"
    )
    options = EmulationOptions(2, checked=CheckedMemory())
    emulation = Emulation(parse(text), KernelLaunch("k", (2,), (32,), [], {}), options)
    emulation.run(range(2))
    assert not emulation.findings


SIZES = """
__global__ void f(float *Y, int n) { Y[64 * n + threadIdx.x] = 1; }
float *made();
int main() {
    float *Y = SIZE;
    f<<<1, 64>>>(Y, 128);
}
"""


@pytest.mark.parametrize(("size", "status"), [("made()", 0), ("0; cudaMalloc(&Y, 128 * sizeof(float))", 1)])
def test_access_beyond_a_buffer_of_guessed_size_is_no_error(size, status, tmp_path, capsys):
    (path := tmp_path / "sizes.cu").write_text(SIZES.replace("SIZE", size))
    assert app.run(["check", str(path)]) == status
    printed = capsys.readouterr()
    assert ("bytes beyond Y, whose size kernrec assumed" in printed.err) is (status == 0), printed
