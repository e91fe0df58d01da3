"""Options that several commands share, each with its help text, and the request that they make together.

The options of a command are the annotated fields of a subclass of `Options`, in the order of its --help; `takes` makes
the command. The command is called with one object, whose properties build the recommender's `Query` and requests.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kernrec.cli import quantity
from kernrec.cli.output import AsCsv, AsJson, AsMarkdown, AsWide, Form, form_of
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.recommender import Query, Request
    from kernrec.recommender.bill import Tariff
    from kernrec.recommender.network import NetworkRequest


def card(text: str) -> str:
    """The value of --gpu, with the name of a card in place of its file."""
    if ".toml" not in text.lower():
        return text
    from kernrec.gpu.card_file import card_names

    return card_names(text)


Gpu = Annotated[
    str, typer.Option("--gpu", callback=card, help="GPU name or alias (`kernrec gpus` lists them), or a card's .toml.")
]
Op = Annotated[str, typer.Option("--op", help="Operator name or alias (`kernrec ops` lists them).")]
Kernel = Annotated[str | None, typer.Option(help="One kernel instead of an op: yours or the library's.")]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Dimensions, such as m=4096,n=4096,k=4096; may be given several times."),
]
WorkloadName = Annotated[
    str | None,
    typer.Option(
        help="A network that ships (bert-base, gpt2, llama-3-8b-decode, llama-3-8b-prefill, llama-3-70b-decode,"
        " llama-3-70b-prefill, mixtures-of-experts, mobilenetv2, qwen3-30b-a3b-decode, qwen3-30b-a3b-prefill, resnet50,"
        " stable-diffusion-unet, vgg16, vit-l-16), or a .toml, .csv, .jsonl or .onnx file."
    ),
]
Fix = Annotated[
    str | None, typer.Option(help="Values of dimensions that an .onnx workload leaves open, such as batch=1,seq=128.")
]
Batch = Annotated[int | None, typer.Option(help="Items, such as images or sequences, in one pass through a network.")]
TensorParallel = Annotated[
    int, typer.Option("--tp", help="GPUs that share each layer of a network (tensor parallel); the answer is for one.")
]
Dtype = Annotated[str | None, typer.Option(help="Data type of the tensors. Default: the network's, or the op's first.")]
Layout = Annotated[str | None, typer.Option(help="Tensor layout, such as nchw or nhwc.")]
Objective = Annotated[str, typer.Option(help="What to optimize: pareto, latency, energy or edp.")]
Clocks = Annotated[bool, typer.Option("--clocks", help="Also try locked core clocks.")]
Inputs = Annotated[
    str,
    typer.Option(help="What the kernel computes on: random (numbers), or zeros, which draw less power."),
]
MaxSlowdown = Annotated[str | None, typer.Option(help="Most slowdown against the fastest config, such as 3%.")]
MaxPower = Annotated[str | None, typer.Option(help="Highest mean power of a config, such as 250W.")]
Source = Annotated[
    str | None,
    typer.Option("--source", help="Only what is prior, learned, measured or recorded. Default: the best of all."),
]
Stacks = Annotated[
    list[str] | None,
    typer.Option("--stack", help="Only the lines of this stack, such as vllm or cublas; several: a,b. Default: all."),
]
Top = Annotated[int, typer.Option(help="Number of configs to print at most.")]
Databases = Annotated[list[Path] | None, typer.Option(help="Database to read first; may be given several times.")]

SWEEP = "sweep"
"""The value of `--power-limit` and `--clock` that asks for all of them."""

_Kind = TypeVar("_Kind", bound="Options")


class Options:
    """The options of a command; the fields annotated here have these values in a command that lacks the option."""

    sweeps = False
    """Whether the power limit and the clock may be `sweep`."""
    gpu: str
    op: str = ""
    kernel: str | None = None
    workload: str | None = None
    fix: str | None = None
    batch: int | None = None
    tp: int = 1
    dtype: str | None = None
    layout: str | None = None
    objective: str = "pareto"
    max_slowdown: str | None = None
    max_power: str | None = None
    power_limit: str | None = None
    clock: str | None = None
    clocks: bool = False
    inputs: str = "random"
    top: int = 5
    stack: list[str] | None = None
    estimated_by: str | None = None
    printed: "Printed | None" = None

    def __init__(self, values: Mapping[str, Any]) -> None:
        for name, annotation in type(self).__annotations__.items():
            setattr(self, name, annotation(values) if _is_group(annotation) else values[name])

    @cached_property
    def query(self) -> "Query":
        """The objective, its bounds, and how the GPU is run."""
        from kernrec.recommender.request import Query, objective_named

        return Query(
            objective=objective_named(self.objective),
            max_slowdown=self._quantity("max_slowdown", quantity.fraction),
            max_power_w=self._quantity("max_power", quantity.watts),
            power_limit_w=self._quantity("power_limit", quantity.watts),
            clock_hz=self._quantity("clock", quantity.hertz),
            top=self.top,
            clocks=self.clocks,
            inputs=self.inputs,
            stacks=tuple(self.stack or ()),
            source=self.estimated_by or "",
            each_config=self.printed is not None and self.printed.form is Form.CSV,  # a program reads every row
        )

    def _quantity(self, name: str, read: Callable[[str, str], float]) -> float | None:
        text = getattr(self, name)
        if text is None or (self.sweeps and text == SWEEP):
            return None
        return read(f"--{name.replace('_', '-')}", text)

    def request(self, shape: str | None, gpu: str | None = None, kernel: str | None = None) -> "Request":
        """The question about one shape, on the GPU and about the kernel of the options unless others are named."""
        from kernrec.recommender.request import Request

        kernel = kernel or self.kernel
        return Request(gpu or self.gpu, self.op or None, kernel, shape or {}, self.dtype, self.layout, self.query)

    def network(self, shapes: Sequence[str]) -> "NetworkRequest":
        """The layers of the workload or the op; with shapes, a layer for each of them."""
        from kernrec.recommender.network import NetworkRequest, shapes_as_network

        if shapes:
            network = shapes_as_network(self.op, shapes, self.dtype, self.layout)
            return NetworkRequest(network, None, self.dtype)
        op, values = self.op or None, fixed(self.fix)
        return NetworkRequest(self.workload, op, self.dtype, self.layout, values, self.batch, self.tp)


class Printed(Options):
    """The options for the form in which an answer is printed."""

    wide: AsWide = False
    as_csv: AsCsv = False
    as_json: AsJson = False
    markdown: AsMarkdown = False

    @property
    def form(self) -> Form:
        """The form; `UsageError` for two of them."""
        return form_of(self.wide, self.as_csv, self.as_json, self.markdown)


class Billed(Options):
    """The options for the bill of a year."""

    energy_price: Annotated[str | None, typer.Option(help="What energy costs, such as 0.25EUR/kWh; needs --calls.")] = (
        None
    )
    carbon: Annotated[
        str | None, typer.Option(help="Carbon dioxide of the energy, such as 380g/kWh; needs --calls.")
    ] = None
    calls: Annotated[
        str | None,
        typer.Option(help="How often the network runs in a year, such as 1e9 or 2e6/day: prints the bill."),
    ] = None

    @property
    def tariff(self) -> "Tariff | None":
        """The calls of a year and their prices; None without any of the options."""
        price, carbon = self.energy_price, self.carbon
        if self.calls is None:
            for flag, value in (("--energy-price", price), ("--carbon", carbon)):
                if value is not None:
                    raise UsageError(f"{flag} needs --calls, how often the network runs in a year, such as 1e9")
            return None
        from kernrec.recommender.bill import Tariff

        return Tariff(
            quantity.calls("--calls", self.calls),
            None if price is None else quantity.energy_price("--energy-price", price),
            None if carbon is None else quantity.carbon("--carbon", carbon),
        )


def takes(kind: type[_Kind]) -> Callable[[Callable[[_Kind], None]], Callable[..., None]]:
    """Makes a command for Typer of a function of its options."""

    def decorate(function: Callable[[_Kind], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**values: object) -> None:
            function(kind(values))

        command.__signature__ = Signature(list(_parameters(kind)))  # type: ignore[attr-defined]
        return command

    return decorate


def _parameters(kind: type[Options]) -> Iterator[Parameter]:
    """The options of a class in order; a field that is itself a group of options stands for all of them."""
    for name, annotation in kind.__annotations__.items():
        if _is_group(annotation):
            yield from _parameters(annotation)
        else:
            default = vars(kind).get(name, Parameter.empty)
            yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _is_group(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Options)


def fixed(text: str | None) -> dict[str, int]:
    """`batch=1,seq=128` by name."""
    values: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.rpartition("=")
        if not (name.strip() and equals and value.strip().isascii() and value.strip().isdigit() and int(value) > 0):
            raise UsageError(f"--fix {part!r:.60}: expected the name of a dimension and its value, such as batch=1")
        values[name.strip()] = int(value)
    return values
