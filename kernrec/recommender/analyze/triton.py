"""Analyze a Triton function for given arguments."""

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
"""Integer types that an array of indices may have."""

Grid = str | Sequence[int | str] | Callable[[dict[str, Any]], Sequence[int]]


def analyze_triton(
    function: Any,
    gpu: str,
    arguments: Mapping[str, Any],
    grid: Grid,
    configs: Sequence[Mapping[str, Any]] | None = None,
    query: Query | None = None,
) -> Analysis:
    """Profile the configs of a Triton function for one call, and recommend the best. See `kernrec.analyze`."""
    decorated, module = None, ""
    if isinstance(function, str):
        if callable(grid):
            raise UsageError("the grid is a function: pass the Triton function itself, or name both functions")
        path, module, name = function_place(function)
    else:
        decorated = function
        path, name = source_file(function)
    described = {key: argument(value) for key, value in arguments.items()}
    return analyze_call(
        TritonCall(path, name, described, grid, configs, decorated=decorated, module=module), gpu, query
    )


def analyze_call(call: TritonCall | Path, gpu: str, query: Query | None = None) -> Analysis:
    """Profile the configs of a Triton call, or of the call in a .toml file, and recommend the best configs."""
    if isinstance(call, Path):
        call = read_call(call)
    kernel, _ = kernel_of_triton(call)
    options = ProfilingOptions(folder=call.path.parent)
    return analyze(kernel, kernel.definition.problem(), find_gpu(gpu), paths.user_database(), query, options)


def source_file(function: Any) -> tuple[Path, str]:
    """Return the source file and the name of a `@triton.jit` function. Raise `UsageError` for other functions."""
    inner = function
    while hasattr(inner, "fn"):
        inner = inner.fn
    source = inspect.getsourcefile(inner) if inspect.isfunction(inner) else None
    if source is None or not hasattr(function, "fn"):
        raise UsageError(f"{function!r:.60} is not a function of a file with @triton.jit")
    return Path(source), inner.__name__


def argument(value: Any) -> Any:
    """Convert an argument of the user's call to the form that a `TritonCall` needs.

    If the argument is an array of indices, store its values in a file in the cache.
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
    """Store an array's values in the cache, and return the path of the file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    file = paths.cache() / "triton" / f"{hashlib.sha256(buffer.getvalue()).hexdigest()}.npy"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, buffer.getvalue())
    return file
