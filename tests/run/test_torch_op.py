"""Test that a built kernel works as a custom op of PyTorch, also under its compiler and `torch.export`, with CPU
tensors and an emulated driver. The tests skip without PyTorch."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("cupy", reason="compiling needs CuPy")

from kernrec.errors import UsageError  # noqa: E402
from kernrec.op import find_op  # noqa: E402
from kernrec.recommender import Objective, Query, Recommender  # noqa: E402
from kernrec.run.arrays import TorchReader  # noqa: E402
from kernrec.run.built_kernel import build_kernel  # noqa: E402
from kernrec.run.shapes import Shapes  # noqa: E402
from tests.helpers.emulating_driver import EmulatingDriver  # noqa: E402

HOST = -1
"""PyTorch's device number of the CPU."""


def tensor(driver: EmulatingDriver, *shape: int) -> Any:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return torch.from_numpy(driver.place(values))


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=5))
    driver = EmulatingDriver(89, HOST)
    monkeypatch.setattr(TorchReader, "empty", lambda self, expected, device: tensor(driver, *expected.shape))
    shapes = Shapes.of(find_op("rmsnorm"), None, None, {"rows": range(1, 33), "columns": 64})
    return build_kernel(Recommender([]), shapes, "rtx4090", Query(Objective.LATENCY, top=1), driver)


@pytest.fixture
def arrays(kernel):
    x, weight = tensor(kernel._driver, 5, 64), tensor(kernel._driver, 64)
    return x, weight, x / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-5) * weight


def test_torch_tensors_are_accepted_and_returned(kernel, arrays):
    x, weight, expected = arrays
    torch.testing.assert_close(kernel(x, weight), expected)
    torch.testing.assert_close(kernel.torch_op(x, weight), expected)
    assert kernel._driver.launched[-1][1] == 5
    assert str(kernel.torch_op).startswith("kernrec.rmsnorm_f32_row_")


def test_custom_op_passes_opcheck_of_pytorch(kernel, arrays):
    torch.library.opcheck(kernel.torch_op, arrays[:2])


def test_torch_compile_keeps_the_kernel_call(kernel, arrays):
    x, weight, expected = arrays
    calls: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        calls.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    compiled = torch.compile(lambda a, b: kernel(a, b) + 1, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(x, weight), expected + 1)
    assert any("rmsnorm_f32_row" in call for call in calls)
    into = torch.compile(lambda a, b, c: kernel(a, b, out=c) * 2, fullgraph=True, backend="aot_eager")
    y = tensor(kernel._driver, 5, 64)
    torch.testing.assert_close(into(x, weight, y), 2 * expected)
    torch.testing.assert_close(y, expected)


def test_exported_program_accepts_every_row_count(kernel, arrays):
    class Norm(torch.nn.Module):
        def forward(self, x: Any, weight: Any) -> Any:
            return kernel(x, weight)

    rows = {"x": {0: torch.export.Dim("rows", min=2, max=32)}, "weight": None}
    program = torch.export.export(Norm(), arrays[:2], dynamic_shapes=rows).module()
    x = tensor(kernel._driver, 9, 64)
    torch.testing.assert_close(program(x, arrays[1]), kernel(x, arrays[1]))


def test_wrong_tensor_is_refused_in_one_line(kernel, arrays):
    x, weight, _ = arrays
    for wrong, says in (
        (x.double(), "x has dtype float64; expected float32"),
        (x.repeat(1, 2)[:, ::2], r"x has strides \(128, 2\)"),
        (x.clone().requires_grad_(), "x requires gradients, which this kernel does not compute"),
    ):
        with pytest.raises(UsageError, match=says):
            kernel(wrong, weight)
    with torch.no_grad():
        kernel(x.requires_grad_(), weight)
