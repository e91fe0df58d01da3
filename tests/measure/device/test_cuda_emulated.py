"""Test the CUDA device without a GPU: the emulator executes kernels with the arguments that the device packed. The
tests check code, buffers and numbers of each launch, but not times."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernrec.compile import compile_source
from kernrec.gpu import limits
from kernrec.kernel import Space, find_kernel
from kernrec.op import find_op
from kernrec.profile.kernel_code import compile_job_for

pytestmark = pytest.mark.slow

SM = 90
HERE = Path(__file__).parents[1]
Pick = Callable[[dict[str, int]], bool]

CASES: list[tuple[str, str, str | None, dict[str, int], Pick]] = [
    ("matmul_simt", "f32", None, {"m": 70, "n": 64, "k": 96}, lambda c: c["split_k"] == 1),
    ("matmul_simt", "f32", None, {"m": 70, "n": 64, "k": 96}, lambda c: c["split_k"] > 1),
    ("matmul_mma", "bf16", "nn", {"m": 64, "n": 64, "k": 64}, lambda c: True),
    ("conv2d_implicit_gemm_simt", "f32", "nhwc", {"c": 8, "h": 8, "w": 8, "k": 16}, lambda c: True),
    ("softmax_rows", "f16", None, {"rows": 4, "columns": 256}, lambda c: True),
    ("matvec_rows", "bf16", "nt", {"m": 3, "n": 65, "k": 512}, lambda c: c["split_k"] == 1),  # runs a matmul problem
    ("matvec_rows", "bf16", None, {"m": 64, "n": 1, "k": 512}, lambda c: c["split_k"] > 1),
]


def _case(kernel_name: str, dtype: str, layout: str | None, dims: dict[str, int], pick: Pick) -> dict[str, Any]:
    kernel = find_kernel(kernel_name)
    problem = find_op("matmul" if layout == "nt" else kernel.op).problem(dtype, layout, **dims)
    form = kernel.form(problem)
    space = Space(kernel, SM, limits(SM), form.dtype, form.layout)
    config = next(c for row in space.at(problem).rows if pick(c := space.config(int(row))))
    job = compile_job_for(kernel, config, problem, SM)
    return {
        "kernel": kernel.name, "config": config, "problem": problem.key, "spoiled": False,
        "key": json.dumps([job.name, dict(sorted(job.defines.items()))]),
        "ptx": lambda: compile_source(job.source, SM, job.defines, job.name).ptx,
    }  # fmt: skip


@pytest.fixture(scope="module")
def measured(nvrtc):
    cases = [_case(*case) for case in CASES]
    ptx = {case["key"]: case.pop("ptx")() for case in cases}
    inputs = {"cases": [*cases, cases[0] | {"spoiled": True}, cases[-1] | {"spoiled": True}], "ptx": ptx}
    path = os.pathsep.join([str(HERE / "emulated"), str(HERE.parents[1])])
    done = subprocess.run(
        [sys.executable, HERE / "emulated" / "run.py"], input=json.dumps(inputs), capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": path}, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_kernel_runs_on_its_buffers_and_is_correct(measured, index):
    row = measured["rows"][index]
    assert "failure" not in row, row
    assert 0.0 < row["numeric_error"] <= row["tolerance"]
    assert row["latency_n"] >= 10
    assert row["sm_clock_mean_hz"] == pytest.approx(1.7e9)


def test_two_percent_error_is_incorrect_in_f32_and_bf16(measured):
    assert [row["failure"] for row in measured["rows"][len(CASES) :]] == ["incorrect", "incorrect"]


def test_gpu_facts_report_missing_sensors_and_all_launches_finish(measured):
    assert measured["facts"]["energy"] == "no sensors: emulated"
    assert measured["facts"]["gpu"] == "h200-sxm"
    assert measured["outstanding"] == 0
