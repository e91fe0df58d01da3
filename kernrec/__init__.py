"""kernrec: an offline, database-backed recommender of GPU kernel configurations.

>>> import kernrec
>>> answer = kernrec.recommend(op="matmul", gpu="h200", m=4096, n=4096, k=4096)
>>> answer.best.config, answer.best.latency_s.value, answer.best.energy_j.value
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from kernrec.version import __version__ as __version__

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from kernrec.checking.check import CheckResult, Reference
    from kernrec.gpu import GPU
    from kernrec.recommender import Answer, Query, Recommender
    from kernrec.recommender.analyze.kernel import Analysis
    from kernrec.recommender.analyze.triton import Grid
    from kernrec.recommender.many import ManyAnswers
    from kernrec.recommender.networks.result import NetworkAnswer
    from kernrec.recommender.serving.audit import ServingAudit
    from kernrec.run import BuiltKernel


def _gpu_name(gpu: "str | Path | GPU") -> str:
    """Return the catalog name of a GPU. Register the GPU first if it is a file or a `GPU` object."""
    if gpu == "":
        from kernrec.errors import UsageError

        raise UsageError(
            "gpu is missing; expected: a GPU by name (`kernrec list gpus` lists them), or the Path of its .toml"
        )
    if isinstance(gpu, str):
        return gpu
    from kernrec.gpu.gpu_file import gpu_name

    return gpu_name(gpu)


def _query(
    objective: str, backend: "str | Sequence[str] | None" = None, source: str | None = None, **asked_for: Any
) -> "Query":
    from kernrec.recommender.request import Query, objective_named

    backends = () if backend is None else (backend,) if isinstance(backend, str) else tuple(backend)
    return Query(objective_named(objective), backends=backends, source=source or "", **asked_for)


@contextmanager
def _arguments_named(function: Callable[..., Any], dims: Mapping[str, Any]) -> Iterator[None]:
    """Raise an error if a dimension is probably a misspelled keyword argument of `function`."""
    from kernrec.errors import UsageError, nearest, unknown

    try:
        yield
    except UsageError as error:
        arguments = function.__kwdefaults__ or {}
        for name in dims:
            miscased = f"did you mean {name.lower()}" in str(error)
            if f"dimension {name!r}" in str(error) and nearest(name, arguments) and not miscased:
                raise unknown("argument", name, arguments) from None
        raise


def recommend(
    op: str | None = None,
    gpu: "str | Path | GPU" = "",
    *,
    kernel: str | None = None,
    dtype: str | None = None,
    layout: str | None = None,
    objective: str = "pareto",
    max_slowdown: float | None = None,
    max_power_w: float | None = None,
    power_limit_w: float | None = None,
    clock_hz: float | None = None,
    clocks: bool = False,
    inputs: str = "random",
    l2: str = "cold",
    top: int = 5,
    backend: "str | Sequence[str] | None" = None,
    source: str | None = None,
    **dims: int,
) -> "Answer":
    """Recommend kernel configs for an op on a GPU.

    The result is the Pareto front of latency and energy, or the best configs for one objective. Calls search the user's
    database and the shipped database. To use other databases, create your own `Recommender`.

    Args:
        op: the operator, such as `matmul`, or None if you name a kernel.
        gpu: common name of the GPU. If the catalog does not have the GPU, pass a `Path` to a .toml file that describes
            it, or a `GPU` object.
        kernel: name of one kernel to use instead of an op: a kernel of kernrec's library, or your own kernel that
            `kernrec analyze` has profiled.
        dtype: data type. The default is the first data type of the op or kernel.
        layout: tensor layout. The default is the best layout on the GPU.
        objective: `pareto`, `latency`, `energy` or `edp`.
        max_slowdown: maximum slowdown compared with the fastest config (0.03 is 3 %).
        max_power_w: maximum mean power of a config in watts.
        power_limit_w: the GPU's power limit in watts. If None, `latency` uses the default limit. Other objectives then
            choose a config together with a power limit.
        clock_hz: locked core clock in hertz, or None if the clock is not locked.
        clocks: whether to also try locked core clocks.
        inputs: data that the kernel computes on: `random` numbers or `zeros`. Arithmetic on zeros draws less power.
        l2: state of L2 when a launch starts: `cold`, or `warm` if it holds as much of the launch's data as fits.
        top: maximum number of recommendations.
        backend: libraries to compare with, such as `vllm` or `["cublas", "pytorch"]`. The default is all libraries.
        source: the only source of figures to use: `predicted`, `transferred`, `learned`, `measured` or `published`. By
            default, each figure comes from the best available source.
        **dims: sizes of the op's dimensions, such as `m=4096`.

    Returns:
        An `Answer` with `recommendations`, best first, and `baselines` (costs of libraries), fastest first. If no
            kernel can run the problem, the answer has no recommendations, and `no_kernel` gives the reason.

    Raises:
        kernrec.errors.UsageError: a name is unknown, or a value is impossible.
        kernrec.errors.KernrecError: neither a kernel nor a backend can run the problem.
    """
    from kernrec.recommender import Request

    query = _query(
        objective, backend, source, max_slowdown=max_slowdown, max_power_w=max_power_w, power_limit_w=power_limit_w,
        clock_hz=clock_hz, top=top, clocks=clocks, inputs=inputs, l2=l2,
    )  # fmt: skip
    with _arguments_named(recommend, dims):
        return _recommender().answer(Request(_gpu_name(gpu), op, kernel, dims, dtype, layout, query))


def recommend_many(
    op: str,
    gpu: "str | Path | GPU",
    *,
    dtype: str | None = None,
    layout: str | None = None,
    objective: str = "latency",
    power_limit_w: float | None = None,
    clock_hz: float | None = None,
    inputs: str = "random",
    l2: str = "cold",
    source: str | None = None,
    **dims: "int | Sequence[int] | np.ndarray",
) -> "ManyAnswers":
    """Recommend the best config for each of many shapes, faster than one call of `recommend` per shape.

    For all other arguments, see `recommend`.

    Args:
        objective: `latency`, `energy` or `edp`.
        **dims: the op's dimensions by name. A dimension is an array of N integers (one per shape), or one integer that
            applies to all shapes.

    Returns:
        A `ManyAnswers` with arrays of shape (N,) in SI units. If no kernel can run a shape, its values are NaN and
        `failures` gives the reason.

    Raises:
        kernrec.errors.UsageError: a name is unknown, a value is impossible, or the arrays of dimensions have different
            lengths.
        kernrec.errors.KernrecError: there are no kernel profiles from which to predict.
    """
    from kernrec.recommender.many import answer_many

    query = _query(objective, None, source, power_limit_w=power_limit_w, clock_hz=clock_hz, inputs=inputs, l2=l2)
    with _arguments_named(recommend_many, dims):
        return answer_many(_recommender(), op, _gpu_name(gpu), dims, query, dtype=dtype, layout=layout)


def recommend_network(
    workload: "str | Path",
    gpu: "str | Path | GPU",
    *,
    op: str | None = None,
    dtype: str | None = None,
    layout: str | None = None,
    batch: int | None = None,
    tp: int = 1,
    backend: "str | Sequence[str] | None" = None,
    source: str | None = None,
    objective: str = "latency",
    power_limit_w: float | None = None,
    clock_hz: float | None = None,
    inputs: str = "random",
    context: int | None = None,
    phase: str | None = None,
    ignore_memory: bool = False,
) -> "NetworkAnswer":
    """Recommend a config for each layer of a network, and return the totals of all layers.

    For all other arguments, see `recommend`.

    Args:
        workload: name of a shipped workload, path of a .toml, .csv, .jsonl or .onnx file, or a model's `config.json` or
            its folder.
        op: operator whose layers to use, such as `matmul`. The default is all layers.
        dtype: data type of all layers. The default is the network's own data types. An 8-bit or 4-bit type applies only
            to the layers that a quantized network quantizes.
        layout: layout of each layer whose op supports it. The default is the network's layout or else the best layout.
        batch: number of items, such as images or sequences, per pass. The default is the workload's number.
        tp: number of tensor-parallel GPUs. The answer describes one of these GPUs.
        context: number of tokens that each generated token attends to (`decode`), or length of the prompt (`prefill`).
            The default is the workload's number.
        phase: phase of a model's `config.json`: `decode` (the default) or `prefill`.
        ignore_memory: whether to answer even if the network does not fit in the GPU's memory.
        backend: backend to compare with, such as `vllm`. The default is the fastest backend with baselines for all
            layers. `mixed` uses the fastest backend of each layer. `kernrec` uses only kernrec's kernels.
        power_limit_w: power limit for all layers in watts, or None for the GPU's default limit.

    Raises:
        kernrec.errors.UsageError: a name is unknown, a value is impossible, or a file cannot be used.
        kernrec.errors.KernrecError: no layer can run, or the network does not fit in the GPU's memory.
    """
    from kernrec.recommender.networks.layers import NetworkRequest
    from kernrec.recommender.networks.network import answer_network
    from kernrec.recommender.request import backends_named

    backends, whose = backends_named(backend)
    query = _query(objective, backends, source, power_limit_w=power_limit_w, clock_hz=clock_hz, inputs=inputs)
    wanted = NetworkRequest(str(workload), op, dtype, layout, {}, batch, tp, context, phase, whose, ignore_memory)
    return answer_network(_recommender(), _gpu_name(gpu), wanted, query)


@cache
def _recommender() -> "Recommender":
    from kernrec.recommender import Recommender

    return Recommender()


def build(
    op: str,
    gpu: str = "auto",
    *,
    dtype: str | None = None,
    layout: str | None = None,
    objective: str = "latency",
    power_limit_w: float | None = None,
    **dims: "int | range | Sequence[int]",
) -> "BuiltKernel":
    """Build the recommended kernel as a Python function.

    An example is `kernel = build("matmul", m=range(1, 8193), n=4096, k=4096)`. For each shape, the function runs the
    config that `recommend` chooses, and compiles the config at first use. `kernel.variant(m=17)` shows the config of a
    shape. Triton kernels need the package `triton`.

    Args:
        op: the operator.
        gpu: common name of the GPU, or `auto` for this machine's current GPU.
        dtype: data type. The default is the first data type of the op.
        layout: tensor layout. The default is the first layout of the op.
        objective: `latency`, `energy` or `edp`.
        power_limit_w: power limit of the GPU in watts, or None for its default limit.
        **dims: the op's dimensions by name: a number, a `range`, or a list of numbers. If a dimension has several
            values, each call reads its value from the shapes of the arrays.

    Raises:
        kernrec.errors.UsageError: a name is unknown, or a value is impossible.
        kernrec.errors.KernrecError: `gpu` is `auto` but there is no GPU, or no kernel can run a shape.
    """
    from kernrec.op import find_op
    from kernrec.run.built_kernel import build_kernel
    from kernrec.run.shapes import Shapes

    query = _query(objective, power_limit_w=power_limit_w, top=1)
    return build_kernel(_recommender(), Shapes.of(find_op(op), dtype, layout, dims), gpu, query)


def analyze(
    function: Any,
    gpu: "str | Path | GPU",
    arguments: "Mapping[str, Any] | Sequence[str] | None" = None,
    grid: "Grid | None" = None,
    configs: Sequence[Mapping[str, Any]] | None = None,
    objective: str = "pareto",
    top: int = 5,
    block: Sequence[int] = (128,),
    inputs: str = "random",
    l2: str = "cold",
) -> "Analysis":
    """Analyze your own kernel: find its bottleneck on a GPU and better configs. You do not need the GPU.

    For a Triton function, kernrec compares configs. For a CUDA C++ or PTX source, whose code is fixed, kernrec compares
    block sizes and power limits. For a source with tunables, use `kernrec analyze --spec`.

    Worker processes compile and emulate the code, so the calling program needs an `if __name__ == "__main__":` guard.
    The resulting profiles are stored in the user's database.

    Args:
        function: a `@triton.jit` function, possibly autotuned; the text `kernels.py:matmul`; the CUDA C++ or PTX source
            of one kernel; or the .toml file of a captured Triton call, which describes the whole launch.
        gpu: common name of the GPU.
        arguments: arguments by name; for a CUDA C++ or PTX source, in the order of its parameters. An argument is a
            number, a tensor, or any object with `dtype` and `shape`. For Triton, the values of integer arrays matter,
            because addresses may depend on them. For a source, arguments may also be a list of texts as in `kernrec
            check`: `["x=f32[4096]", "i32:4096"]`.
        grid: extents of the grid. For Triton, it may also be a function that receives all arguments and constants by
            name, as in a Triton launch.
        configs: for Triton, dictionaries such as `{"BLOCK_M": 128, "num_warps": 4}`, or None for the autotuner's
            configs.
        objective: `pareto`, `latency`, `energy` or `edp`.
        top: maximum number of recommendations.
        block: for a CUDA C++ or PTX source, threads per block (one to three extents).
        inputs: data that the kernel computes on, as in `recommend`.
        l2: state of L2 when a launch starts, as in `recommend`.

    Raises:
        kernrec.errors.UsageError: the function or source cannot be used, or its arguments or configs are invalid.
        kernrec.errors.KernrecError: a compiler is not installed, or no config could be profiled.
    """
    from kernrec.checking.analyze_source import analyze_any

    query = _query(objective, top=top, inputs=inputs, l2=l2)
    return analyze_any(function, _gpu_name(gpu), arguments, grid, configs, block, query)


def serve_audit(
    model: "str | Path",
    gpu: "str | Path | GPU",
    engine: str,
    *,
    tp: int = 1,
    ep: int = 1,
    triton: str | None = None,
    release: str | None = None,
    tokens: Sequence[int] = (1, 16, 128, 1024, 4096),
    lora_rank: int | None = None,
    compare: bool = True,
    everything: bool = False,
    write: "str | Path | None" = None,
    download: bool = False,
) -> "ServingAudit":
    """List the tuned config files that vLLM or SGLang looks for, and what missing files could save.

    If `compare` is true, worker processes compile and emulate kernels, so the calling program needs an `if __name__ ==
    "__main__":` guard.

    Args:
        model: folder with a Hugging Face `config.json`, or that file. If `download` is true, it may also be a model's
            name on the Hugging Face Hub.
        gpu: common name of the GPU.
        engine: `vllm` or `sglang`.
        tp: tensor-parallel size.
        ep: expert-parallel size, the number of GPUs among which experts are distributed.
        triton: release of Triton, for which SGLang has separate folders. The default is the installed release.
        release: release of the engine. The default is the installed release or, if the engine is not installed, the
            newest that kernrec knows.
        tokens: numbers of tokens per step for which to compare configs.
        lora_rank: LoRA rank. If it is not None, files for LoRA kernels of this rank are listed as well.
        compare: whether to compare kernrec's configs for each missing file with the engine's default configs.
        everything: whether to also compare configs for files that the engine already has, or that it reads only if a
            flag is set.
        write: folder to which to write the missing files that are expected to save time, or None to write nothing.
        download: whether to download the config from the Hugging Face Hub if `model` is not a file.

    Raises:
        kernrec.errors.UsageError: a name or release is unknown, the model's config lacks a field, or a file cannot be
            read or written.
        kernrec.errors.KernrecError: the config cannot be downloaded.
    """
    from pathlib import Path

    from kernrec.gpu import find_gpu
    from kernrec.recommender.serving.audit import serve_audit as run
    from kernrec.recommender.serving.audit import write_folder
    from kernrec.recommender.serving.engines import Deployment

    served = Deployment(engine, find_gpu(_gpu_name(gpu)), tp, ep, triton or "", lora_rank)
    audit = run(
        str(model), served, release=release, tokens=tuple(tokens), compare=compare, everything=everything,
        download=download,
    )  # fmt: skip
    if write is not None:
        write_folder(audit, Path(write))
    return audit


def check(
    source: str,
    reference: "Reference | None",
    arguments: Mapping[str, Any],
    grid: Sequence[int],
    block: Sequence[int],
    *,
    gpu: str = "a100",
    entry: str | None = None,
    shared_bytes: int = 0,
    defines: Mapping[str, str] | None = None,
    tolerance: float | None = None,
    time_limit_s: float = 60.0,
) -> "CheckResult":
    """Check a kernel without a GPU: emulate one launch and compare its outputs with a reference.

    The check finds out-of-bounds and misaligned accesses, data races in shared memory, deadlocks and endless loops, and
    reports the PTX line of each. A separate process compiles the source and emulates it. The process has limited
    resources and can read only the compiler's files.

    Args:
        source: CUDA C++ or PTX; it may include CUDA's headers.
        reference: for each output, the expected array or a NumPy expression over the arguments (`"alpha * x + y"`). It
            may also be a function that takes the arguments as a dictionary and returns the expected arrays. If it is
            None, outputs are not compared.
        arguments: arguments by name, in the order of the kernel's parameters: NumPy arrays, which are not modified, and
            numbers. A Python `int` fits any integer parameter, and a Python `float` is passed as a C `float`.
        grid: number of thread blocks (one to three extents).
        block: threads per block (one to three extents).
        gpu: GPU whose architecture to compile for.
        entry: name of the kernel in the source, or None if the source has only one kernel.
        shared_bytes: dynamic shared memory per block, in bytes.
        defines: preprocessor macros and their values.
        tolerance: maximum error of an element, relative to the larger of its value and the RMS of the output. The
            default is the error that rounding can cause, and 0 for integers.
        time_limit_s: maximum processor time for compiling and emulating, in seconds.

    Raises:
        kernrec.errors.UsageError: the arguments, the launch or the reference cannot be used.
        kernrec.errors.KernrecError: no compiler is installed.
    """
    from kernrec.checking.check import SourceLaunch
    from kernrec.checking.check import check as check_launch
    from kernrec.checking.child_process import Limits

    launch = SourceLaunch(source, arguments, tuple(grid), tuple(block), gpu, entry, shared_bytes, defines or {})
    return check_launch(launch, reference, tolerance, Limits(time_s=time_limit_s))
