"""Test that `kernrec check` and `kernrec analyze` use `-D`, `-std` and `compile_commands.json` for CUDA files."""

import json

import pytest

from kernrec.kernel.source_files import compile_flags
from tests.helpers.command import run_here

# The first two lines compile only with -D and -std=c++20.
KERNEL = """
template <typename T> concept Small = sizeof(T) <= SIZE;
template <Small T> __device__ T twice(T x) { return 2 * x; }
extern "C" __global__ void scale(const float *x, float *y) { y[threadIdx.x] = twice(x[threadIdx.x]) / 3.0f; }
"""
FLAGS = ("-D", "SIZE=4", "-std=c++20", "-use_fast_math")


@pytest.fixture
def source(nvrtc, write):
    return write(KERNEL, "scale.cu")


def test_check_and_analyze_accept_nvcc_flags(source, tmp_path):
    launch = (source, "x=f32[32]", "y=zeros:f32[32]", "--grid", "1", "--block", "32")
    assert run_here("check", *launch).returncode == 1
    exact, fast = (
        json.loads(run_here("check", *launch, *flags, "--json").stdout)["issue"] for flags in (FLAGS[:3], FLAGS)
    )
    assert fast < exact  # fast math divides by multiplying with the reciprocal
    done = run_here("analyze", *launch, *FLAGS, "--gpu", "t4", "--db", tmp_path / "db", "--json")
    assert done.returncode == 0, done.stderr


def test_compilation_database_in_a_parent_folder_supplies_flags(source, tmp_path):
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "size.h").write_text("#define LARGE 8\n")
    (tmp_path / "src").mkdir()
    path = source.rename(tmp_path / "src" / "scale.cu")
    path.write_text('#include "size.h"\n' + KERNEL)
    command = "nvcc -Iheaders -DSIZE=LARGE -std=c++20 -O3 -c src/scale.cu"
    entry = {"directory": str(tmp_path), "file": str(path), "command": command}
    (tmp_path / "compile_commands.json").write_text(json.dumps([entry]))
    launch = (path, "x=f32[32]", "y=f32[32]", "--block", "32")
    done = run_here("check", *launch)
    assert done.returncode == 0, done.stderr
    done = run_here("analyze", *launch, "--grid", "1", "--gpu", "t4", "--db", tmp_path / "db")
    assert "flags of compile_commands.json" in done.stderr
    path.write_text(path.read_text() + "int main() { float *x; cudaMalloc(&x, 128); scale<<<1, 32>>>(x, x); }\n")
    done = run_here("explain", path, "--gpu", "t4", "--db", tmp_path / "db")
    assert "what to do" in done.stdout, done.stderr


@pytest.mark.parametrize("word", ["-Dé=1", "-DA=1\n2", "-DA=\x01", "-Iinc\n[launch]", "-Iinc\x00", "-I\ud800"])
def test_database_flag_with_unusual_characters_is_skipped(word, tmp_path):
    entry = {"directory": str(tmp_path), "file": "k.cu", "arguments": ["nvcc", word, "-DB=2", "-c", "k.cu"]}
    (tmp_path / "compile_commands.json").write_text(json.dumps([entry]))
    flags = compile_flags(tmp_path / "k.cu", [], [])
    assert (flags.defines, flags.include) == ({"B": "2"}, ())


def test_macros_select_the_launch_in_host_code(source, tmp_path):
    source.write_text(
        "#ifndef N\n#define N 64\n#endif\n__global__ void one(float *x) { x[blockIdx.x * 64 + threadIdx.x] = N; }\n"
        "int main() { float *x; cudaMalloc(&x, N * sizeof(float)); one<<<N / 64, 64>>>(x); }"
    )
    command = ("analyze", source, "--gpu", "t4", "--db", tmp_path / "db", "--json")
    (launch,) = json.loads(run_here(*command, "-DN=640").stdout)["recommendations"][0]["launches"]
    assert launch["grid"][0] == 10
    assert run_here("check", source, "-DN=640").returncode == 0
