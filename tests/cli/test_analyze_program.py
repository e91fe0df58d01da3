"""Test `kernrec analyze` on files with several kernels, and for several GPUs."""

import json

import pytest

from kernrec.cli import app
from tests.helpers.needs import needs
from tests.helpers.paths import beside

pytestmark = [pytest.mark.usefixtures("compiled_here"), needs("tree_sitter_cuda")]


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.delenv("KERNREC_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own"))
    (path := tmp_path / "program.cu").write_text(beside(__file__, "analyze_program.cu"))
    return path


def test_program_gets_one_row_per_kernel_and_a_note_on_assumed_sizes(program, capsys):
    assert app.run(["analyze", str(program), "--gpu", "t4", "--json"]) == 0
    rows = {row["entry"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == ["scale", "fill<float>", "lonely"]
    assert rows["scale"]["launched"]["launches"][0]["block"] == [32, 1, 1]
    assert rows["scale"]["recommendations"][0]["launches"][0]["block"] != [32, 1, 1]
    assert rows["fill<float>"]["launched"]["launches"][0]["grid"] == [4096, 1, 1]
    assert not any("assumed" in note for note in rows["scale"]["notes"])
    note = rows["lonely"]["notes"][0]
    assert note.startswith("kernrec assumed --block 256, --grid")
    assert "n=1048576, which the file does not state" in note
    assert rows["lonely"]["recommendations"]


def test_offset_parameter_does_not_set_a_buffer_size(tmp_path, capsys):
    (path := tmp_path / "add.cu").write_text(
        "__global__ void add(float *x, int b_off) { x[b_off + blockIdx.x * blockDim.x + threadIdx.x] += 1; }"
    )
    options = ["--gpu", "t4", "--block", "64", "--grid", "16", "--db", str(tmp_path / "own.db")]
    assert app.run(["analyze", str(path), *options]) == 0
    assert "assumed b_off=0, x=f32[1048576], which the file does not state" in " ".join(capsys.readouterr().err.split())


def test_buffer_of_assumed_size_grows_until_the_kernel_stays_inside(tmp_path, capsys):
    (path := tmp_path / "thirds.cu").write_text(
        "struct cell { int a; float b; };\n"
        "__global__ void thirds(float *x, int n) { x[3 * (blockIdx.x * 64 + threadIdx.x)] = n; }\n"
        "__global__ void rows(cell *c, int n) {\n"
        "    extern __shared__ float tile[];\n"
        "    tile[(threadIdx.x % 32) * 300] = c[blockIdx.x * blockDim.x + threadIdx.x].b; __syncthreads();\n"
        "    c[threadIdx.x].b = tile[0]; }\n"
    )
    assert app.run(["analyze", str(path), "--gpu", "t4", "--db", str(tmp_path / "own.db"), "--json"]) == 0
    thirds, rows = json.loads(capsys.readouterr().out)
    assert thirds["notes"][0].startswith("kernrec assumed x=f32[4194304], --block 64, --grid")
    assert rows["notes"][0].startswith("kernrec assumed --shared 49152, --grid")
    assert "n=1048576, c=zeros:f32[2097152], which the file does not state" in rows["notes"][0]


def test_analyze_requests_values_if_the_assumed_ones_fail(tmp_path, capsys):
    (path := tmp_path / "thirds.cu").write_text(
        "__global__ void thirds(float *x, int n) { x[-3 * int(blockIdx.x * 64 + threadIdx.x)] = n; }"
    )
    stated = ["n=64", "--shared", "n*4", "-D", "K=3"]
    assert app.run(["analyze", str(path), *stated, "--gpu", "t4", "--db", str(tmp_path / "own.db")]) == 2
    printed = capsys.readouterr().err
    assert "thirds does not run with assumed values: thread (" in printed
    words = "n=64 --shared 'n*4' -D K=3 --block 64 --grid"
    command = f'kernrec analyze {path}:thirds --gpu t4 {words} "ceil(n/64)"'
    assert printed.rstrip().endswith(f"which is in no buffer; if the values are wrong, correct them in: {command}")


def test_interrupted_program_shows_the_kernels_that_were_analyzed(program, capsys, monkeypatch):
    from kernrec.recommender.analyze import kernel as analyzing

    analyze = analyzing.analyze

    def interrupted_at_the_second(kernel, *others):
        if kernel.name != "scale":
            raise KeyboardInterrupt
        return analyze(kernel, *others)

    monkeypatch.setattr(analyzing, "analyze", interrupted_at_the_second)
    assert app.run(["analyze", str(program), "--gpu", "t4"]) == 130
    printed = capsys.readouterr()
    assert "\nscale " in printed.out
    assert "interrupted; finished work is kept" in printed.err


def test_table_shows_the_launch_in_the_file_and_the_best_block_size(program, capsys):
    assert app.run(["analyze", f"{program}:scale", "--gpu", "t4,l4"]) == 0
    printed = capsys.readouterr()
    rows = [line.split() for line in printed.out.splitlines() if line.startswith("scale ")]
    assert [(row[1], row[2], row[3]) for row in rows] == [("t4", "32768", "32"), ("l4", "32768", "32")]
    assert f"one kernel in detail: kernrec analyze {program}:scale --gpu t4" in printed.err


def test_launch_options_are_refused_for_several_kernels(program, capsys):
    assert app.run(["analyze", str(program), "--gpu", "t4", "--grid", "4"]) == 2
    assert "--grid applies to one kernel; name the kernel, as in program.cu:scale" in capsys.readouterr().err


def test_buffer_of_a_user_given_structure_is_not_enlarged(tmp_path, capsys):
    (path := tmp_path / "fill.cu").write_text(
        "struct P { float *x; int n; };\n"
        "__global__ void fill(P p) { p.x[blockIdx.x * blockDim.x + threadIdx.x] = p.n; }"
    )
    words = ["p=struct(f32[64],i32:4)", "--grid", "64", "--block", "64", "--db", str(tmp_path / "own.db")]
    assert app.run(["analyze", str(path), "--gpu", "t4", *words]) == 1
    assert "of p_0, which has 256 bytes" in capsys.readouterr().err
