"""Compiles the Triton kernels of `datasets/kernels/triton` in worker processes, and emulates their whole grids. With
the stand-in for Triton's driver, Triton compiles kernels in this process but does not run them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    """Return a call of `file.py:function` in `FOLDER`. NumPy arrays stand for tensors."""
    name, _, function = target.partition(":")
    inputs = {key: tensor(value) if isinstance(value, np.ndarray) else value for key, value in arguments.items()}
    return TritonCall(FOLDER / name, function, inputs, grid, None if config is None else [config])


def tensor(array: np.ndarray) -> dict[str, Any]:
    """Convert an array to a call's tensor argument, with uint16 for bf16."""
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
    """Emulate all blocks of a call that has a single config. Outputs are written into the arrays."""
    kernel, _ = kernel_of_triton(call)
    (config,) = configs_of(kernel)
    (compiled,) = compile_configs(kernel, sm).values()
    if isinstance(compiled, CompileError):
        raise compiled
    buffers = {name.lower(): array.reshape(-1) for name, array in arrays.items()}
    emulate_config(kernel, config, kernel.definition.problem(), sm, parse(compiled.ptx), buffers)


class Tensor:
    """Stand-in for a tensor argument, without memory."""

    def __init__(self, dtype: str, *shape: int) -> None:
        self.dtype, self.shape = dtype, shape

    def data_ptr(self) -> int:
        return 1 << 20

    def __repr__(self) -> str:
        return f"Tensor({self.dtype}, {self.shape})"


class _Utils:
    """Functions that Triton calls in the driver's library."""

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        return 1, 1, 32, 0, 1024

    def unload_module(self, module: int) -> None:
        pass

    def get_device_properties(self, device: int) -> Mapping[str, int]:
        return {"max_shared_mem": 166912, "multiprocessor_count": 108, "warpSize": 32, "max_num_regs": 65536}


class StandInDriver:
    """Driver for a pretended GPU of compute capability `sm`, which runs nothing."""

    def __init__(self, sm: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", sm, 32)
        self.launched: list[Any] = []
        """Metadata of each launch."""
        self.synchronized = 0
        self.utils = _Utils()
        self.launcher_cls = lambda source, metadata: lambda *arguments: self.launched.append(metadata)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return self

    def synchronize(self) -> None:
        self.synchronized += 1

    def get_benchmarker(self) -> Any:
        raise AssertionError("nothing should be measured")


@contextmanager
def stand_in_driver(sm: int = 80) -> Iterator[StandInDriver]:
    """Make the stand-in Triton's active driver inside the context."""
    from triton.runtime.driver import driver

    stand_in = StandInDriver(sm)
    driver.set_active(stand_in)
    try:
        yield stand_in
    finally:
        driver._active = None
