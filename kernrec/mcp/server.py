"""Define the MCP tools, and serve them over standard input and output.

Tools return the values of the command line's `--json`. Sources from clients are compiled and emulated in separate
processes with limited resources (`kernrec.checking`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

from kernrec.checking.analyze_source import SourceAnalysis, analyze_source
from kernrec.checking.check import SourceLaunch, check, described_arguments
from kernrec.checking.child_process import Limits
from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.gpu import all_gpus, find_gpus
from kernrec.gpu.gpu_file import read_gpu_file
from kernrec.interop.model_workload import PHASES, model_workload
from kernrec.kernel import kernel_names
from kernrec.kernel.source_files import read_text
from kernrec.model.analytical.power import RANDOM
from kernrec.model.baselines.backends import BACKENDS, known_backends
from kernrec.op import all_ops
from kernrec.op.workload import Workload, workloads
from kernrec.recommender import Query, Recommender, Request
from kernrec.recommender.explain.report import report
from kernrec.recommender.networks.compare import compare_gpus
from kernrec.recommender.networks.layers import NetworkRequest
from kernrec.recommender.request import backends_named, objective_named
from kernrec.util.human import short
from kernrec.util.optional import import_optional
from kernrec.version import __version__


class Folder:
    """Folder whose files the tools may read. If the path is None, tools may read no files.

    Raise `UsageError` if the folder does not exist.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = None if path is None else path.resolve()
        if self._path is not None and not self._path.is_dir():
            raise UsageError(f"--folder {str(path)!r:.80}: there is no such folder")

    def text(self, name: str) -> str:
        """Return the text of a file in the folder. Raise `UsageError` if the file cannot be read or is outside the
        folder.
        """
        return read_text(self._inside(name), name)

    def gpu_names(self, gpus: str) -> str:
        """Replace each GPU file (.toml) in comma-separated GPUs by the name of its GPU.

        Raise `UsageError` if a file is outside the folder, or is invalid.
        """
        parts = (part.strip() for part in gpus.split(","))
        return ",".join(self._gpu_name(part) if part.lower().endswith(".toml") else part for part in parts)

    def _gpu_name(self, name: str) -> str:
        path = self._inside(name)
        try:
            return read_gpu_file(path).name
        except UsageError as error:  # Do not reveal the folder's path on this machine to the client.
            raise UsageError(str(error).replace(str(path), name)) from None

    def _inside(self, name: str) -> Path:
        if self._path is None:
            raise UsageError(f"file {name!r:.60}: the server was started without --folder, so it reads no files")
        if "\0" in name:
            raise UsageError("the file name contains a NUL byte")
        path = (self._path / name).resolve()
        if not path.is_relative_to(self._path):
            raise UsageError(f"file {name!r:.60} is outside the folder that this server reads")
        if not path.is_file():
            raise UsageError(f"file {name!r:.60}: there is no such file in the folder that this server reads")
        return path


_INSTRUCTIONS = """\
Predict latency, energy and the best configs of GPU kernels, without a GPU. `recommend` finds the best config for an
operator, and `compare` compares GPUs. For your own kernel, `check` compiles it, runs it in an emulator, compares its
results with a NumPy reference, and finds out-of-bounds accesses and data races; `analyze` finds its bottleneck, and
better block sizes and power limits. Values with the source `predicted` come from the analytical model."""

_MOST_LISTED, _MOST_TOP, _MOST_GPUS = 200, 20, 16


def _refused(tool: str, errors: Sequence[Mapping[str, Any]]) -> str:
    first = errors[0]
    argument = ".".join(map(str, first["loc"]))
    others = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    supplied = "" if first["type"] == "missing" else f", not {short(first['input'])}"
    return f"{tool}: {argument}: {first['msg'][:1].lower()}{first['msg'][1:]}{supplied}{others}"


def serve(databases: list[Path] | None, folder: Path | None, limits: Limits) -> None:
    """Serve the tools over standard input and output until the client closes them.

    Raise `UsageError` if a database or the folder cannot be read, and `KernrecError` if the MCP SDK is missing.
    """
    import_optional("mcp", "serving tools", "mcp")
    make_server(Recommender(databases), Folder(folder), limits).run("stdio")


def make_server(recommender: Recommender, files: Folder, limits: Limits) -> Any:
    """Return an MCP server that offers the tools.

    Args:
        files: Folder whose files the tools may read.
        limits: Resource limits of each check and each analysis of a source.
    """
    from anyio import CapacityLimiter, to_thread
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from pydantic import Field, ValidationError

    class Server(MCPServer):
        """MCP server with one-line messages for invalid arguments."""

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            try:
                return await super().call_tool(name, arguments, context)
            except ToolError as error:
                if isinstance(error.__cause__, ValidationError):
                    raise ToolError(_refused(name, error.__cause__.errors(include_url=False))) from None
                raise

    server = Server("kernrec", instructions=_INSTRUCTIONS, version=__version__, log_level="ERROR")
    named = Field(description="GPU name or alias, such as h200 or rtx4090.", max_length=80)
    gpu = Annotated[str, named]
    described = Field(
        description="GPU name or alias, or a GPU file in the server's folder: mygpu.toml.", max_length=400
    )
    gpu_or_file = Annotated[str, described]
    backends = Annotated[
        list[str] | None,
        Field(description="Only baselines of these backends, such as vLLM; default: all.", max_length=len(BACKENDS)),
    ]
    op = Annotated[str, Field(description="Operator, such as matmul, conv2d, attention or softmax.", max_length=80)]
    shape = Annotated[str, Field(description="Dimensions, such as m=4096,n=4096,k=4096.", max_length=400)]
    dtype = Annotated[str | None, Field(description="Data type, such as f16; default: the op's first.", max_length=40)]
    layout = Annotated[str | None, Field(description="Tensor layout; default: the best on the GPU.", max_length=40)]
    objective = Annotated[str, Field(description="pareto, latency, energy or edp.", max_length=40)]
    limit = Annotated[float | None, Field(description="Power limit in watts; default: try several.")]
    inputs = Annotated[
        str, Field(description="What kernels compute on: random (numbers), or zeros, which draw less.", max_length=40)
    ]
    top = Annotated[int, Field(description="Number of recommendations.", ge=1, le=_MOST_TOP)]
    source = Annotated[str | None, Field(description="CUDA C++ or PTX as text; headers of CUDA may be included.")]
    file = Annotated[str | None, Field(description="Instead of source: a file of the server's folder.", max_length=400)]
    arguments = Annotated[
        list[str],
        Field(
            description="In the order of the parameters: buffers x=f32[4096] (random values), y=zeros:f32[4096],"
            " y=nan:f32[4096], and numbers i32:4096, f32:2.0, which are called argument0, argument1 by their place.",
            max_length=64,
        ),
    ]
    grid = Annotated[list[int], Field(description="Thread blocks, one to three extents.", min_length=1, max_length=3)]
    block = Annotated[list[int], Field(description="Threads of a block.", min_length=1, max_length=3)]
    entry = Annotated[str | None, Field(description="Name of the kernel; needed if there are several.", max_length=400)]

    # Run one request of each kind at a time. Waiting requests hold no thread, so requests of other kinds can run.
    listing, asking, running = (CapacityLimiter(1) for _ in range(3))

    def tool(limiter: CapacityLimiter, name: str | None = None) -> Callable[[Callable[..., dict[str, Any]]], Any]:
        """Return a decorator that registers a tool. The tool runs in a thread."""

        def register(function: Callable[..., dict[str, Any]]) -> Any:
            @wraps(function)
            async def run(**arguments: Any) -> dict[str, Any]:
                try:
                    return await to_thread.run_sync(partial(function, **arguments), limiter=limiter)
                except KernrecError as error:
                    raise ToolError(str(error)) from None

            return server.tool(name=name)(run)

        return register

    def text_of(source: str | None, file: str | None) -> str:
        """Return a kernel's source, given as text or as the name of a file."""
        if (source is None) == (file is None):
            raise UsageError("give either the text of the source or a file in the server's folder")
        return files.text(file or "") if source is None else source

    @tool(listing)
    def catalog() -> dict[str, Any]:
        """List the names that other tools accept: GPUs, operators with dimensions and data types, kernels, networks."""
        ops = {
            op.name: {
                "computes": op.title,
                "dims": {dim.name: dim.default for dim in op.dims},
                "dtypes": list(op.dtypes),
                "layouts": list(op.layouts),
            }
            for op in all_ops()
        }
        gpus = {gpu.name: gpu.title for gpu in all_gpus()}
        return {"gpus": gpus, "ops": ops, "kernels": list(kernel_names()), "workloads": list(workloads())}

    @tool(asking)
    def recommend(
        op: op,
        gpu: gpu_or_file,
        shape: shape,
        dtype: dtype = None,
        layout: layout = None,
        objective: objective = "pareto",
        power_limit_w: limit = None,
        top: top = 5,
        inputs: inputs = RANDOM,
        backend: backends = None,
    ) -> dict[str, Any]:
        """Recommend kernel configs for an operator on a GPU, with predicted or measured latency and energy.

        Each figure has an interval and a source. `baselines` has the costs of today's backends for the same problem.
        """
        names = known_backends(backend)
        query = Query(objective_named(objective), power_limit_w=power_limit_w, top=top, inputs=inputs, backends=names)
        return recommender.answer(Request(files.gpu_names(gpu), op, None, shape, dtype, layout, query)).as_dict()

    @tool(asking)
    def compare(
        workload: Annotated[
            str,
            Field(
                description="Name of a network, such as llama-3-8b-decode, or a config.json in the server's folder.",
                max_length=400,
            ),
        ],
        gpus: Annotated[str, Field(description="Comma-separated GPUs or GPU files: h200,mygpu.toml.", max_length=400)],
        objective: objective = "latency",
        inputs: inputs = RANDOM,
        backend: backends = None,
        batch: Annotated[int | None, Field(description="Items, such as sequences, in one pass.", ge=1)] = None,
        tp: Annotated[int, Field(description="GPUs that share each layer.", ge=1, le=64)] = 1,
        context: Annotated[int | None, Field(description="Context (or prompt) length in tokens.")] = None,
        phase: Annotated[str | None, Field(description="For a config.json: decode (default) or prefill.")] = None,
    ) -> dict[str, Any]:
        """Compare several GPUs on a whole network: memory, time, energy, power, and calls per second per watt."""
        backends, whose = backends_named(backend)
        query = Query(objective_named(objective), inputs=inputs, backends=backends)
        network: str | Workload = workload
        if workload.lower().endswith(".json"):
            network = model_workload(workload, context, phase or PHASES[0], files.text(workload))
        elif workload not in workloads():  # Accept names only, not paths.
            raise unknown("workload", workload, workloads())
        wanted = NetworkRequest(network, None, None, None, {}, batch, tp, context, phase, whose, ignore_memory=False)
        compared = find_gpus(files.gpu_names(gpus))
        if len(compared) > _MOST_GPUS:
            raise UsageError(f"{len(compared)} GPUs; at most {_MOST_GPUS} are compared at once")
        rows, missing = compare_gpus(recommender, compared, wanted, query)
        return {"gpus": [row.as_dict() for row in rows], "missing": missing}

    @tool(asking)
    def explain(
        op: op,
        gpu: gpu_or_file,
        shape: shape,
        dtype: dtype = None,
        layout: layout = None,
        kernel: Annotated[str | None, Field(description="A kernel of the library; default: the op's best.")] = None,
        config: Annotated[dict[str, int] | None, Field(description="Values of some tunables.")] = None,
        objective: objective = "latency",
        power_limit_w: limit = None,
        inputs: inputs = RANDOM,
    ) -> dict[str, Any]:
        """Explain the cost of a config: bottleneck, roofline, energy by component, and the changes that help most."""
        query = Query(objective_named(objective), power_limit_w=power_limit_w, inputs=inputs)
        request = Request(files.gpu_names(gpu), None if kernel else op, kernel, shape, dtype, layout, query)
        return report(request, recommender.context, config or {}).as_dict()

    @tool(running)
    def analyze(
        gpu: gpu,
        source: source = None,
        file: file = None,
        arguments: arguments = [],  # noqa: B006 - read only; the schema shows it as the default
        grid: grid = [1],  # noqa: B006
        block: block = [128],  # noqa: B006
        entry: entry = None,
        spec: Annotated[
            str | None, Field(description="Text of a kernel.toml whose source is kernel.cu; omit arguments then.")
        ] = None,
        shape: Annotated[str | None, Field(description="Dimensions, if there is a spec.", max_length=400)] = None,
        objective: objective = "pareto",
        inputs: inputs = RANDOM,
    ) -> dict[str, Any]:
        """Analyze your own kernel for a GPU: predict its cost, and find better block sizes or configs."""
        query = Query(objective_named(objective), inputs=inputs)
        analysis = SourceAnalysis(text_of(source, file), gpu, spec, shape, arguments, grid, block, query, entry)
        return analyze_source(analysis, limits)

    @tool(running, name="check")
    def check_tool(
        arguments: arguments,
        grid: grid,
        block: block,
        reference: Annotated[
            dict[str, str] | None,
            Field(
                description="By name of an output, a NumPy expression over the arguments as they are before the launch:"
                ' {"y": "argument0 * x + y"}, {"c": "(a.reshape(64, 32) @ b.reshape(32, 16)).reshape(-1)"}. Without it,'
                " the arrays after the launch are returned."
            ),
        ] = None,
        source: source = None,
        file: file = None,
        gpu: gpu = "a100",
        entry: entry = None,
        tolerance: Annotated[
            float | None, Field(description="Largest relative error; default: what rounding explains.")
        ] = None,
    ) -> dict[str, Any]:
        """Check a kernel: compile it, emulate it on the CPU, and compare its outputs with a reference.

        The check finds out-of-bounds accesses, data races in shared memory, deadlocks and endless loops, and reports
        the line of each. It also counts instructions and memory sectors.
        """
        text, values = text_of(source, file), described_arguments(arguments, limits)
        result = check(SourceLaunch(text, values, grid, block, gpu, entry), reference, tolerance, limits)
        if reference is not None:
            return result.as_dict()
        # Without a reference, return the first elements of each array.
        arrays = {name: array.reshape(-1)[:_MOST_LISTED] for name, array in result.arrays.items() if array.ndim}
        plain = {name: [v if v - v == 0 else str(v) for v in array.tolist()] for name, array in arrays.items()}
        return result.as_dict() | {"arrays": plain}

    return server
