"""Test that a built kernel runs Triton variants if Triton is installed, and compiles them in another process."""

import numpy as np
import pytest

from kernrec.compile import Compiled, Resources
from kernrec.compile.triton_version import has_triton
from kernrec.gpu import find_gpu
from kernrec.kernel import bind_launches, find_kernel
from kernrec.op import decode_elements, find_op, inputs, reference
from kernrec.profile.kernel_code import dynamic_shared_bytes
from kernrec.recommender import Objective, Query, Recommender
from kernrec.run import BuiltKernel, shapes
from kernrec.run.shapes import Shapes, Target, Variant
from tests.helpers.emulating_driver import EmulatingDriver, HostMemory

MATMUL = find_kernel("matmul_triton")
CONFIG = {"block_m": 16, "block_n": 32, "block_k": 16, "num_stages": 3, "num_warps": 2, "group_m": 8, "unaligned": 0}
SHAPES = Shapes.of(find_op("matmul"), "f16", "nn", {"m": range(1, 4097), "n": 64, "k": 64})


def target(monkeypatch: pytest.MonkeyPatch, triton: bool) -> Target:
    monkeypatch.setattr(shapes, "has_triton", lambda: triton)
    return Target(Recommender([]), SHAPES, find_gpu("a100"), Query(Objective.LATENCY, top=1))


def test_build_uses_triton_kernels_only_if_triton_is_installed(monkeypatch):
    problem = SHAPES.problem({"m": 512})
    assert target(monkeypatch, True).variant(problem).kernel.name == "matmul_triton"
    assert target(monkeypatch, False).variant(problem).kernel.triton is None


def test_launch_requests_the_shared_memory_that_triton_reports():
    problem = SHAPES.problem({"m": 64})
    compiled = Compiled("", b"", {"matmul_triton": Resources(40, 0, 0, 0, 61440)}, "triton", "")
    (bound,) = bind_launches(MATMUL, CONFIG, problem, 80)
    assert (bound.shared_bytes, dynamic_shared_bytes(MATMUL, bound, compiled)) == (0, 61440)
    assert bound.threads == 32 * CONFIG["num_warps"]


@pytest.mark.slow
@pytest.mark.skipif(not has_triton(), reason="needs the extra `triton`")
def test_triton_variant_can_be_launched_and_emulated(monkeypatch):
    built_for, chosen = target(monkeypatch, True), Variant(MATMUL, CONFIG)
    monkeypatch.setattr(built_for, "variant", lambda problem: chosen)
    driver = EmulatingDriver(80)
    kernel = BuiltKernel(built_for, driver)
    problem = SHAPES.problem({"m": 37})
    arguments = inputs(problem)
    expected = reference(problem, arguments)["c"]
    memory = driver.place(np.full((37, 64), np.nan, np.float16))
    kernel(*(HostMemory(driver.place(array)) for array in arguments.values()), out=HostMemory(memory), stream=5)
    assert driver.launched == [("matmul_triton", 5)]
    for result in (memory, kernel.emulate(*arguments.values())):
        assert np.abs(decode_elements(result, "f16") - expected).max() < 0.02
