"""Test emitted programs of CUDA kernels and of Triton functions."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernrec.compile.triton_compile import with_dynamic_shared
from kernrec.compile.triton_version import has_triton
from kernrec.emit import emit, write_files
from kernrec.errors import UsageError
from kernrec.kernel import all_kernels
from kernrec.kernel.binding import workspaces
from kernrec.op import Problem, decode_elements, encode_elements, reference
from kernrec.profile.emulated_launch import kernel_launch
from kernrec.ptx import emulate, parse
from kernrec.recommender import Answer, Objective, Query, Recommender, Request
from tests.helpers.nvcc import libraries, nvcc, toolkit

SHAPES = {
    "matmul": "m=9,n=20,k=24,bias=1,activation=3", "conv2d": "n=2,c=6,h=7,w=5,k=4,r=3,s=2,stride=2,padding=1,groups=2",
    "attention": "heads=4,kv_heads=2,queries=5,keys=9,head_dim=64,causal=1", "matvec": "m=12,k=40,n=3",
    "softmax": "rows=3,columns=40", "layernorm": "rows=3,columns=40", "rmsnorm": "rows=3,columns=40",
    "reduce": "rows=3,columns=40", "transpose": "rows=9,columns=20", "elementwise": "n=77",
}  # fmt: skip
LAYOUTS = {"conv2d": "nhwc", "attention": "bshd"}


def answer(
    recommender: Recommender, op: str, shape: str, layout: str | None = None, dtype: str | None = None, gpu: str = "l4"
) -> Answer:
    return recommender.recommend(op, gpu, shape, dtype, layout, Query(Objective.LATENCY, top=1))


@pytest.fixture(scope="module")
def answers(recommender):
    """Return recommendations for a small problem of every op in its first dtype, in up to two layouts."""
    problems = [(op, shape, layout) for op, shape in SHAPES.items() for layout in {None: 0, LAYOUTS.get(op): 0}]
    batched = answer(recommender, "matmul", "m=9,n=24,k=32,batch=2,activation=2", "nn", "f16")
    return [batched, *(answer(recommender, op, shape, layout) for op, shape, layout in problems)]


@pytest.fixture(scope="module")
def answers_8bit(recommender):
    """Return recommendations for 8-bit problems, with scales per row, per head and per tensor."""
    product, heads = "m=9,n=24,k=32,batch=2", "batch=2,heads=4,kv_heads=2,queries=5,keys=9,head_dim=64,causal=1"
    shapes = [("matmul", product + ",scales=1"), ("attention", heads + ",scales=1"), ("attention", heads)]
    return [answer(recommender, op, shape, None, "f8e4m3", "h100-sxm") for op, shape in shapes]


def drawn(problem: Problem) -> dict[str, np.ndarray]:
    values = problem.definition.values(problem.sizes)
    tensors = {}
    with np.errstate(over="ignore"):
        for number, tensor in enumerate(problem.tensors.values()):
            if tensor.role == "output":
                continue
            mean, deviation = values.get(tensor.name, (0, 1))
            z = np.arange(tensor.elements, dtype=np.uint64) + np.uint64((number << 40) + 1)
            z = z * np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            unit = ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
            filled = mean + deviation * np.sqrt(12.0) * (unit - 0.5)
            tensors[tensor.name] = encode_elements(filled.reshape(tensor.shape), tensor.dtype)
    return tensors


def emulated(text: str, recommended: Answer, suffix: str) -> np.ndarray:
    """Emulate the kernels of an emitted text whose names end in `suffix`, and return their output."""
    from kernrec.compile import compile_source

    best, problem = recommended.best, recommended.problem
    module = parse(compile_source(text, recommended.gpu.sm).ptx)
    (name,) = problem.definition.outputs
    buffers = {n: array.reshape(-1) for n, array in drawn(problem).items()}
    buffers[name] = encode_elements(np.full(problem.tensors[name].elements, np.nan), problem.dtype)
    for space in workspaces(best.kernel, best.config, problem, recommended.gpu.sm):
        buffers[space.name] = np.full(space.elements, np.nan, np.float32)
    for launch in best.launches:
        emulate(module, kernel_launch(launch, buffers, entry=launch.entry + suffix), count=False, check_races=True)
    return decode_elements(buffers[name], problem.dtype)


@pytest.mark.parametrize(("op", "folder"), [("matmul", False), ("softmax", True)])
def test_emitted_kernels_compute_the_op(op, folder, recommender):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    recommended = answer(recommender, op, SHAPES[op])
    files = emit([recommended], "cuda", folder=folder)
    text = next(content.decode() for name, content in files.items() if "__global__" in content.decode())
    (expected,) = reference(recommended.problem, drawn(recommended.problem)).values()
    output = emulated(text, recommended, "_0" if folder else "")
    np.testing.assert_allclose(output.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)


def expectations(text: str) -> dict[str, np.ndarray]:
    """Parse the output of a program with --expected into the expected values of each problem."""
    values: dict[str, list[float]] = {}
    title = ""
    for line in text.splitlines():
        if " for " in line:
            title = line.partition(" for ")[2]
            values[title] = []
        else:
            values[title].append(float(line))
    return {name: np.array(numbers) for name, numbers in values.items()}


@pytest.mark.every(3)
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="links with the options of Linux")
@pytest.mark.parametrize("kind", ["answers", "answers_8bit"])
def test_expected_values_in_programs_match_the_op(kind, request, tmp_path):
    """A stand-in replaces the kernels, because the program only prints its expected values."""
    answers: list[Answer] = request.getfixturevalue(kind)
    if kind == "answers":
        assert {answer.problem.op for answer in answers} == {kernel.op for kernel in all_kernels()}
    write_files(tmp_path / "all", emit(answers, "cuda", folder=True))
    static = libraries()
    options = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{toolkit() / 'include'}"]
    linked = [f"-L{static}", "-lcudart_static", "-ldl", "-lrt", "-lpthread", "-Wl,--unresolved-symbols=ignore-all"]
    sources = [str(tmp_path / "all" / "check.cu")]
    program = str(tmp_path / "check")
    done = subprocess.run(
        ["g++", *options, "-x", "c++", *sources, "-x", "none", "-o", program, *linked],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = subprocess.run([program, "--expected", "100000"], capture_output=True, text=True, check=True).stdout
    expected = expectations(printed)
    assert len(expected) == len(answers)
    for recommended in answers:
        (values,) = reference(recommended.problem, drawn(recommended.problem)).values()
        np.testing.assert_allclose(expected[recommended.problem.key], values.reshape(-1), rtol=1e-9, atol=1e-12)
    refused = subprocess.run([program, "--expect"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "usage:" in refused.stderr


@pytest.mark.every(3)
@pytest.mark.slow
def test_check_program_compiles_without_warnings_and_needs_a_gpu(recommender, tmp_path):
    recommended = answer(recommender, "rmsnorm", SHAPES["rmsnorm"], dtype="f16")
    write_files(tmp_path / "folder", emit([recommended], "cuda", folder=True))
    options = ["-std=c++17", f"-arch={recommended.gpu.arch}", "-Werror", "all-warnings"]
    options += ["-Xcompiler", "-Wall,-Wextra,-Werror"]
    sources = [str(tmp_path / "folder" / name) for name in ("check.cu", "variant_0.cu")]
    command = [nvcc(), *options, *sources, "-o", str(tmp_path / "check"), f"-L{libraries()}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = subprocess.run([str(tmp_path / "check")], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 or (ran.returncode == 2 and "cudaMalloc" in ran.stderr)


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.skipif(
    shutil.which("cmake") is None or shutil.which("make") is None, reason="there is no CMake, or no make"
)
def test_folder_builds_with_cmake(recommender, tmp_path):
    recommended = [
        answer(recommender, "reduce", "rows=3,columns=40"),
        answer(recommender, "reduce", "rows=64,columns=40"),
    ]
    write_files(tmp_path / "folder", emit(recommended, "cuda", folder=True))
    settings = [f"-DCMAKE_CUDA_COMPILER={nvcc()}", f"-DCMAKE_CUDA_FLAGS=-L{libraries()}"]
    settings += ["-G", "Unix Makefiles", "-DCMAKE_CUDA_COMPILER_WORKS=1", "-DCMAKE_CXX_COMPILER_WORKS=1"]
    build = tmp_path / "build"
    for command in (
        ["cmake", "-S", str(tmp_path / "folder"), "-B", str(build), *settings],
        ["cmake", "--build", str(build)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    printed = subprocess.run([str(build / "check"), "--expected", "1"], capture_output=True, text=True, check=True)
    assert len(expectations(printed.stdout)) == 2


def test_failed_emit_leaves_no_partial_folder(tmp_path, refuses):
    write_files(tmp_path / "new", {"a/b.txt": b"1", "c.txt": b"2"})
    assert sorted(p.name for p in (tmp_path / "new").rglob("*")) == ["a", "b.txt", "c.txt"]
    with pytest.raises(UsageError, match="exists already; expected a new or an empty folder"):
        write_files(tmp_path / "new", {"d.txt": b"3"})
    with pytest.raises(UsageError, match="expected a new folder in an existing one"):
        write_files(tmp_path / "none" / "new", {"d.txt": b"3"})
    refuses(lambda: write_files(tmp_path / "half", {"e.txt": b"4", "e.txt/f": b"5"}))
    assert [p.name for p in tmp_path.iterdir()] == ["new"]


QUERY = Query(Objective.LATENCY, top=1)


def triton_answer() -> Answer:
    """Return a recommendation for the library's Triton matmul, whose profiles ship with kernrec."""
    return Recommender([]).answer(Request("a100", None, "matmul_triton", "m=40,n=512,k=64", "f16", "nn", QUERY))


def test_emitted_triton_ptx_has_dynamic_instead_of_static_shared_memory():
    fixed = ".visible .entry f()\n{\n\t.shared .align 16 .b8 global_smem[98304];\n}\n.shared .align 4 .b8 own[64];"
    assert with_dynamic_shared(fixed) == fixed.replace(".shared .align 16", ".extern .shared .align 16").replace(
        "[98304]", "[]"
    )


def test_emit_refuses_if_the_best_kernel_does_not_fit_the_format(monkeypatch, refuses):
    own = Recommender([]).answer(Request("a100", None, "matmul_mma", "m=40,n=512,k=64", "f16", "nn", QUERY))
    recommended = replace(own, recommendations=(*triton_answer().recommendations, *own.recommendations))
    assert recommended.best.kernel.name == "matmul_triton"
    refuses(lambda: emit([recommended], "cuda"))
    refuses(lambda: emit([own], "triton"))
    ((name, content),) = emit([recommended], "triton").items()
    assert name == "matmul_triton.py"
    compile(content, name, "exec")
    monkeypatch.setattr("kernrec.compile.triton_version.has_triton", lambda: False)
    refuses(lambda: emit([recommended], "ptx"))


class Launched:
    """Stand-in for a Triton function that stores the grid and the arguments of its launch."""

    def __getitem__(self, grid: object) -> "Launched":
        self.grid = grid
        return self

    def __call__(self, **arguments: object) -> None:
        self.arguments = arguments


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_emitted_launcher_passes_the_arguments_of_the_recommended_launch(layout):
    pytest.importorskip("triton", reason="needs the extra `triton`")
    recommended = Recommender([]).answer(
        Request("a100", None, "matmul_triton", "m=40,n=512,k=64", "f16", layout, QUERY)
    )
    (content,) = emit([recommended], "triton").values()
    names: dict[str, Any] = {"matmul_triton": Launched()}
    launcher = content.decode().partition("\nCONFIG =")[2]
    exec(f"CONFIG ={launcher}", names)
    names["launch"]("a", "b", "c")
    launched, best = names["matmul_triton"], recommended.best
    sizes = {"a": "a", "b": "b", "c": "c", "m": 40, "n": 512, "k": 64}
    assert launched.grid == best.launches[0].grid
    assert sizes.items() <= launched.arguments.items()
    assert launched.arguments["num_warps"] == best.config["num_warps"]
    assert ("LAYOUT_NT" in launched.arguments) == (layout == "nt")


@pytest.mark.slow
@pytest.mark.skipif(not has_triton(), reason="needs the extra `triton`")
def test_ptx_of_a_triton_kernel_assembles(tmp_path):
    (ptx,) = emit([triton_answer()], "ptx").values()
    assert b".extern .shared .align 16 .b8 global_smem[]" in ptx
    (tmp_path / "k.ptx").write_bytes(ptx)
    import triton

    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    subprocess.run([assembler, "-arch=sm_80", tmp_path / "k.ptx", "-o", tmp_path / "k.cubin"], check=True)
