"""Declare the options of commands: a class for each command, with shared definitions.

    class DoctorOptions(options.Options):
        cluster: options.Cluster = None
        as_json: AsJson = False

    @options.takes(DoctorOptions)
    def doctor(wanted: DoctorOptions) -> None: ...

The annotated fields of a class are the options, in the order of --help. A field annotated with another class of options
includes its options. `Options` has defaults for all shared options.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kernrec import paths
from kernrec.cli import quantity
from kernrec.cli.output import AsJson, Form
from kernrec.errors import UsageError, unknown

if TYPE_CHECKING:
    from kernrec.gpu import GPU
    from kernrec.recommender import Query, Request
    from kernrec.recommender.networks.layers import NetworkRequest

PROBLEM, NETWORK, SELECTION, PRINTED = "Problem", "Network", "What to choose", "Output"
"""Panels in which --help groups the options."""


def option(text: str, *names: str, panel: str | None = None, **settings: Any) -> Any:
    """Describe an option for Typer.

    Args:
        *names: Names of the option, such as `--gpu`. The default is the name of the field.
        **settings: Further arguments of `typer.Option`.
    """
    return typer.Option(*names, help=text, rich_help_panel=panel, **settings)


def argument(text: str, metavar: str | None = None) -> Any:
    return typer.Argument(help=text, metavar=metavar)


def gpu_names(text: str) -> str:
    """Replace GPU files (.toml) in the value of --gpu by the names of their GPUs."""
    if ".toml" not in text.lower():
        return text
    from kernrec.gpu.gpu_file import gpu_names

    return gpu_names(text)


def _one_gpu(text: str) -> str:
    if "," in (name := gpu_names(text)):
        raise UsageError(f"--gpu {text!r:.60}: this command takes one GPU")
    return name


Gpu = Annotated[str, option("GPU name (`kernrec list gpus`) or .toml file.", "--gpu", panel=PROBLEM, callback=_one_gpu)]
Gpus = Annotated[
    str, option("GPUs (`kernrec list gpus`) or .toml files: a,b.", "--gpu", panel=PROBLEM, callback=gpu_names)
]
Op = Annotated[str, option("Operator (`kernrec list ops`).", "--op", panel=PROBLEM)]
Kernel = Annotated[str | None, option("Only this kernel, instead of an op.", panel=PROBLEM)]
Shape = Annotated[str | None, option("Dimensions: m=4096,n=4096,k=4096.", panel=PROBLEM)]
Shapes = Annotated[list[str] | None, option("Dimensions: m=64,n=64,k=64; may be repeated.", "--shape", panel=PROBLEM)]
Dtype = Annotated[str | None, option("Data type, such as f16.", panel=PROBLEM)]
Layout = Annotated[str | None, option("Tensor layout, such as nhwc.", panel=PROBLEM)]
Inputs = Annotated[str, option("Input values: random or zeros.", panel=PROBLEM)]
L2 = Annotated[str, option("L2 before each launch: cold or warm.", panel=PROBLEM)]
WorkloadName = Annotated[
    str | None,
    option("Network: name, config.json, .onnx, ...", "--workload", panel=NETWORK),
]
Batch = Annotated[str | None, option("Sequences or images per pass: 1,8,32.", panel=NETWORK)]
Context = Annotated[str | None, option("Context or prompt length in tokens: 32k.", panel=NETWORK)]
TensorParallel = Annotated[int, option("Number of GPUs that share each layer.", "--tp", panel=NETWORK)]
Objective = Annotated[str, option("pareto, latency, energy or edp.", panel=SELECTION)]
MaxSlowdown = Annotated[str | None, option("Maximum slowdown vs the fastest: 3%.", panel=SELECTION)]
MaxPower = Annotated[str | None, option("Maximum mean power: 250W.", panel=SELECTION)]
PowerLimit = Annotated[str | None, option("Power limit of the GPU: 300W.", panel=SELECTION)]
Clock = Annotated[str | None, option("Locked core clock: 1410MHz.", panel=SELECTION)]
Source = Annotated[str | None, option("Only rows with this source: learned, ...", "--source", panel=SELECTION)]
Backends = Annotated[
    list[str] | None, option("Only these backends: vllm,cublas; or mixed.", "--backend", panel=SELECTION)
]
Top = Annotated[int | None, option("Maximum number of rows. Default: 5.", panel=SELECTION)]
Why = Annotated[bool, option("Explain each note.", "--why", panel=PRINTED)]
DEFINE = "Macro NAME=VALUE, -std=c++20 or -use_fast_math; may be repeated."
"""Help text of the option `-D`."""
Cluster = Annotated[str | None, option("Ray cluster: auto, or host:port of its head.", metavar="ADDRESS")]

ONE, SEVERAL, OWN = (
    "--db FILE names another database than your own.",
    "--db FILE names a database to read instead of your own; it may be repeated.",
    "",
)
"""Help texts of --db. `OWN` is for commands that only use the user's own database."""
ANY, SWEEP = "any", "sweep"
"""Special values of --clock: the best clock for each config, and a table over clocks."""

_Kind = TypeVar("_Kind", bound="Options")


class Options:
    """Base class for the options of a command, with defaults for shared options."""

    sweeps = False
    """Whether --power-limit and --clock accept `sweep`."""
    databases_used = ONE
    """Number of databases that the command accepts: `ONE`, `SEVERAL` or `OWN`."""
    gpu: str
    shape: Any = None
    op: str = ""
    kernel: str | None = None
    workload: str | None = None
    batch: str | None = None
    tp: int = 1
    phase: str | None = None
    context: str | None = None
    dtype: str | None = None
    layout: str | None = None
    objective: str = "pareto"
    max_slowdown: str | None = None
    max_power: str | None = None
    power_limit: str | None = None
    clock: str | None = None
    inputs: str = "random"
    l2: str = "cold"
    top: int | None = None
    backend: list[str] | None = None
    estimated_by: str | None = None
    printed: "Printed | None" = None

    def __init__(self, values: Mapping[str, Any], databases: Sequence[Path] = ()) -> None:
        self.databases = list(databases) or None
        for name, annotation in type(self).__annotations__.items():
            setattr(self, name, annotation(values, databases) if _is_group(annotation) else values[name])

    @property
    def db(self) -> Path | None:
        """Return the database that --db names, or None if there is none."""
        return self.databases[0] if self.databases else None

    @property
    def database(self) -> Path:
        """Return the database that --db names, or else the user's own."""
        return self.db or paths.user_database()

    @cached_property
    def query(self) -> "Query":
        """Return the query: objective, bounds, power limit, clock and number of rows."""
        from kernrec.recommender.request import Query, objective_named

        form = self.printed.form if self.printed else Form.JSON if getattr(self, "as_json", False) else Form.TABLE
        return Query(
            objective=objective_named(self.objective),
            max_slowdown=self._quantity("max_slowdown", quantity.fraction),
            max_power_w=self._quantity("max_power", quantity.watts),
            power_limit_w=self._quantity("power_limit", quantity.watts),
            clock_hz=self._quantity("clock", quantity.hertz),
            top=5 if self.top is None else self.top,
            clocks=self.sweeps and self.clock == ANY,
            inputs=self.inputs,
            l2=self.l2,
            backends=self._backends[0],
            source=self.estimated_by or "",
            each_config=form in (Form.CSV, Form.JSON),  # Programs that read the output need every row.
        )

    @cached_property
    def _backends(self) -> tuple[tuple[str, ...], str]:
        from kernrec.recommender.request import backends_named

        return backends_named(self.backend) if self.backend else ((), "")

    @property
    def whose(self) -> str:
        """Return the value of --backend if it is `mixed` or `kernrec`, or else an empty string."""
        return self._backends[1]

    @cached_property
    def batches(self) -> list[int | None]:
        """Return the batch sizes of --batch, or [None] to use the workload's default."""
        if self.batch is None:
            return [None]
        return list(dict.fromkeys(quantity.whole_number("--batch", part) for part in self.batch.split(",")))

    def _quantity(self, name: str, read: Callable[[str, str], float]) -> float | None:
        text = getattr(self, name)
        if text is None or (self.sweeps and (text == SWEEP or (text == ANY and name == "clock"))):
            return None
        return read(f"--{name.replace('_', '-')}", text)

    def request(self, shape: str | None, gpu: str | None = None, kernel: str | None = None) -> "Request":
        """Return the request for a shape such as `m=64,n=64,k=64`. `gpu` and `kernel` override --gpu and --kernel."""
        from kernrec.recommender.request import Request

        kernel = kernel or self.kernel
        return Request(gpu or self.gpu, self.op or None, kernel, shape or {}, self.dtype, self.layout, self.query)

    @cached_property
    def named_gpus(self) -> "list[GPU]":
        from kernrec.gpu import find_gpus

        return find_gpus(self.gpu)

    @cached_property
    def network(self) -> "NetworkRequest":
        """Layers to recommend configs for, from --workload, from --shape, or by default from the op's usual network."""
        from kernrec.recommender.networks.layers import NetworkRequest, shapes_as_network

        shapes = self.shape or []
        if shapes and not self.workload:
            network = shapes_as_network(self.op, shapes, self.dtype, self.layout)
            return NetworkRequest(network, None, self.dtype, backend=self.whose)
        phase = (self.workload or "").rpartition(":")[2]
        if phase in ("decode", "prefill"):
            raise UsageError(f"--workload {self.workload!r:.80}: a phase has its own option, --phase {phase}")
        context = None if self.context is None else quantity.whole_number("--context", self.context)
        return NetworkRequest(
            self.workload, self.op or None, self.dtype, self.layout, open_dimensions(shapes),
            self.batches[0], self.tp, context, self.phase, self.whose,
        )  # fmt: skip


class Printed(Options):
    """Options for the format of the output."""

    form_name: Annotated[str | None, option("table, csv or json.", "--format", panel=PRINTED)] = None
    as_json: AsJson = False

    @cached_property
    def form(self) -> Form:
        name = self.form_name
        if name is not None and name not in list(Form):
            raise unknown("format", name, list(Form))
        if name and self.as_json:
            raise UsageError(f"--format {name} and --json were both given; give only one")
        return Form.JSON if self.as_json else Form(name or Form.TABLE)


def takes(kind: type[_Kind]) -> Callable[[Callable[[_Kind], None]], Callable[..., None]]:
    """Return a decorator for a command function whose parameter is an object of class `kind`."""

    def decorate(function: Callable[[_Kind], None]) -> Callable[..., None]:
        @wraps(function)
        def command(call: typer.Context, **values: object) -> None:
            databases = call.obj or ()
            if databases and kind.databases_used == OWN:
                raise UsageError(f"`{call.command_path}` does not accept --db; KERNREC_DB names your database")
            if len(databases) > 1 and kind.databases_used == ONE:
                raise UsageError(f"--db is given twice; `{call.command_path}` uses one database")
            function(kind(values, databases))

        call = Parameter("call", Parameter.KEYWORD_ONLY, annotation=typer.Context)
        command.__signature__ = Signature([call, *_parameters(kind)])  # type: ignore[attr-defined]
        command.epilogue = kind.databases_used  # type: ignore[attr-defined]
        return command

    return decorate


def _parameters(kind: type[Options]) -> Iterator[Parameter]:
    for name, annotation in kind.__annotations__.items():
        if _is_group(annotation):
            yield from _parameters(annotation)
        else:
            default = vars(kind).get(name, Parameter.empty)
            yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _is_group(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Options)


def build_options(wanted: Any) -> list[str]:
    """Return the options --include and -D in the notation of nvcc."""
    folders, macros = wanted.include or (), wanted.define or ()
    return [*(f"-I{folder.absolute()}" for folder in folders), *(f"-D{macro}" for macro in macros)]


def open_dimensions(shapes: Sequence[str]) -> dict[str, int]:
    """Parse the symbolic dimensions of an ONNX model from texts such as `batch=1,seq=128`."""
    values: dict[str, int] = {}
    for part in (part for text in shapes for part in text.split(",")):
        name, equals, value = part.rpartition("=")
        if not (name.strip() and equals and value.strip().isascii() and value.strip().isdigit() and int(value) > 0):
            raise UsageError(f"--shape {part!r:.60}: expected the name of a dimension and its value, such as batch=1")
        values[name.strip()] = int(value)
    return values
