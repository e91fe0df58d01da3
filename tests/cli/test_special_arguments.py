"""Test null pointers, pointers into a buffer, structures and half-precision numbers as kernel arguments."""

import json

import numpy as np
import pytest

from kernrec.checking.check import described_arguments
from kernrec.checking.child_process import Limits
from kernrec.compile.nvrtc import compile_source
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
