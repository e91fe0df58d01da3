"""Test the `kernrec check` command on PTX, which needs no compiler, and on CUDA."""

import json
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.helpers.command import run_here
from tests.helpers.paths import beside

SCALE = beside(__file__, "scale.ptx", "refusals")


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


COPY = beside(__file__, "texture.ptx", "refusals")


BOX = beside(__file__, "box.ptx")


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


def test_two_dimensional_clusters_run_whole(scale):
    launch = ("x=f32[64]", "f32:2", "u32:0", "--grid", "48x2", "--cluster", "2x2", "--gpu", "h200")
    done = run(scale, *launch)
    assert done.returncode == 0, done.stderr


def test_grid_is_refused_if_the_host_code_has_the_launches(tmp_path):
    (path := tmp_path / "program.cu").write_text("__global__ void f() {}\nint main() { f<<<1, 32>>>(); }\n")
    refused = run(path, "--grid", "4")
    assert refused.returncode == 2
    assert "--grid is for one kernel with its arguments" in refused.stderr
