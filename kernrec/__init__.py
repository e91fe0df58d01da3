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
    from kernrec.recommender import Query, Recommendation, Recommender
    from kernrec.recommender.analyze.kernel import Analysis
    from kernrec.recommender.analyze.triton import Grid
    from kernrec.recommender.many import ManyAnswers
    from kernrec.recommender.networks.network import NetworkAnswer
    from kernrec.recommender.serving.audit import ServingAudit
    from kernrec.run import BuiltKernel
    from kernrec.triton.listener import Recorder


def _gpu_name(gpu: "str | Path | GPU") -> str:
    """Return the name of a GPU. A GPU file, or a `GPU` made in Python, gets a name in this process."""
    if gpu == "":
        from kernrec.errors import UsageError

        raise UsageError(
            "gpu is missing; expected: a GPU by name (`kernrec list gpus` lists them), or the Path of its .toml"
        )
    if isinstance(gpu, str):
        return gpu
    from kernrec.gpu.card_file import card_name

    return card_name(gpu)


def _query(
    objective: str, backend: "str | Sequence[str] | None" = None, source: str | None = None, **asked_for: Any
) -> "Query":
    from kernrec.recommender.request import Query, objective_named

    stacks = () if backend is None else (backend,) if isinstance(backend, str) else tuple(backend)
    return Query(objective_named(objective), stacks=stacks, source=source or "", **asked_for)


@contextmanager
def _arguments_named(function: Callable[..., Any], dims: Mapping[str, Any]) -> Iterator[None]:
    """Report a likely typo in a keyword argument, not an unknown dimension."""
    from kernrec.errors import UsageError, nearest, unknown

    try:
        yield
    except UsageError as error:
        arguments = function.__kwdefaults__ or {}
        if "stack" in dims:
            raise UsageError("unknown argument 'stack'; it is called backend") from None
        for name in dims:
            if f"dimension {name!r}" in str(error) and nearest(name, arguments):
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
    top: int = 5,
    backend: "str | Sequence[str] | None" = None,
    source: str | None = None,
    **dims: int,
) -> "Recommendation":
    """Recommend configs for an op on a GPU: the latency/energy Pareto front, or the best for an objective.

    One `Recommender` is kept for the process; make your own to use other databases than the user's and the shipped one.

    Args:
        op: the operator; leave it out to name a kernel.
        gpu: the GPU, as people call it; one that the catalog does not have as the `Path` of its .toml, or a `GPU`.
        kernel: one kernel instead of an op, your own (after `kernrec analyze`) or one of the library.
        dtype: data type; the op's first one by default.
        layout: tensor layout; the best one on the GPU by default.
        objective: `pareto`, `latency`, `energy` or `edp`.
        max_slowdown: fraction above the fastest config's latency that is accepted (0.03 is 3 %).
        max_power_w: mean power that a config may draw, in watts.
        power_limit_w: the GPU's power limit in watts. If None, for latency its default one, else a range of limits:
            a choice is then a config and a power limit.
        clock_hz: a locked core clock in hertz; not locked if None.
        clocks: whether locked core clocks are tried, too.
        inputs: the kernel's input data: `random` numbers, or `zeros`, with which arithmetic draws less power.
        top: maximum number of recommendations.
        backend: the backends whose baselines to return, such as `vllm` or `["cublas", "pytorch"]`; all by default.
        source: the only source that answers, `predicted`, `transferred`, `learned`, `measured` or `published`; the best
            of all by default.
        **dims: the op's dimensions by name.

    Returns:
        `choices`, the best first, and `lines`, the baselines. A problem that no kernel runs has only baselines, and
        the reason in `no_kernel`.

    Raises:
        kernrec.errors.UsageError: a name is unknown, or a value impossible.
        kernrec.errors.KernrecError: neither a kernel nor a backend runs the problem.
    """
    from kernrec.recommender import Request

    query = _query(
        objective, backend, source, max_slowdown=max_slowdown, max_power_w=max_power_w, power_limit_w=power_limit_w,
        clock_hz=clock_hz, top=top, clocks=clocks, inputs=inputs,
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
    source: str | None = None,
    **dims: "int | Sequence[int] | np.ndarray",
) -> "ManyAnswers":
    """Recommend the best config for each of many shapes, faster than calls of `recommend`.

    All shapes are estimated side by side (`tools/bench.py many`); those that were measured are asked one by one.

    Arguments that are not listed are those of `recommend`.

    Args:
        objective: `latency`, `energy` or `edp`.
        **dims: the op's dimensions by name: arrays of N whole numbers, or numbers that hold for all shapes.

    Returns:
        Arrays of N in SI units; a shape that nothing can run has NaN, and a reason in `failures`.

    Raises:
        kernrec.errors.UsageError: a name is unknown, a value impossible, or arrays have different lengths.
        kernrec.errors.KernrecError: there are no profiles to predict from.
    """
    from kernrec.recommender.many import answer_many

    query = _query(objective, None, source, power_limit_w=power_limit_w, clock_hz=clock_hz, inputs=inputs)
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
    stack: None = None,
) -> "NetworkAnswer":
    """Recommend a config for each layer of a network, and return the totals of all layers, the best first.

    Arguments that are not listed are those of `recommend`.

    Args:
        workload: the name of a workload that ships, the path of a .toml, .csv, .jsonl or .onnx file, or a model's
            `config.json` or its folder.
        op: the layers of one op; all by default.
        dtype: data type of all layers, the network's by default; one of 8 or 4 bits of those that are quantized so.
        layout: layout of the layers whose op has it; the network's by default, else the best one.
        batch: items, such as images or sequences, in one pass; the network's by default.
        tp: GPUs that share each layer by tensor parallelism; the answer is for one of them.
        context: tokens that a generated token attends to, or those of the prompt; the workload's by default.
        phase: of a `config.json`: `decode` (the default) or `prefill`.
        ignore_memory: whether to answer for a network that does not fit the GPU's memory.
        backend: the backend that the total `today` counts, such as `vllm`; by default the fastest that has all layers.
            `mixed` for the fastest of each layer, `kernrec` for none.
        power_limit_w: the power limit that all layers run under; the GPU's default one if None.

    Raises:
        kernrec.errors.UsageError: a name is unknown, a value impossible, or a file cannot be used.
        kernrec.errors.KernrecError: no layer can be run, or the network does not fit the GPU's memory.
    """
    from kernrec.errors import UsageError
    from kernrec.recommender.networks.network import NetworkRequest, answer_network
    from kernrec.recommender.request import backends_named

    if stack is not None:
        raise UsageError("unknown argument 'stack'; it is called backend")
    stacks, whose = backends_named(backend)
    query = _query(objective, stacks, source, power_limit_w=power_limit_w, clock_hz=clock_hz, inputs=inputs)
    wanted = NetworkRequest(str(workload), op, dtype, layout, {}, batch, tp, context, phase, whose, ignore_memory)
    return answer_network(_recommender(), _gpu_name(gpu), wanted, query)


@cache
def _recommender() -> "Recommender":
    """Return the recommender of the process."""
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
    """Build the recommended kernel as a function: `kernel = build("matmul", m=range(1, 8193), n=4096, k=4096)`.

    Each shape runs the config that `recommend` gives for it (`kernel.variant(m=17)`). A config is compiled when a shape
    first needs it. Kernels in Triton need Triton to be installed.

    Args:
        op: the operator.
        gpu: the GPU, as people call it; `auto` for the current one of this machine.
        dtype: data type; the op's first one by default.
        layout: tensor layout; the op's first one by default.
        objective: `latency`, `energy` or `edp`.
        power_limit_w: the power limit that the GPU runs under, in watts; its default one if None.
        **dims: the op's dimensions by name: a number, a `range` of numbers or a list of them. Those of several values
            are read off the shapes of the arrays at each call.

    Raises:
        kernrec.errors.UsageError: a name is unknown, or a value impossible.
        kernrec.errors.KernrecError: `auto` without a GPU, or a shape that nothing can run.
    """
    from kernrec.op import find_op
    from kernrec.run.build import build_kernel
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
) -> "Analysis":
    """Analyze your own kernel for a GPU, without having it: its bottleneck, and better configs.

    Of a Triton function the configs are compared; of CUDA C++ or PTX, whose code is fixed, other blocks and power
    limits (`kernrec analyze --spec` compares the configs of a source with tunables). Code is compiled and a sample of
    its blocks is emulated, in worker processes; a program that calls this needs the `if __name__ == "__main__":` guard.
    The profiles are stored in the user's database.

    Args:
        function: decorated with `@triton.jit`, and perhaps autotuned; or the text `kernels.py:matmul`; or the source of
            one kernel, CUDA C++ or PTX; or the .toml file of a captured call, which says all that is launched.
        gpu: the GPU, as people call it.
        arguments: by parameter, for a source in the order of its parameters: numbers, and tensors or whatever else has
            `dtype` and `shape`. The values of integer arrays are taken along for Triton, for addresses may depend on
            them. For a source also texts as `kernrec check` takes them: `["x=f32[4096]", "i32:4096"]`.
        grid: extents; for Triton also a function of all arguments and constants by name, as its launch takes it.
        configs: for Triton, tables such as `{"BLOCK_M": 128, "num_warps": 4}`; the autotuner's list if None.
        objective: `pareto`, `latency`, `energy` or `edp`.
        top: maximum number of recommendations.
        block: for a source, the threads of a block: one to three extents.
        inputs: as for `recommend`.

    Raises:
        kernrec.errors.UsageError: the function or source, its arguments or its configs cannot be used.
        kernrec.errors.KernrecError: a compiler is not installed, or no config could be profiled.
    """
    from kernrec.checking.analyze_any import analyze_any

    query = _query(objective, top=top, inputs=inputs)
    return analyze_any(function, _gpu_name(gpu), arguments, grid, configs, block, query)


def record(gpu: str | None = None) -> "Recorder":
    """Store what the program's own `@triton.autotune` measures in the user's database, until the program ends.

    In a `with` statement: to the end of the block. Triton's benchmark is not kernrec's protocol, so that these rows
    answer where nothing was measured by the protocol, and say so; and they answer `kernrec.triton.autotune`.

    Args:
        gpu: the GPU as people call it; None: KERNREC_GPU, else the one of this process.

    Returns:
        A recorder with the number of stored `rows`, and reasons for others in `refused`.

    Raises:
        kernrec.errors.UsageError: Triton's autotuner has no listener (before 3.8), or another recorder is running.
        kernrec.errors.KernrecError: Triton is not installed.
    """
    from kernrec.triton.listener import record as start

    return start(gpu)


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
    compare: bool = True,
    everything: bool = False,
    write: "str | Path | None" = None,
    download: bool = False,
) -> "ServingAudit":
    """List the tuned files that vLLM or SGLang looks for to serve a model, and what each missing one may save.

    Code is compiled and emulated in worker processes; a program that calls this needs the `if __name__ == "__main__":`
    guard. Without `compare` nothing is.

    Args:
        model: a folder with a `config.json` as Hugging Face has it, or such a file; with `download` a name on the Hub.
        gpu: the GPU, as people call it.
        engine: `vllm` or `sglang`.
        tp: tensor parallel size.
        ep: expert parallel size, the GPUs among which experts are distributed.
        triton: release of Triton; by default the installed one, where SGLang needs it.
        release: release of the engine; by default the installed one, else the newest that kernrec knows.
        tokens: numbers of tokens in a step that are compared.
        compare: whether missing files are compared with the engine's own configs.
        everything: whether files are compared, too, that the engine has or reads with a flag alone.
        write: folder for the files that are worth it.
        download: whether the Hugging Face Hub is asked for what is no file.

    Raises:
        kernrec.errors.UsageError: a name or release is unknown, the model's config lacks a field, or a file cannot be
            read or written.
        kernrec.errors.KernrecError: the config cannot be downloaded.
    """
    from pathlib import Path

    from kernrec.recommender.serving.audit import AuditRequest
    from kernrec.recommender.serving.audit import serve_audit as run
    from kernrec.recommender.serving.folder import write_folder

    audit = run(
        AuditRequest(
            str(model), _gpu_name(gpu), engine, tp, ep, triton, release, "", tuple(tokens), compare,
            everything, download,
        )
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

    Accesses out of bounds or misaligned, data races in shared memory, deadlocks and endless loops are found and named
    with the PTX line. The source is compiled and run in a process of its own with limits, which sees no files but those
    of the compiler.

    Args:
        source: CUDA C++ or PTX; headers of CUDA may be included.
        reference: by name of an output the array that is expected, or an expression of NumPy over the arguments
            (`"alpha * x + y"`); or a function that takes the arguments as a dictionary and gives such arrays. None:
            nothing is compared.
        arguments: by name, in the order of the kernel's parameters: arrays of NumPy, which are left as they are, and
            numbers: of Python's a whole number fits any integer parameter, and a float is a C `float`.
        grid: thread blocks, one to three extents.
        block: threads of a block, one to three extents.
        gpu: the GPU whose architecture the source is compiled for.
        entry: name of the kernel; None for the only one.
        shared_bytes: dynamic shared memory per block.
        defines: macros with their values.
        tolerance: largest error, relative to the RMS of an output or to the element where that is larger; by default
            what rounding explains, and 0 for whole numbers.
        time_limit_s: processor time that compiling and emulating may take.

    Raises:
        kernrec.errors.UsageError: arguments, launch or reference cannot be used.
        kernrec.errors.KernrecError: there is no compiler.
    """
    from kernrec.checking.check import check as check_launch
    from kernrec.checking.launch import SourceLaunch
    from kernrec.checking.limits import Limits

    launch = SourceLaunch(source, arguments, tuple(grid), tuple(block), gpu, entry, shared_bytes, defines or {})
    return check_launch(launch, reference, tolerance, Limits(time_s=time_limit_s))
