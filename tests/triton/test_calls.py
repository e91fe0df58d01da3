"""Test captured calls of Triton functions, and their records."""

import math
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import kernrec.triton
from kernrec.errors import KernrecWarning, UsageError
from kernrec.recommender.request import Objective
from kernrec.store.measurement import EnergyReport
from kernrec.triton.records import Result, middle
from tests.helpers.paths import ROOT

pytest.importorskip("triton", reason="needs the extra `triton`")

import triton
from triton.experimental.gluon import language as gl

import kernrec
import kernrec.triton
from kernrec.compile.triton_load import python_value
from kernrec.profile.triton_call import kernel_of_triton
from kernrec.profile.triton_call_file import read_call
from tests.helpers.triton_kernels import configs_of, run_call
from tests.triton import captured_kernels as kernels

X, Y = np.zeros(1000, np.float32), np.zeros(1000, np.float32)


def written(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def test_launch_becomes_a_call_and_equal_launches_are_merged(tmp_path):
    with kernrec.triton.capture(tmp_path) as captured:
        kernels.call_scale(X, Y)
        kernels.call_scale(X + 1, Y, factor=3.0)  # other values for the same code
        kernels.call_scale(X, Y, bias=X)
    first, second = captured.files
    call = written(first)
    assert call["function"] == f"{ROOT}/tests/triton/captured_kernels.py:scale"
    assert call["grid"] == [8]
    assert call["configs"] == [{"num_warps": 2}]
    assert call["arguments"] == {
        "x": {"dtype": "f32", "shape": [1000]}, "y": {"dtype": "f32", "shape": [1000]}, "bias": {"python": "None"},
        "n": 1000, "factor": 2.0, "ROUND": {"python": "tl.float32"}, "BLOCK": 128,
    }  # fmt: skip
    assert written(second)["arguments"]["bias"] == {"dtype": "f32", "shape": [1000]}
    kernel, _ = kernel_of_triton(read_call(first))
    assert configs_of(kernel) == [{"num_warps": 2, "num_stages": 3}]
    assert kernel.listed is not None
    assert kernel.listed.rows[0][-3:] == (8, 1, 1)
    with kernrec.triton.capture(tmp_path) as again:
        kernels.call_scale(X, Y)
    assert again.files == [first]


def test_autotuned_function_has_all_configs_with_grids_and_heuristics(tmp_path):
    with kernrec.triton.capture(tmp_path) as captured:
        kernels.tuned_add[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](X, Y, 640)
    (file,) = captured.files
    assert written(file)["configs"] == [
        {"BLOCK": 64, "num_warps": 2, "num_stages": 3, "EVEN": True, "grid": [10]},
        {"BLOCK": 256, "num_warps": 2, "num_stages": 3, "EVEN": False, "grid": [3]},
    ]
    kernel, _ = kernel_of_triton(read_call(file))
    assert [config["even"] for config in configs_of(kernel)] == [1, 0]


def test_capture_records_all_configs_of_a_kernel_without_ranking_them(tmp_path, monkeypatch):
    monkeypatch.setattr("kernrec.triton.tuner.Tuner._chosen", None)
    with kernrec.triton.capture(tmp_path) as captured:
        kernels.dropped_in[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](X, Y, 640)
    assert [config["BLOCK"] for config in written(captured.files[0])["configs"]] == [64, 256]


def test_index_contents_are_stored_beside_the_call_and_views_are_described(tmp_path):
    order = np.arange(64, dtype=np.int64)[::-1].copy()
    with kernrec.triton.capture(tmp_path) as captured:
        kernels.gather[(1,)](np.zeros((8, 64), np.float16)[:, :8], order, Y[:64], 64, BLOCK=64)
    call = read_call(captured.files[0])
    assert call.arguments["x"] == {"dtype": "f16", "shape": [8, 8], "strides": [64, 1]}
    np.testing.assert_array_equal(np.load(call.arguments["order"]["values"]), order)
    kernel, _ = kernel_of_triton(call)
    tensors = kernel.definition.problem().tensors
    assert (tensors["x"].elements, tensors["order"].elements) == (7 * 64 + 8, 64)


class Matrix(np.ndarray):
    def data_ptr(self) -> int:
        return 1 << 20


class Inputs(NamedTuple):
    first: np.ndarray
    second: np.ndarray


def test_captured_calls_with_tuples_and_layouts_can_be_run(tmp_path):
    layout = gl.SliceLayout(0, gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0]))
    with kernrec.triton.capture(tmp_path) as captured:
        kernels.add_tuples[(8,)]((X, Y), (1, 1000), Y, BLOCK=128)
        kernels.add_named[lambda meta: (meta["inputs"].first.shape[0] // 128 + 1,)](Inputs(X, Y), Y, 1000, BLOCK=128)
        kernels.copy_in_layout[(8,)](X, Y, 1000, layout, BLOCK=128)
    tuples, named, in_layout = captured.files
    assert written(tuples)["arguments"]["inputs"] == [{"dtype": "f32", "shape": [1000]}] * 2
    assert written(tuples)["arguments"]["extents"] == [1, 1000]
    first, second, result = (np.arange(n, n + 1000, dtype=np.float32) for n in (0, 5, 9))
    run_call(read_call(tuples), {"inputs__0": first, "inputs__1": second, "y": result}, 80)
    np.testing.assert_array_equal(result, first + second)
    result = np.zeros(1000, np.float32)
    run_call(read_call(named), {"inputs__0": first, "inputs__1": second, "y": result}, 80)
    np.testing.assert_array_equal(result, first + second)
    run_call(read_call(in_layout), {"x": first, "y": result}, 80)
    np.testing.assert_array_equal(result, first)


def test_captured_program_sees_the_requested_gpu_and_runs_no_benchmarks(tmp_path):
    launches = []
    with kernrec.triton.capture(tmp_path, gpu="l4") as captured:
        for option, text in ((), "GPU 0: NVIDIA L4\n"), (("--query-gpu=name", "--format=csv"), "NVIDIA L4\n"):
            assert subprocess.check_output(["nvidia-smi", *option], text=True) == text
        for benchmark in (triton.testing.do_bench, triton.testing.do_bench_cudagraph):
            assert benchmark(lambda: launches.append(1)) == 0.0
        assert triton.testing.do_bench(lambda: launches.append(1), quantiles=(0.5, 0.2)) == [0.0, 0.0]
    assert not launches
    assert not captured.files


def test_invalid_constant_is_refused():
    for text in (
        "gl.BlockedLayout(1)",
        "gl.NVMMASharedLayout(swizzle_byte_width=3, element_bitwidth=16)",
        "gl.program_id()",
    ):
        with pytest.raises(UsageError, match="expected a literal"):
            python_value(text)


@pytest.mark.parametrize(("arguments", "reason"), [
    ({"x": object()}, "argument x: object is a type that a call cannot hold"),
    ({"ROUND": object()}, "argument ROUND: object is a type that a call cannot hold"),
    ({"x": np.zeros(3, np.complex64)}, "argument x: unknown dtype 'complex64'"),
])  # fmt: skip
def test_unsupported_arguments_are_named_and_the_program_continues(tmp_path, arguments, reason):
    launch = {"x": X, "y": Y, "bias": None, "n": 3, "factor": 1.0, "ROUND": None, "BLOCK": 64, **arguments}
    with kernrec.triton.capture(tmp_path) as captured:
        with pytest.warns(KernrecWarning, match=f"not captured: {reason}"):
            kernels.scale[(1,)](**launch)
        kernels.scale[(1,)](**launch)
    assert captured.refused["scale"].startswith(reason)
    assert not captured.files


def test_nested_capture_and_unknown_gpu_are_refused(tmp_path, refuses):
    with kernrec.triton.capture(tmp_path), pytest.raises(UsageError, match="already running"):
        kernrec.triton.capture(tmp_path).__enter__()
    refuses(lambda: kernrec.triton.capture(tmp_path, gpu="a101").__enter__())


PACKAGE = {
    "__init__.py": """
from triton.backends import backends
import triton
assert __name__ == "served"
active = any(backend.driver.is_active() for backend in backends.values())
jit = triton.jit if active else lambda function: function
""",
    "rows.py": """
import pathlib
import triton
import triton.language as tl
from served import jit
with (pathlib.Path(__file__).parent / "imports").open("a") as file:
    file.write(__name__ + "\\n")

@jit
def twice(x, y, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, 2 * tl.load(x + place))

def call(x, y):
    twice[(4,)](x, y, BLOCK=64)
""",
}
PROGRAM = """
import numpy as np
import served.rows
served.rows.call(np.zeros(256, np.float32), np.zeros(256, np.float32))
"""


@pytest.mark.every(3)
@pytest.mark.slow
def test_captured_command_can_be_analyzed_with_its_package(tmp_path):
    """The package turns Triton off if there is no driver, as vLLM does."""
    folder = tmp_path / "site-packages" / "served"
    folder.mkdir(parents=True)
    for name, text in PACKAGE.items():
        (folder / name).write_text(text)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder.parent)])}
    environment |= {"KERNREC_DB": str(tmp_path / "own.duckdb")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kernrec", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    captured = run("capture", "--", sys.executable, "program.py")
    assert captured.returncode == 0, captured.stderr
    assert "1 new call of 1 function in calls" in captured.stderr
    (call,) = (tmp_path / "calls").glob("twice-*.toml")
    assert written(call)["function"] == "served.rows:twice"
    analyzed = run("analyze", f"calls/{call.name}", "calls/missing.toml", "--gpu", "a100,l40s")
    assert re.findall(r"^twice\[.* on NVIDIA (\w+)", analyzed.stdout, re.MULTILINE) == ["A100", "L40S"]
    assert "calls/missing.toml: missing.toml cannot be read" in analyzed.stderr
    assert analyzed.returncode == 1
    assert set((folder / "imports").read_text().split()) == {"served.rows"}
    nothing = run("capture", "--output", "none", "--", sys.executable, "-c", "pass")
    assert nothing.returncode == 1
    note, error = nothing.stderr.splitlines()  # Triton prints no warning
    assert note == "note: 0 new calls of 0 functions in none"
    assert error.startswith("kernrec: the program launched no CUDA kernel and no Triton function")
    with_object = PROGRAM.replace("np.zeros(256, np.float32))", "object())")
    refused = run("capture", "--output", "none", "--", sys.executable, "-c", with_object)
    reason = "twice: argument y: object is a type that a call cannot hold"
    assert refused.stderr.splitlines()[-1] == f"kernrec: no launch can be written as a call: {reason}"
    assert run("capture", "--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7
    assert run("capture", "--", "./none").stderr == "kernrec: ./none cannot be run: there is no such file\n"


FAILED = Result(error="Triton could not launch it")


def ran(latency_s: float, energy_j: float | None = None) -> Result:
    return Result(latency_s, EnergyReport(energy_j=energy_j))


def test_median_uses_successful_runs_only():
    assert middle([ran(1.0), FAILED, ran(9.0), ran(2.0)], Objective.LATENCY) == 2.0
    assert middle([FAILED, FAILED], Objective.LATENCY) == math.inf


def test_impossible_values_are_refused_at_the_decorator(refuses):
    refuses(lambda: kernrec.triton.prune(top_k=True))
    refuses(lambda: kernrec.triton.autotune([], ["n"], objective="pareto"))


def test_removed_recorder_names_its_replacement():
    with pytest.raises(AttributeError, match="TRITON_CACHE_AUTOTUNING"):
        kernrec.triton.record  # noqa: B018
