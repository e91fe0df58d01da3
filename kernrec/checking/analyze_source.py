"""Analyze kernel sources and explain their performance.

Untrusted sources are analyzed in a child process whose time, memory and access to files are limited. The user's own
sources are analyzed in this process.
"""

import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernrec import paths
from kernrec.checking.check import check_descriptions, check_source, file_of
from kernrec.checking.check_launch import program_launch
from kernrec.checking.child_process import Limits, run_apart
from kernrec.checking.findings import readable
from kernrec.compile.nvrtc import compile_source
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.interop.assumed_words import enlarged_words, wrong_values
from kernrec.interop.spec_text import LaunchWords
from kernrec.kernel import load_kernel
from kernrec.op import parse_shape
from kernrec.op.dtype import canonical_dtype
from kernrec.profile.line_costs import line_costs
from kernrec.profile.ptx_kernel import kernel_of_ptx
from kernrec.recommender.analyze.kernel import Analysis, analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from kernrec.recommender.context import Context
from kernrec.recommender.explain.line_advice import LineAdvice, line_advice
from kernrec.recommender.explain.report import Report, report
from kernrec.recommender.request import Objective, Query, Request, objective_named
from kernrec.store.measurement import Outcome
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.recommender.analyze.triton import Grid

_FILES = re.compile(r"\.npy\b|\braw\s", re.IGNORECASE)


@dataclass(frozen=True)
class SourceAnalysis:
    """Request to analyze all configs of a kernel with a spec, or one launch of a kernel without a spec."""

    source: str
    """Text in CUDA C++ or PTX."""
    gpu: str
    spec: str | None = None
    """Content of the kernel's `kernel.toml`, or None. The key `source` must be `kernel.cu`."""
    shape: str | None = None
    """Sizes of dimensions, if they differ from the defaults in the spec."""
    arguments: Sequence[str] = ()
    """Arguments of the kernel without a spec, as for `kernrec check`: `a=f32[4096]`, `i32:4096`."""
    grid: Sequence[int] = (1,)
    block: Sequence[int] = (128,)
    query: Query = Query()
    entry: str | None = None
    """Name of the kernel without a spec. None selects the only kernel of the source."""


def analyze_source(wanted: SourceAnalysis, limits: Limits | None = None) -> dict[str, Any]:
    """Analyze a source in a child process whose resources are limited, without storing profiles.

    Return the values that `kernrec analyze --json` prints, and an explanation of the top recommendation.

    Raises:
        UsageError: The source, the spec or the launch cannot be used.
        KernrecError: The source does not compile or takes too long, or no config can be profiled.
    """
    limits = limits or Limits()
    file = file_of(wanted.source)
    check_source(wanted.source, file, limits)
    find_gpu(wanted.gpu)
    check_descriptions(wanted.arguments, limits)
    if wanted.spec is not None:
        if file == "kernel.ptx":
            raise UsageError("a spec describes CUDA C++; PTX needs arguments, a grid and a block")
        if len(wanted.spec) > limits.source_bytes or _FILES.search(wanted.spec):
            raise UsageError("the spec is too large, or takes values from files, which kernrec does not read here")
    query = wanted.query
    request = {"wanted": {**vars(wanted), "query": [str(query.objective), query.top, *query.conditions]}}
    with tempfile.TemporaryDirectory(prefix="kernrec-", ignore_cleanup_errors=True) as folder:
        ended = run_apart("analyze", request, Path(folder), limits)
    if ended.outcome is not Outcome.OK:
        raise KernrecError(ended.message)
    return ended.result


def analyze_here(request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Handle a request from `analyze_source` in the child process whose resources are limited."""
    objective, top, inputs, l2 = request["wanted"]["query"]
    query = Query(objective_named(objective), top=top, inputs=inputs, l2=l2)
    wanted = SourceAnalysis(**{**request["wanted"], "query": query})
    database = folder / "profiles.duckdb"
    analysis, notes = analyze_in(wanted, folder, database, 1)
    recommendation = analysis.answer
    best, problem = recommendation.best, recommendation.problem
    objective = Objective.LATENCY if query.objective is Objective.PARETO else query.objective
    again = replace(query, objective=objective)
    about = Request(best.gpu.name, None, best.kernel.name, dict(problem.dims), problem.dtype, problem.layout, again)
    explained = report(about, Context([database]), best.config, kernel=best.kernel)
    answer = analysis.as_dict()
    return {**answer, "notes": [*answer["notes"], *notes], "explanation": explained.as_dict()}


def analyze_in(wanted: SourceAnalysis, folder: Path, database: Path, processes: int = 2) -> tuple[Analysis, list[str]]:
    """Analyze a source in this process. Return the analysis, and notes on how the source was read.

    Args:
        folder: Folder for the source.
        database: Path of the database for the profiles.
        processes: Number of worker processes that emulate the kernel.

    Raises:
        UsageError: The source, the spec or the launch cannot be used.
        KernrecError: The source does not compile, or no config can be profiled.
    """
    gpu = find_gpu(wanted.gpu)
    source = folder / file_of(wanted.source)
    source.write_text(wanted.source, encoding="utf-8")
    notes: list[str] = []
    if wanted.spec is not None:
        spec = folder / "kernel.toml"
        spec.write_text(wanted.spec, encoding="utf-8")
        kernel = load_kernel(spec)
        if kernel.source_name != source.name:
            raise UsageError(f"the spec describes {kernel.source_name!r:.60}; its source is called {source.name}")
    else:
        if source.suffix == ".cu":
            source = folder / "kernel.ptx"
            source.write_text(compile_source(wanted.source, gpu.sm, {}, "kernel.cu").ptx, encoding="utf-8")
        kernel, notes = kernel_of_ptx(source, wanted.entry, wanted.grid, wanted.block, wanted.arguments)
    dims = parse_shape(wanted.shape) if wanted.shape else {}
    problem = kernel.definition.problem(None, None, **dims)
    options = ProfilingOptions(folder=folder, processes=processes)
    return analyze(kernel, problem, gpu, database, wanted.query, options), notes


def analyze_own(source: str, gpu: str, arguments: Any, grid: Any, block: Sequence[int], query: Query) -> Analysis:
    """Analyze a trusted source in this process and its worker processes, and store the profiles.

    Args:
        source: Text of the source in CUDA C++ or PTX.
        arguments: Descriptions of the arguments in the order of the parameters, or values keyed by parameter.
        grid: Number of thread blocks along one to three axes.
        block: Threads per block along one to three axes.
        query: Objective for ranking the configs, and limits such as the maximum power.

    Raises:
        UsageError: The source or the launch cannot be used.
        KernrecError: The source does not compile, or no config can be profiled.
    """
    if callable(grid) or isinstance(grid, str):
        raise UsageError("the grid of a source must be one to three whole numbers")
    if isinstance(arguments, Mapping):
        arguments = [_description(*item) for item in arguments.items()]
    blocks, threads = ([int(extent) for extent in extents] for extents in (grid, block))
    wanted = SourceAnalysis(source, gpu, None, None, list(arguments), blocks, threads, query)
    with tempfile.TemporaryDirectory(prefix="kernrec-") as folder:
        return analyze_in(wanted, Path(folder), paths.user_database())[0]


def _description(name: str, value: Any) -> str:
    """Describe an argument as for `kernrec check`, without the values of arrays."""
    dtype, shape = str(getattr(value, "dtype", "")).rpartition(".")[2], getattr(value, "shape", None)
    if shape:
        return f"{name}={canonical_dtype(dtype)}[{prod(shape)}]"
    kind = canonical_dtype(dtype) if dtype else "i32" if isinstance(value, int) else "f32"
    return f"{kind}:{value}"


def analyze_any(
    function: Any,
    gpu: str,
    arguments: Mapping[str, Any] | Sequence[str] | None,
    grid: "Grid | None",
    configs: Sequence[Mapping[str, Any]] | None,
    block: Sequence[int],
    query: Query,
) -> Analysis:
    """Analyze a source, a Triton function or a captured call. For arguments and errors, see `kernrec.analyze`."""
    if isinstance(function, str) and ("__global__" in function or ".entry" in function):
        if arguments is None or grid is None:
            raise UsageError("a source needs arguments, in the order of its parameters, and a grid")
        return analyze_own(function, gpu, arguments, grid, block, query)
    from kernrec.recommender.analyze.triton import analyze_call, analyze_triton

    if isinstance(function, str | os.PathLike) and str(function).endswith((".cu", ".ptx")):
        raise UsageError(f"{function} is the name of a file; pass the text of the source, for example with read_text()")
    if isinstance(function, os.PathLike) or str(function).endswith(".toml"):
        if any(value is not None for value in (arguments, grid, configs)):
            raise UsageError(f"{function}: the call file defines arguments, grid and configs; change them there")
        return analyze_call(Path(function), gpu, query)
    if not isinstance(arguments, Mapping):
        raise UsageError("the arguments of a Triton function must be named")
    if grid is None:
        raise UsageError("the grid is missing: extents, or a function of all arguments and constants")
    return analyze_triton(function, gpu, arguments, grid, configs, query)


@dataclass(frozen=True)
class SourceReport:
    """Explanation of a kernel's performance."""

    report: Report
    advice: tuple[LineAdvice, ...]
    """Advice for lines of the source, largest gain first."""
    notes: tuple[str, ...]

    @property
    def what_to_do(self) -> str:
        """Return the advice with the largest gain for a source line, or else the advice for the whole kernel."""
        return self.advice[0].sentence if self.advice else self.report.what_to_do


def explain_source(path: Path, words: LaunchWords, gpu: GPU, database: Path, query: Query) -> SourceReport:
    """Explain the performance of a kernel in a source file. The file's host code determines grid and arguments.

    Args:
        words: Name of the kernel, and the user's options about its launch.
        database: Path of the database for the profiles.
        query: Objective for ranking the configs, and limits such as the maximum power.

    Raises:
        UsageError: The file does not determine the launch of the kernel.
        KernrecError: The kernel does not compile, or cannot be profiled.
    """
    while True:
        made = program_launch(path, words, gpu, 10.0, assume=True)
        problem = made.kernel.definition.problem()
        try:
            analyze(made.kernel, problem, gpu, database, query, ProfilingOptions(folder=path.parent))
            break
        except KernrecError as error:
            if (larger := enlarged_words(words, made.draft, str(error))) is None:
                changed = wrong_values(made.draft, gpu.name, str(error)) or error
                changed.args = (readable(str(changed)), *changed.args[1:])
                raise changed from None
            words = larger
    about = Request(gpu.name, None, made.kernel.name, dict(problem.dims), problem.dtype, problem.layout, query)
    # Pass the kernel, because the database may contain others with this name, such as earlier launches of this kernel.
    explained = report(about, Context([database]), made.config, kernel=made.kernel)
    notes = made.draft.notes
    advice: list[LineAdvice] = []
    # Random integers reveal more about branches, but may be invalid as indices. So try zeros second.
    for zeros in (False, True):
        sample = made if zeros else program_launch(path, words, gpu, 10.0, zeros, assume=True)
        try:
            costs = line_costs(sample.module, sample.launch, sample.describer.place)
            advice = line_advice(explained.subject, costs, _reader(path), made.has_f64)
            break
        except KernrecError as error:
            failure = f"no advice by line: {error}"
    else:
        notes.append(failure)
    return SourceReport(explained, tuple(advice), tuple(notes))


def _reader(path: Path) -> Callable[[str, int], str]:

    def line_of(file: str, line: int) -> str:
        source = path if file == path.name else path.parent / file
        if not source.is_file():
            return ""
        lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[line - 1] if 0 < line <= len(lines) else ""

    return line_of
