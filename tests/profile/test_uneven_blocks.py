"""Test that blocks with different work are distinguished, and that persistent kernels match plain kernels."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.compile import compile_source
from kernrec.gpu import find_gpu
from kernrec.kernel import Kernel
from kernrec.op import Problem
from kernrec.profile.sample_profile import SAMPLING
from kernrec.profile.triton_call import kernel_of_triton
from kernrec.profile.triton_call_file import TritonCall
from kernrec.profile.uneven_blocks import _last_is_idle, levels
from kernrec.ptx import Counts, KernelLaunch, parse
from kernrec.ptx.execution.emulator import Emulation
from kernrec.recommender import Objective, Query
from kernrec.recommender.analyze.kernel import analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.usefixtures("compiled_here")

IN_LINE = 0.15
"""Relative tolerance for a persistent kernel, which starts fewer blocks than a plain kernel."""


@pytest.mark.parametrize(("body", "runs", "idle"), [
    ("y[i] = x[i];", 1, False),  # without a loop, emulating one of the last blocks is enough
    ("if (blockIdx.x + 2 > gridDim.x) return; for (int k = 0; k < n; k++) y[i] += x[k];", 2, False),
    ("if (blockIdx.x > 60) return; for (int k = 0; k < n; k++) y[i] += x[k];", 3, True),
])  # fmt: skip
def test_idle_last_blocks_are_detected_from_few_emulated_blocks(nvrtc, monkeypatch, body, runs, idle):
    source = 'extern "C" __global__ void k(float* x, float* y, int n) { int i = blockIdx.x * 32 + threadIdx.x; BODY }'
    module = parse(compile_source(source.replace("BODY", body), 80).ptx)
    buffers = {name: np.zeros(4096, np.float32) for name in "xy"}
    launch = KernelLaunch("k", (64, 1, 1), (32, 1, 1), ["x", "y", np.int32(40)], buffers)
    emulation = Emulation(module, launch, replace(SAMPLING, most_blocks=1, budget=2000))
    ran, run = [], Emulation.run

    def counted(emulation: Emulation, blocks: Sequence[int]) -> Counts:
        ran.append(blocks)
        return run(emulation, blocks)

    monkeypatch.setattr(Emulation, "run", counted)
    assert _last_is_idle(emulation, launch) == idle
    assert len(ran) == runs


@given(total=st.integers(4, 2000), tiles=st.integers(1, 6000))
def test_work_of_persistent_blocks_adds_up_to_all_tiles(total, tiles):
    parts = levels(lambda block: float(len(range(block, tiles, total))), total)
    assert sum(level.count for level in parts) in (0, total)
    if parts:
        # Tiles of the first and last block may be partial, so the work of the next blocks is used.
        assert abs(sum(level.count * level.work for level in parts) - tiles) <= 1
    else:
        assert tiles <= 1 or tiles % total in (0, 1, total - 1) or tiles / total > 30
    start = 0
    for level in parts:
        assert start <= level.block < start + level.count
        start += level.count


TILE = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 8, "num_stages": 3}
DEPTH = 1024


def seconds(kernel: Kernel, problem: Problem, database: Path, tunable: str) -> dict[int, float]:
    """Return the predicted times of a kernel's configs on an A100, keyed by the value of a tunable."""
    query, options = Query(Objective.LATENCY, top=9, each_config=True), ProfilingOptions(processes=1)
    answer = analyze(kernel, problem, find_gpu("a100"), database, query, options).answer
    return {
        recommendation.config.get(tunable, 0): recommendation.latency_s.value
        for recommendation in answer.recommendations
    }


def triton_seconds(m: int, n: int, blocks: Sequence[int], database: Path) -> dict[int, float]:
    """Return the persistent matmul's times by number of blocks, or the plain matmul's under key 0."""
    shapes = {"a": (m, DEPTH), "b": (DEPTH, n), "c": (m, n)}
    arguments = {name: {"dtype": "f16", "shape": list(shape)} for name, shape in shapes.items()}
    arguments |= {"m": m, "n": n, "k": DEPTH, "stride_a": DEPTH, "stride_b": n, "stride_c": n}
    function, grid = ("persistent_matmul", "persistent_grid") if blocks else ("matmul", "grid")
    configs = [TILE | {"BLOCKS": count} for count in blocks] or [TILE]
    file = ROOT / "datasets" / "kernels" / "triton" / "matmul.py"
    kernel, _ = kernel_of_triton(TritonCall(file, function, arguments, grid, configs))
    return seconds(kernel, kernel.definition.problem(), database, "blocks")


@pytest.mark.every(3)
@pytest.mark.parametrize(("m", "n"), [(512, 512), (1024, 1280), (1280, 1408), (2048, 1792), (4096, 4096)])
def test_persistent_triton_matmul_takes_as_long_as_the_plain_one(m, n, tmp_path):
    # An earlier version predicted 0.16 of the plain time for 16 tiles, 0.59 for 110 and 0.81 for 1,024.
    pytest.importorskip("triton", reason="needs the extra `triton`")
    plain = triton_seconds(m, n, (), tmp_path / "a.duckdb")
    persistent = triton_seconds(m, n, (108, 216, 432), tmp_path / "a.duckdb")  # an A100 has 108 SMs
    assert persistent == pytest.approx(dict.fromkeys((108, 216, 432), plain[0]), rel=IN_LINE)
