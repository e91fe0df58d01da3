"""Test built kernels on arrays, and the problems that follow from the shapes of arrays."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernrec
from kernrec.errors import KernrecError
from kernrec.gpu import find_gpu
from kernrec.measure.device.correctness import tolerance
from kernrec.op import Problem, all_ops, decode_elements, find_op, inputs, reference
from kernrec.recommender import Objective, Query, Recommender
from kernrec.run import BuiltKernel
from kernrec.run.built_kernel import build_kernel
from kernrec.run.shapes import Shapes
from tests.helpers.depth import few_examples
from tests.helpers.emulating_driver import EmulatingDriver, HostMemory
from tests.helpers.on_gpu import gpu_in_use

pytest.importorskip("cupy", reason="compiling needs CuPy")

GPU = "rtx4090"
CASES: dict[str, dict[str, Any]] = {
    "matmul": {"m": [7, 33], "n": 24, "k": 64},
    "conv2d": {"n": range(1, 3), "c": 8, "h": 6, "w": 6, "k": 8, "padding": 1},
    "attention": {"heads": 2, "queries": [3, 17], "keys": 40, "head_dim": 64},
    "matvec": {"m": [9, 33], "k": 72},
    **{op: {"rows": [3, 5], "columns": 72} for op in ("softmax", "layernorm", "rmsnorm", "reduce")},
    "transpose": {"rows": [9, 33], "columns": 40},
    "elementwise": {"n": [300, 2500]},
}


@pytest.fixture(scope="module")
def driver():
    return EmulatingDriver(find_gpu(GPU).sm)


def build(recommender: Recommender, driver: EmulatingDriver | None, op: str, dtype: str = "f32", **dims: Any):
    shapes = Shapes.of(find_op(op), dtype, None, dims)
    return build_kernel(recommender, shapes, GPU, Query(Objective.LATENCY, top=1), driver)


def middle(kernel: BuiltKernel) -> Problem:
    shapes = kernel.target.shapes
    return shapes.problem({name: values[len(values) // 2] for name, values in shapes.ranged.items()})


def error_of(problem: Problem, arguments: dict[str, np.ndarray], output: np.ndarray) -> float:
    """Return the largest error, divided by the tolerance for rounding errors."""
    (expected,) = reference(problem, arguments).values()
    rms = np.sqrt((expected**2).mean())
    dtype = problem.tensors[problem.definition.outputs[0]].dtype
    apart = np.abs(decode_elements(output, dtype) - expected) / np.maximum(np.abs(expected), rms)
    return float(apart.max()) / tolerance(problem)


def cupy_array(driver: EmulatingDriver, array: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return a CuPy array over host memory registered with the driver, and that memory."""
    import cupy

    here = driver.place(array)
    owner = cupy.cuda.UnownedMemory(here.ctypes.data, here.nbytes, here, 0)
    return cupy.ndarray(here.shape, here.dtype, cupy.cuda.MemoryPointer(owner, 0)), here


@pytest.mark.parametrize("op", sorted(CASES))
def test_every_op_runs_on_the_arrays_of_two_libraries(op, recommender, driver):
    kernel = build(recommender, driver, op, **CASES[op])
    problem = middle(kernel)
    arguments = inputs(problem)
    (name,) = problem.definition.outputs
    result, memory = cupy_array(driver, np.full(problem.tensors[name].shape, np.nan, np.float32))
    arrays = [cupy_array(driver, array)[0] for array in arguments.values()]
    assert kernel(*arrays, out=result, stream=3) is result
    assert error_of(problem, arguments, memory) <= 1
    assert {stream for _, stream in driver.launched} == {3}
    memory[...] = np.nan
    named = {tensor: HostMemory(driver.place(array)) for tensor, array in arguments.items()}
    kernel(out=HostMemory(memory), stream=3, **named)
    assert error_of(problem, arguments, memory) <= 1


@pytest.mark.parametrize(("op", "dtype", "dims"), [
    ("matmul", "f32", {"m": [33], "n": 24, "k": 64, "bias": 1, "activation": 2}),
    ("matmul", "f16", {"m": [33], "n": 40, "k": 128}),
    ("matmul", "bf16", {"m": [17], "n": 16, "k": 64, "batch": 2, "activation": 1}),
    ("layernorm", "bf16", {"rows": [3], "columns": 136}),
])  # fmt: skip
def test_kernel_is_emulated_on_numpy_arrays(op, dtype, dims, recommender):
    kernel = build(recommender, None, op, dtype, **dims)
    problem = middle(kernel)
    arguments = inputs(problem)
    output = kernel.emulate(*arguments.values())
    assert output.shape == problem.tensors[problem.definition.outputs[0]].shape
    assert error_of(problem, arguments, output) <= 1


def test_8_bit_attention_accepts_scales_and_returns_16_bits(recommender):
    dims = {"heads": 2, "queries": [70], "head_dim": 64, "causal": 1, "scales": 1, "output": 1}
    shapes = Shapes.of(find_op("attention"), "f8e4m3", None, dims)
    kernel = build_kernel(recommender, shapes, "h100-sxm", Query(Objective.LATENCY, top=1), None)
    problem = middle(kernel)
    arguments = inputs(problem)
    output = kernel.emulate(*arguments.values())
    assert (list(arguments), output.dtype) == (["q", "k", "v", "q_scale", "k_scale", "v_scale"], np.float16)
    assert error_of(problem, arguments, output) <= 1
    other = arguments | {"v_scale": arguments["v_scale"] * 2}
    assert error_of(problem, other, output) > 1


def test_workspace_is_reused_per_stream_and_grows(recommender, driver):
    kernel = build(recommender, driver, "matmul", m=[2, 32], n=16, k=1024)
    for m, stream in ((2, 1), (32, 1), (32, 2)):
        problem = kernel.target.shapes.problem({"m": m})
        assert len(kernel.variant(m=m).kernel.workspaces) == 1
        arguments = inputs(problem)
        result, memory = cupy_array(driver, np.zeros((m, 16), np.float32))
        kernel(*(cupy_array(driver, array)[0] for array in arguments.values()), out=result, stream=stream)
        assert error_of(problem, arguments, memory) <= 1
    pieces = kernel._workspaces._pieces
    assert {stream: len(remaining) for (_, stream), remaining in pieces.items()} == {1: 2, 2: 1}


def _wrong(driver: EmulatingDriver, what: str) -> list[Any]:
    x = np.ones((8, 64), np.float32)
    arrays = {
        "dtype": x.astype(np.float64),
        "shape": np.ones((8, 65), np.float32),
        "axes": np.ones(64, np.float32),
        "range": np.ones((9, 64), np.float32),
    }
    if what in arrays:
        return [HostMemory(driver.place(arrays[what]))]
    if what == "strides":
        return [HostMemory(driver.place(np.ones((8, 128), np.float32))[:, ::2])]
    if what == "transposed":
        return [HostMemory(driver.place(np.ones((64, 8), np.float32)).T)]
    if what == "alignment":
        return [HostMemory(driver.place(np.ones(8 * 64 + 1, np.float32))[1:].reshape(8, 64))]
    return {"numpy": [x], "object": ["x"], "number": [], "device": [HostMemory(x)]}[what]


def test_wrong_array_is_refused_in_one_line(recommender, driver, refuses):
    kernel = build(recommender, driver, "reduce", rows=range(1, 9), columns=64)
    out = HostMemory(driver.place(np.zeros(8, np.float32)))
    refuses(lambda what: kernel(*_wrong(driver, what), out=out, stream=0), [
        "dtype", "shape", "axes", "range", "strides", "transposed", "alignment", "numpy", "object", "number", "device",
    ])  # fmt: skip


def test_emulator_refuses_numpy_arrays_of_the_wrong_size(recommender, refuses):
    kernel = build(recommender, None, "matmul", m=[1, 2048], n=2048, k=1024)
    b = np.ones((1024, 2048), np.float32)
    refuses(lambda: kernel.emulate(np.ones((1, 1024)), b))
    refuses(lambda: kernel.emulate(np.ones((2048, 1024), np.float32), b))
    refuses(lambda: kernel.emulate(b))


def test_gpu_of_another_architecture_is_refused(recommender, refuses):
    kernel = build(recommender, EmulatingDriver(80), "reduce", rows=8, columns=64)
    other = kernel._driver
    refuses(lambda: kernel(HostMemory(other.place(np.ones((8, 64), np.float32))), stream=0))


def test_auto_selects_the_gpu_that_the_driver_reports(recommender):
    shapes = Shapes.of(find_op("reduce"), None, None, {"rows": 8, "columns": 64})
    named = EmulatingDriver(89, name="NVIDIA L40S")
    kernel = build_kernel(recommender, shapes, "auto", Query(Objective.ENERGY, top=1), named)
    assert kernel.target.gpu.name == "l40s"


def test_build_without_a_gpu_suggests_alternatives():
    try:
        from cupy.cuda import runtime

        if runtime.getDeviceCount():
            pytest.skip("this machine has a GPU")
    except runtime.CUDARuntimeError:
        pass
    with pytest.raises(KernrecError, match=r"no NVIDIA GPU.*kernel\.emulate.*build\(gpu='h200'"):
        kernrec.build("reduce", rows=8, columns=64)
    kernel = kernrec.build("reduce", "l4", rows=8, columns=64)
    with pytest.raises(KernrecError, match="no NVIDIA GPU"):
        kernel(HostMemory(np.ones((8, 64), np.float32)))
    assert "kernrec kernel reduce f32,row for l4" in repr(kernel)


def test_build_runs_the_recommended_config(recommender):
    kernel = build(recommender, None, "matmul", m=range(1, 4097), n=64, k=512)
    for m in (1, 17, 4096):
        best = recommender.recommend("matmul", GPU, {"m": m, "n": 64, "k": 512}, "f32", "nn", kernel.target.query).best
        if best.kernel.triton is None:
            assert (kernel.variant(m=m).kernel, kernel.variant(m=m).config) == (best.kernel, best.config)
    assert kernel.variant(m=17) is kernel.variant(m=17)


@pytest.mark.gpu
@pytest.mark.parametrize("op", sorted(CASES))
def test_every_op_runs_on_the_gpu(op):
    with gpu_in_use():
        import cupy

        kernel = kernrec.build(op, **CASES[op])
        problem = middle(kernel)
        arguments = inputs(problem)
        output = kernel(*(cupy.asarray(array) for array in arguments.values()))
        assert error_of(problem, arguments, output.get()) <= 1


DIMS = {
    "matmul": {"m": range(1, 65), "n": range(1, 65), "k": range(1, 65)},
    "conv2d": {"n": range(1, 9), "c": 8, "h": range(5, 40), "w": range(5, 40), "k": [8, 16, 24], "padding": 1},
    "attention": {"batch": range(1, 5), "heads": 4, "queries": range(1, 100), "keys": range(100, 200), "head_dim": 64},
    "matvec": {"m": range(1, 100), "k": range(1, 100), "n": range(1, 17)},
    "elementwise": {"n": range(1, 1000)},
    "moe": {"tokens": range(1, 100), "hidden": 64, "intermediate": 32, "experts": 8, "topk": 2},
}


def shapes_of(op: str, **dims: object) -> Shapes:
    return Shapes.of(find_op(op), None, None, dims)


@pytest.mark.parametrize("op", [op.name for op in all_ops()])
@few_examples(5)
@given(data=st.data())
def test_problem_is_inferred_from_input_shapes(op, data):
    dims = DIMS.get(op, {"rows": range(1, 100), "columns": range(1, 100)})
    shapes = shapes_of(op, **dims)
    values = {name: data.draw(st.sampled_from(arguments)) for name, arguments in shapes.ranged.items()}
    problem = shapes.problem(values)
    assert shapes.read([problem.tensors[name].shape for name in shapes.inputs]) == problem


def test_inconsistent_shapes_are_named(refuses):
    usual = {"m": range(1, 9), "n": 4, "k": 8}
    refuses(lambda dims, arguments: shapes_of("matmul", **usual | dims).read(arguments), [
        ({}, [(5, 8)]), ({}, [(5, 8), (8,)]), ({}, [(9, 8), (8, 4)]), ({"m": [2, 4]}, [(3, 8), (8, 4)]),
        ({}, [(5, 9), (8, 4)]), ({"n": range(8, 33, 8)}, [(5, 8), (8, 12)]),
    ])  # fmt: skip
