"""Test setting `__constant__` and `__device__` variables in `kernrec check` and `kernrec analyze`."""

import json
import subprocess

import numpy as np
import pytest

from kernrec.compile.nvrtc import compile_source
from kernrec.interop.host_launches import filled_variables
from tests.helpers.command import run_here
from tests.helpers.paths import beside

KERNEL = beside(__file__, "variables.cu")
HOST = """
int main(int argc, char **argv)
{
    const int n = 4096; int w = n / 2; float h[4], *x, *y;
    cudaMalloc(&x, n * sizeof(float)); cudaMalloc(&y, n * sizeof(float));
    cudaMemcpyToSymbol(coef, h, sizeof(h)); cudaMemcpyToSymbol(width, &w, sizeof(int));
    scale<<<n / 256, 256>>>(x, y);
}
"""
LAUNCH = ("x=f32[256]", "y=zeros:f32[256]", "--grid", "2", "--block", "128")
NOTE = "read as zero, because no argument sets them: coef, width, hits; coef=f32[4] sets coef"


@pytest.fixture
def source(nvrtc, tmp_path):
    path = tmp_path / "scale.cu"
    path.write_text(KERNEL)
    return path


def check(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_here("check", *arguments)


def test_kernel_reads_variables_from_arguments(source, tmp_path):
    np.save(tmp_path / "coef.npy", np.arange(4, dtype=np.float32))
    np.save(tmp_path / "x.npy", np.ones(256, np.float32))
    result, coef = tmp_path / "y.npy", f"coef=@{tmp_path / 'coef.npy'}"
    launch = (f"x=@{tmp_path / 'x.npy'}", *LAUNCH[1:], "--save", f"y={result}")
    done = check(source, coef, "width=i32:255", "hits=u32:7", *launch)
    assert done.returncode == 0, done.stderr
    assert np.load(result).tolist() == [*np.resize([7.0, 8.0, 9.0, 10.0], 255), 0.0]


def test_contents_larger_than_their_variable_are_refused(source):
    assert "coef has 16 bytes, 20 were given" in check(source, *LAUNCH, "coef=f32[5]").stderr


def test_host_code_sets_variables(source):
    source.write_text(KERNEL + HOST)
    assert filled_variables(KERNEL + HOST) == {"coef": "", "width": "2048"}
    assert "read as zero, because no argument sets them: hits; hits=u32:1 sets hits" in check(source).stderr
    done = check(source, "hits=3", "--json")
    assert json.loads(done.stdout)["scale"]["findings"] == []
    assert "no argument sets" not in done.stderr


def test_analyze_accepts_variables_for_source_and_ptx(source, tmp_path):
    command = ("analyze", "--gpu", "t4", "--db", tmp_path / "db", "--json")
    launch = (source, "x=f32[4096]", "y=f32[4096]", "--grid", "16", "--block", "256")
    assert NOTE in run_here(*command, *launch).stderr
    done = run_here(*command, *launch, "coef=f32[4]", "--arg", "width=4096", "--arg", "hits=0")
    assert json.loads(done.stdout)["recommendations"]
    assert "no argument sets" not in done.stderr
    ptx = source.with_suffix(".ptx")
    ptx.write_text(compile_source(KERNEL, 75).ptx)
    assert NOTE in run_here(*command, ptx, *launch[1:]).stderr
    arguments = ("--arg", "coef=f32[4]", "--arg", "width=i32:4096", "--arg", "hits=u32:0")
    done = run_here(*command, ptx, *launch[1:], *arguments)
    assert json.loads(done.stdout)["recommendations"], done.stderr
    assert "no argument sets" not in done.stderr
