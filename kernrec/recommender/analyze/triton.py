"""Analyze a Triton function, given as an object or as `kernels.py:matmul`, with values for its arguments."""

import hashlib
import inspect
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.op.dtype import canonical_dtype
from kernrec.profile.triton_call import kernel_of_triton
from kernrec.profile.triton_call_file import TritonCall, function_place, read_call
from kernrec.recommender.analyze.kernel import Analysis, analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from kernrec.recommender.request import Query
from kernrec.util.files import write_whole

_INDICES = ("i16", "u16", "i32", "u32", "i64", "u64")
"""Types of arrays whose values may determine what a kernel reads."""

Grid = str | Sequence[int | str] | Callable[[dict[str, Any]], Sequence[int]]


def analyze_triton(
    function: Any,
    gpu: str,
    arguments: Mapping[str, Any],
    grid: Grid,
    configs: Sequence[Mapping[str, Any]] | None = None,
    query: Query | None = None,
) -> Analysis:
    """Profile the configs of a Triton function on one call, and recommend.

    Args:
        function: function decorated with `@triton.jit` (possibly autotuned), or the text `kernels.py:matmul`, or
            `package.kernels:matmul` for an installed package.
        gpu: name of the GPU.
        arguments: values by parameter: numbers, NumPy or torch arrays, or any object with `dtype` and `shape`. Values
            of integer arrays are used, because addresses may depend on them; other arrays need no values.
        grid: grid, as in a Triton launch.
        configs: tables of meta-parameters and compiler options; None for the autotuner's configs.
        query: the query; by default the Pareto front.

    Raises:
        UsageError: the function lacks `@triton.jit`, or arguments, grid or configs do not fit.
        KernrecError: Triton is not installed, or no config could be profiled.
    """
    decorated, module = None, ""
    if isinstance(function, str):
        if callable(grid):
            raise UsageError("a grid that is a function goes with the Triton function itself; of a file give its name")
        path, module, name = function_place(function)
    else:
        decorated = function
        path, name = source_file(function)
    described = {key: argument(value) for key, value in arguments.items()}
    return analyze_call(
        TritonCall(path, name, described, grid, configs, decorated=decorated, module=module), gpu, query
    )


def analyze_call(call: TritonCall | Path, gpu: str, query: Query | None = None) -> Analysis:
    """Profile the configs of a call, and recommend.

    Args:
        call: a call, or its .toml file, which names the function.
        gpu: name of the GPU.
        query: the query; by default the Pareto front.

    Raises:
        UsageError: the call does not fit the function, or a value is not accepted.
        KernrecError: Triton is not installed, or no config could be profiled.
    """
    if isinstance(call, Path):
        call = read_call(call)
    kernel, _ = kernel_of_triton(call)
    options = ProfilingOptions(folder=call.path.parent)
    return analyze(kernel, kernel.definition.problem(), find_gpu(gpu), paths.user_database(), query, options)


def source_file(function: Any) -> tuple[Path, str]:
    """Return the file and name of a function with `@triton.jit`; ignore its other decorators.

    Raises:
        UsageError: the function has no `@triton.jit`.
    """
    inner = function
    while hasattr(inner, "fn"):
        inner = inner.fn
    source = inspect.getsourcefile(inner) if inspect.isfunction(inner) else None
    if source is None or not hasattr(function, "fn"):
        raise UsageError(f"{function!r:.60} is not a function of a file with @triton.jit")
    return Path(source), inner.__name__


def argument(value: Any) -> Any:
    """Convert an argument to the form of a call, and write values of integer arrays to the user's cache.

    Integers of 8 bits are weights, not indices, so their values are not used.
    """
    if value is None or isinstance(value, str | int | float | Mapping):
        return value
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or shape is None:
        raise UsageError(f"{value!r:.60}: expected a number, text, or a tensor with dtype and shape")
    name = canonical_dtype(str(dtype).rpartition(".")[2])
    if name in _INDICES:
        return {"values": str(kept_values(np.asarray(value.cpu() if hasattr(value, "cpu") else value)))}
    return {"dtype": name, "shape": [int(extent) for extent in shape]}


def kept_values(array: np.ndarray) -> Path:
    """Return the cache file that stores an array's values; its name depends on its content."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    file = paths.cache() / "triton" / f"{hashlib.sha256(buffer.getvalue()).hexdigest()}.npy"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, buffer.getvalue())
    return file
