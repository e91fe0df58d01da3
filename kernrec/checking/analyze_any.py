"""Analyze a kernel given as a source, a captured call or a Triton function."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernrec.errors import UsageError
from kernrec.recommender import Query
from kernrec.recommender.analyze.kernel import Analysis

if TYPE_CHECKING:
    from kernrec.recommender.analyze.triton import Grid


def analyze_any(
    function: Any,
    gpu: str,
    arguments: Mapping[str, Any] | Sequence[str] | None,
    grid: "Grid | None",
    configs: Sequence[Mapping[str, Any]] | None,
    block: Sequence[int],
    query: Query,
) -> Analysis:
    """Return the analysis; arguments and errors are those of `kernrec.analyze`."""
    if isinstance(function, str) and ("__global__" in function or ".entry" in function):
        from kernrec.checking.analyze_source import analyze_own

        if arguments is None or grid is None:
            raise UsageError("a source needs arguments, in the order of its parameters, and a grid")
        return analyze_own(function, gpu, arguments, grid, block, query)
    from kernrec.recommender.analyze.triton import analyze_call, analyze_triton

    if isinstance(function, str | os.PathLike) and str(function).endswith((".cu", ".ptx")):
        raise UsageError(f"{function} is the name of a file; pass the text of the source, for example with read_text()")
    if isinstance(function, os.PathLike) or str(function).endswith(".toml"):
        if any(value is not None for value in (arguments, grid, configs)):
            raise UsageError(f"{function}: a call has its arguments, grid and configs; change them in the file")
        return analyze_call(Path(function), gpu, query)
    if not isinstance(arguments, Mapping):
        raise UsageError("the arguments of a Triton function must be named")
    if grid is None:
        raise UsageError("the grid is missing: extents, or a function of all arguments and constants")
    return analyze_triton(function, gpu, arguments, grid, configs, query)
