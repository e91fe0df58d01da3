"""Compiles the Triton kernels of `datasets/kernels/triton` in worker processes, and emulates their whole grids."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.compile import CompileCache, Compiled, CompileError, CompileJob, compile_many
from kernrec.kernel import Kernel
from kernrec.profile.emulated_launch import emulate_config
from kernrec.profile.kernel_code import compile_job_for
from kernrec.profile.triton_call import kernel_of_triton
from kernrec.profile.triton_call_file import TritonCall
from kernrec.ptx import parse
from tests.helpers.paths import ROOT

FOLDER = ROOT / "datasets" / "kernels" / "triton"


def sample_call(target: str, arguments: Mapping[str, Any], grid: Any, config: Mapping[str, Any] | None) -> TritonCall:
    """Return a call of `file.py:function` in that folder; NumPy arrays stand for tensors."""
    name, _, function = target.partition(":")
    inputs = {key: tensor(value) if isinstance(value, np.ndarray) else value for key, value in arguments.items()}
    return TritonCall(FOLDER / name, function, inputs, grid, None if config is None else [config])


def tensor(array: np.ndarray) -> dict[str, Any]:
    """Convert an array to a call's tensor argument; uint16 stands for bf16."""
    names = {"uint16": "bf16", "float16": "f16", "float32": "f32", "int32": "i32", "int64": "i64", "uint8": "f8e4m3"}
    return {"dtype": names[array.dtype.name], "shape": list(array.shape)}


def compile_configs(kernel: Kernel, sm: int, folder: Path = FOLDER) -> dict[CompileJob, Compiled | CompileError]:
    """Compile every config of a call's kernel in one worker process."""
    problem = kernel.definition.problem()
    jobs = [compile_job_for(kernel, config, problem, sm, folder) for config in configs_of(kernel)]
    return dict(compile_many(jobs, processes=1, cache=CompileCache.default()))


def configs_of(kernel: Kernel) -> list[dict[str, int]]:
    """Return the configs of a call's kernel, in the order of its config list."""
    assert kernel.listed is not None
    rows = (dict(zip(kernel.listed.columns, row, strict=True)) for row in kernel.listed.rows)
    return [{tunable.name: row[tunable.name] for tunable in kernel.tunables} for row in rows]


def run_call(call: TritonCall, arrays: Mapping[str, np.ndarray], sm: int) -> None:
    """Emulate all blocks of a call that has a single config; outputs are written into the arrays."""
    kernel, _ = kernel_of_triton(call)
    (config,) = configs_of(kernel)
    (compiled,) = compile_configs(kernel, sm).values()
    if isinstance(compiled, CompileError):
        raise compiled
    buffers = {name.lower(): array.reshape(-1) for name, array in arrays.items()}
    emulate_config(kernel, config, kernel.definition.problem(), sm, parse(compiled.ptx), buffers)
