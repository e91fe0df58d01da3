"""Test functions whose launches need more than their arguments, such as descriptors or scratch memory."""

from typing import Any

import numpy as np
import pytest

from kernrec.compile.compiled import CompileError
from kernrec.kernel.binding import bind_launches
from kernrec.profile.emulated_launch import kernel_launch, with_launcher_arguments
from kernrec.profile.triton_call import kernel_of_triton
from kernrec.profile.triton_call_file import TritonCall
from kernrec.ptx import emulate, parse
from tests.helpers.paths import ROOT
from tests.helpers.triton_kernels import compile_configs, configs_of

pytest.importorskip("triton", reason="needs the extra `triton`")

from kernrec.compile.triton_compile import with_dynamic_shared

KERNELS = ROOT / "tests" / "triton" / "captured_kernels.py"
MATRIX = {"dtype": "f16", "shape": [96, 128]}
SQUARE = {"dtype": "f16", "shape": [128, 128]}
CALLS = {
    # The first tensor is a view with longer rows, and blocks reach over its end.
    "copy_tiles": {
        "a": {**MATRIX, "strides": [160, 1], "block": ["BLOCK", "BLOCK"]}, "b": {**MATRIX, "block": ["BLOCK", 64]},
    },
    "copy_tiles_here": {"x": SQUARE, "y": SQUARE, "n": 128},
}  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize("sm", [80, 90, 100])
@pytest.mark.parametrize("function", CALLS)
def test_tensor_descriptors_copy_tiles(function, sm):
    arguments: dict[str, Any] = CALLS[function]
    kernel, _ = kernel_of_triton(TritonCall(KERNELS, function, arguments, [2, 2], [{"BLOCK": 64}]))
    (config,), problem = configs_of(kernel), kernel.definition.problem()
    (compiled,) = compile_configs(kernel, sm, KERNELS.parent).values()
    assert not isinstance(compiled, CompileError)
    source, target = list(problem.tensors)
    draw = np.random.default_rng(0)
    buffers = {name: draw.standard_normal(t.elements).astype(np.float16) for name, t in problem.tensors.items()}
    (bound,) = bind_launches(kernel, config, problem, sm)
    launch = with_launcher_arguments(kernel, problem, kernel_launch(bound, buffers), compiled.ptx)
    emulate(parse(compiled.ptx), launch)
    rows = 96 if function == "copy_tiles" else 128
    read = np.lib.stride_tricks.as_strided(buffers[source], (rows, 128), (320 if rows == 96 else 256, 2))
    np.testing.assert_array_equal(buffers[target].reshape(rows, 128), read)
    if (function, sm) != ("copy_tiles_here", 80):  # this function takes descriptors as numbers
        with pytest.raises(CompileError, match="can be analyzed, but not run"):
            with_dynamic_shared(compiled.ptx)
