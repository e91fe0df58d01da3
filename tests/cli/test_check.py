"""Test `kernrec check`: PTX, CUDA, and special arguments of kernels."""

import json
import subprocess
from xml.etree import ElementTree

import numpy as np
import pytest

from kernrec.checking.check import described_arguments
from kernrec.checking.child_process import Limits
from kernrec.compile.nvrtc import compile_source
from kernrec.interop.host_launches import filled_variables
from kernrec.profile.launch_arguments import read_arguments, structure
from tests.helpers.command import run_apart, run_here
from tests.helpers.paths import beside

SCALE = beside(__file__, "scale.ptx", "refusals")
HOST = """int main(int count, char **v) {
    int n = atoi(v[1]);
    float *x;
    cudaMalloc(&x, 4 * n);
    f<<<(n + 255) / 256, 256>>>(x, n);
}
"""


@pytest.fixture
def scale(write):
    return write(SCALE, "scale.ptx")


@pytest.fixture
def source(nvrtc, tmp_path):
    return tmp_path / "scale.cu"


def check(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_here("check", *arguments)


def test_check_runs_a_kernel_and_counts_its_operations(scale, tmp_path):
    inputs, result = tmp_path / "x.npy", tmp_path / "y.npy"
    values = np.arange(100, dtype=np.float32)
    np.save(inputs, values)
    done = check(
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
    done = run_apart("check", scale, "x=f32[64]", "f32:2", "u32:64", "--grid", "2")
    assert "global.x.read_requests   2" in done.stdout
    assert "not measured on a GPU" in done.stderr


def test_finding_is_printed_and_written_as_json(scale, tmp_path):
    launch = (scale, "x=f32[63]", "f32:2", "u32:64", "--grid", "2", "--junit", tmp_path / "report.xml")
    done = check(*launch)
    assert done.returncode == 1
    line = SCALE[: SCALE.index("ld.global")].count("\n") + 1
    assert done.stdout.startswith(f"scale.ptx:{line}: error: thread (31, 0, 0) of block (1, 0, 0) accesses 4 bytes")
    assert "[out-of-bounds, kernel scale]" in done.stdout
    (failure,) = ElementTree.parse(tmp_path / "report.xml").getroot().iter("failure")
    assert failure.get("type") == "out-of-bounds"
    (finding,) = json.loads(check(*launch, "--json").stdout)["findings"]
    assert (finding["memory"], finding["byte"], finding["line"]) == ("x", 252, line)


def test_kernel_with_a_tensor_map_and_a_cluster_runs(tmp_path, write):
    path, matrix, result = write(beside(__file__, "box.ptx"), "box.ptx"), tmp_path / "x.npy", tmp_path / "y.npy"
    x = np.arange(12 * 16, dtype=np.int32).reshape(12, 16)
    np.save(matrix, x)
    launch = ["y=zeros:i32[64]", "--grid", "2", "--cluster", "2", "--gpu", "h200", "--save", f"y={result}", "--json"]
    done = check(path, f"x=map(box=4x8):@{matrix}", *launch)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(result).reshape(2, 4, 8), [x[:4, 4:12], x[1:5, 4:12]])
    assert json.loads(done.stdout)["bulk.shared_write_bytes"] == 256
    refused = check(path, f"x=map(box=4x8,swizzle=16):@{matrix}", *launch)
    assert refused.returncode == 2
    assert "swizzle of 0, 32, 64, 128" in refused.stderr


def test_check_accepts_a_two_dimensional_cluster(scale):
    launch = ("x=f32[64]", "f32:2", "u32:0", "--grid", "48x2", "--cluster", "2x2", "--gpu", "h200")
    done = check(scale, *launch)
    assert done.returncode == 0, done.stderr


def test_check_refuses_grid_option_if_host_code_launches_kernels(tmp_path):
    (path := tmp_path / "program.cu").write_text("__global__ void f() {}\nint main() { f<<<1, 32>>>(); }\n")
    refused = check(path, "--grid", "4")
    assert refused.returncode == 2
    assert "--grid needs one kernel and its arguments" in refused.stderr


@pytest.mark.parametrize(
    ("host", "guard", "arguments", "status", "text"),
    [
        ("", "<", (), 0, 'kernrec assumed --grid "ceil(n/block_x)", n=1000, which'),
        ("// <<<1, 32>>>", "<", ("n=9",), 0, 'kernrec assumed --grid "ceil(n/block_x)", which'),
        ("", "<=", (), 1, "whose size kernrec assumed; to report an error, state: x=f32[ELEMENTS]"),
        ("", "<=", ("n=1000", "--grid", "8", "--block", "128"), 1, "state: x=f32[ELEMENTS]\n"),
        ("", "<=", ("n=1000", "x=f32[n]"), 1, "at offset 4000 of x"),
        ("", "<=", ("n=1000", "x=f32[n]", "--grid", "4", "--block", "128"), 0, "f: no errors in all blocks"),
        ("", "<", ("i32:4",), 2, "kernel 'f' takes 2 arguments, not 1"),
        ("", "<", ("x=f32[9]", "i32:9"), 0, "f: no errors in all blocks"),
        ("", "<", ("n=300000000",), 1, "x has 300000000 elements; at most 268435456 are accepted"),
        (HOST, "<", (), 1, "f needs n=NUMBER; add it to `kernrec check"),
        (HOST, "<=", ("n=1000",), 1, "at offset 4000 of x"),
    ],
)
def test_sizes_that_the_file_does_not_state_are_assumed_or_given_by_name(source, host, guard, arguments, status, text):
    index = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
    source.write_text(f"__global__ void f(float *x, int n) {{ {index} if (i {guard} n) x[i] = i; }}\n{host}")
    done = check(source, *arguments)
    assert (done.returncode, text in done.stdout + done.stderr) == (status, True), done.stdout + done.stderr
    assert "_Z" not in done.stdout + done.stderr


def test_kernels_without_parameters_need_no_arguments(source):
    source.write_text("__global__ void f() {}\n__global__ void g() {}\n")
    for done in (check(source), check(f"{source}:f", "--grid", "2", "--cluster", "2")):
        assert (done.returncode, "f: no errors in all blocks" in done.stderr) == (0, True), done.stderr


KERNEL = beside(__file__, "special_arguments.cu")
FIELDS = "s=struct(i8:-1,f32:2,i32:3)"
LAUNCH = ("--grid", "1", "--block", "32")


def test_kernel_receives_the_given_arguments(source, tmp_path):
    source.write_text(KERNEL)
    np.save(tmp_path / "x.npy", np.arange(64, dtype=np.float16))
    x, result = f"x=@{tmp_path / 'x.npy'}", tmp_path / "y.npy"
    done = check(source, x, "tail=x+32", "bias=null", FIELDS, "f16:0.5", "y=f32[32]", *LAUNCH, "--save", f"y={result}")
    assert done.returncode == 0, done.stderr
    assert np.load(result).tolist() == [-(2.0 * i + 32) + 3 for i in range(32)]
    done = check(source, x, "tail=x+33", "bias=null", FIELDS, "f16:0.5", "y=f32[32]", *LAUNCH)
    assert done.returncode == 1  # the last thread reads past the end of the buffer


def test_analyze_accepts_special_arguments_for_source_and_ptx(source, tmp_path):
    source.write_text(KERNEL)
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


def test_kernel_variables_are_initialized_from_arguments(source, tmp_path):
    source.write_text(WITH_VARIABLES)
    np.save(tmp_path / "coef.npy", np.arange(4, dtype=np.float32))
    np.save(tmp_path / "x.npy", np.ones(256, np.float32))
    result, coef = tmp_path / "y.npy", f"coef=@{tmp_path / 'coef.npy'}"
    launch = (f"x=@{tmp_path / 'x.npy'}", *VARIABLES_LAUNCH[1:], "--save", f"y={result}")
    done = check(source, coef, "width=i32:255", "hits=u32:7", *launch)
    assert done.returncode == 0, done.stderr
    assert np.load(result).tolist() == [*np.resize([7.0, 8.0, 9.0, 10.0], 255), 0.0]


def test_contents_larger_than_their_variable_are_refused(source):
    source.write_text(WITH_VARIABLES)
    assert "coef has 16 bytes, 20 were given" in check(source, *VARIABLES_LAUNCH, "coef=f32[5]").stderr


def test_host_code_sets_variables(source):
    source.write_text(WITH_VARIABLES + HOST)
    assert filled_variables(WITH_VARIABLES + HOST) == {"coef": "", "width": "2048"}
    assert "read as zero, because no argument sets them: hits; hits=u32:1 sets hits" in check(source).stderr
    done = check(source, "hits=3", "--json")
    assert json.loads(done.stdout)["scale"]["findings"] == []
    assert "no argument sets" not in done.stderr


def test_analyze_accepts_variables_for_source_and_ptx(source, tmp_path):
    source.write_text(WITH_VARIABLES)
    command = ("analyze", "--gpu", "t4", "--db", tmp_path / "db", "--json")
    launch = (source, "x=f32[4096]", "y=f32[4096]", "--grid", "16", "--block", "256")
    assert NOTE in run_here(*command, *launch).stderr
    done = run_here(*command, *launch, "coef=f32[4]", "width=4096", "hits=0")
    assert json.loads(done.stdout)["recommendations"]
    assert "no argument sets" not in done.stderr
    ptx = source.with_suffix(".ptx")
    ptx.write_text(compile_source(WITH_VARIABLES, 75).ptx)
    assert NOTE in run_here(*command, ptx, *launch[1:]).stderr
    arguments = ("coef=f32[4]", "width=i32:4096", "hits=u32:0")
    done = run_here(*command, ptx, *launch[1:], *arguments)
    assert json.loads(done.stdout)["recommendations"], done.stderr
    assert "no argument sets" not in done.stderr
