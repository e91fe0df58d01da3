"""Test variables, null pointers, pointers into a buffer, structures and half-precision numbers as arguments."""

import json
import subprocess

import numpy as np
import pytest

from kernrec.checking.check import described_arguments
from kernrec.checking.child_process import Limits
from kernrec.compile.nvrtc import compile_source
from kernrec.interop.host_launches import filled_variables
from kernrec.profile.launch_arguments import read_arguments, structure
from tests.helpers.command import run_here
from tests.helpers.paths import beside

KERNEL = beside(__file__, "special_arguments.cu")
FIELDS = "s=struct(i8:-1,f32:2,i32:3)"
LAUNCH = ("--grid", "1", "--block", "32")


@pytest.fixture
def source(nvrtc, tmp_path):
    path = tmp_path / "scale.cu"
    path.write_text(KERNEL)
    return path


def test_kernel_receives_the_given_arguments(source, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(64, dtype=np.float16))
    x, result = f"x=@{tmp_path / 'x.npy'}", tmp_path / "y.npy"
    done = run_here(
        "check", source, x, "tail=x+32", "bias=null", FIELDS, "f16:0.5", "y=f32[32]", *LAUNCH, "--save", f"y={result}"
    )
    assert done.returncode == 0, done.stderr
    assert np.load(result).tolist() == [-(2.0 * i + 32) + 3 for i in range(32)]
    done = run_here("check", source, x, "tail=x+33", "bias=null", FIELDS, "f16:0.5", "y=f32[32]", *LAUNCH)
    assert done.returncode == 1  # the last thread reads past the end of the buffer


def test_analyze_accepts_special_arguments_for_source_and_ptx(source, tmp_path):
    command = ("analyze", "--gpu", "t4", "--db", tmp_path / "db", "--json")
    arguments = ("x=f16[64]", "tail=x+32", "bias=null", FIELDS, "y=f32[32]", *LAUNCH)
    done = run_here(*command, source, "alpha=0.5", *arguments)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["recommendations"]
    ptx = source.with_suffix(".ptx")
    ptx.write_text(compile_source(KERNEL, 75).ptx)
    done = run_here(*command, ptx, *arguments[:4], "f16:0.5", *arguments[4:])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["recommendations"]


def test_structures_have_the_c_layout():
    assert structure("i8:1, f64:1, i16:2").hex() == "01" + "00" * 7 + "000000000000f03f" + "0200" + "00" * 6
    assert read_arguments(["s=bytes:0102ff"]).order == [b"\x01\x02\xff"]


def test_mcp_tools_refuse_special_arguments(refuses):
    refuses(lambda argument: described_arguments(["x=f32[4]", argument], Limits()), [FIELDS, "p=x+1"])


def test_wrong_arguments_are_refused_in_one_line(refuses):
    refuses(read_arguments, [["p=x+4"], ["x=f32[4]", "p=x+5"], ["s=struct(f32:1,f32[4])"], ["s=struct(i8:300)"]])


WITH_VARIABLES = beside(__file__, "variables.cu")
HOST = beside(__file__, "variables_host.cu")
VARIABLES_LAUNCH = ("x=f32[256]", "y=zeros:f32[256]", "--grid", "2", "--block", "128")
NOTE = "read as zero, because no argument sets them: coef, width, hits; coef=f32[4] sets coef"


@pytest.fixture
def variables_source(nvrtc, tmp_path):
    path = tmp_path / "scale.cu"
    path.write_text(WITH_VARIABLES)
    return path


def check(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_here("check", *arguments)


def test_kernel_reads_variables_from_arguments(variables_source, tmp_path):
    np.save(tmp_path / "coef.npy", np.arange(4, dtype=np.float32))
    np.save(tmp_path / "x.npy", np.ones(256, np.float32))
    result, coef = tmp_path / "y.npy", f"coef=@{tmp_path / 'coef.npy'}"
    launch = (f"x=@{tmp_path / 'x.npy'}", *VARIABLES_LAUNCH[1:], "--save", f"y={result}")
    done = check(variables_source, coef, "width=i32:255", "hits=u32:7", *launch)
    assert done.returncode == 0, done.stderr
    assert np.load(result).tolist() == [*np.resize([7.0, 8.0, 9.0, 10.0], 255), 0.0]


def test_contents_larger_than_their_variable_are_refused(variables_source):
    assert "coef has 16 bytes, 20 were given" in check(variables_source, *VARIABLES_LAUNCH, "coef=f32[5]").stderr


def test_host_code_sets_variables(variables_source):
    variables_source.write_text(WITH_VARIABLES + HOST)
    assert filled_variables(WITH_VARIABLES + HOST) == {"coef": "", "width": "2048"}
    assert "read as zero, because no argument sets them: hits; hits=u32:1 sets hits" in check(variables_source).stderr
    done = check(variables_source, "hits=3", "--json")
    assert json.loads(done.stdout)["scale"]["findings"] == []
    assert "no argument sets" not in done.stderr


def test_analyze_accepts_variables_for_source_and_ptx(variables_source, tmp_path):
    command = ("analyze", "--gpu", "t4", "--db", tmp_path / "db", "--json")
    launch = (variables_source, "x=f32[4096]", "y=f32[4096]", "--grid", "16", "--block", "256")
    assert NOTE in run_here(*command, *launch).stderr
    done = run_here(*command, *launch, "coef=f32[4]", "--arg", "width=4096", "--arg", "hits=0")
    assert json.loads(done.stdout)["recommendations"]
    assert "no argument sets" not in done.stderr
    ptx = variables_source.with_suffix(".ptx")
    ptx.write_text(compile_source(WITH_VARIABLES, 75).ptx)
    assert NOTE in run_here(*command, ptx, *launch[1:]).stderr
    arguments = ("--arg", "coef=f32[4]", "--arg", "width=i32:4096", "--arg", "hits=u32:0")
    done = run_here(*command, ptx, *launch[1:], *arguments)
    assert json.loads(done.stdout)["recommendations"], done.stderr
    assert "no argument sets" not in done.stderr
