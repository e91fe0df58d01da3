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
    from kernrec.recommender.networks.bill import Tariff
    from kernrec.recommender.networks.network import NetworkRequest


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
        " stable-diffusion-unet, vgg16, vit-l-16), a .toml, .csv, .jsonl or .onnx file, or a model's config.json."
    ),
]
Fix = Annotated[
    str | None, typer.Option(help="Values of dimensions that an .onnx workload leaves open, such as batch=1,seq=128.")
]
Batch = Annotated[
    str | None,
    typer.Option(help="Items, such as images or sequences, in one pass through a network; several: 1,8,32."),
]
OneBatch = Annotated[int | None, typer.Option("--batch", help="Items in one pass through a network.")]
Context = Annotated[
    int | None, typer.Option(help="Tokens that a generated token attends to, or those of the prompt. Default: 2048.")
]
Phase = Annotated[
    str | None, typer.Option(help="Of a config.json: decode (a token; the default) or prefill (a prompt).")
]
IgnoreMemory = Annotated[
    bool, typer.Option("--ignore-memory", help="Answer for a network that does not fit the GPU's memory, too.")
]
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
Backends = Annotated[
    list[str] | None,
    typer.Option(
        "--backend",
        help="Only baselines of this backend, such as vllm or cublas; several: a,b. Default: all. Of a network also"
        " mixed (the fastest of each layer) or kernrec.",
    ),
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
    batch: str | None = None
    tp: int = 1
    context: int | None = None
    phase: str | None = None
    ignore_memory: bool = False
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
    backend: list[str] | None = None
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
            stacks=self._backends[0],
            source=self.estimated_by or "",
            each_config=self.printed is not None and self.printed.form is Form.CSV,  # a program reads every row
        )

    @cached_property
    def _backends(self) -> tuple[tuple[str, ...], str]:
        from kernrec.recommender.request import backends_named

        return backends_named(self.backend) if self.backend else ((), "")

    @property
    def whose(self) -> str:
        """The backend that is no program: `mixed` or `kernrec`; empty for others."""
        return self._backends[1]

    @property
    def batches(self) -> list[int]:
        """The batches that were asked for; empty for the workload's own."""
        sizes = []
        for part in self.batch.split(",") if self.batch is not None else ():
            text = part.strip()
            if not (text.isascii() and text.isdigit() and int(text[:10]) > 0):
                raise UsageError(f"--batch {self.batch!r:.60}: {text!r:.20} is no whole number from 1")
            sizes.append(int(text))
        return list(dict.fromkeys(sizes))

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
        from kernrec.recommender.networks.network import NetworkRequest, shapes_as_network

        if shapes:
            network = shapes_as_network(self.op, shapes, self.dtype, self.layout)
            return NetworkRequest(network, None, self.dtype, backend=self.whose, ignore_memory=self.ignore_memory)
        op, batches = self.op or None, self.batches
        return NetworkRequest(
            self.workload, op, self.dtype, self.layout, fixed(self.fix), batches[0] if batches else None, self.tp,
            self.context, self.phase, self.whose, self.ignore_memory,
        )  # fmt: skip


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

    gpus: Annotated[int | None, typer.Option(help="GPUs that run the network for a year: prints the bill.")] = None
    hours: Annotated[float | None, typer.Option(help="Hours of the year with --gpus. Default: 8760.")] = None
    utilization: Annotated[
        str | None, typer.Option(help="Share of the hours in which --gpus work, such as 60%. Default: 100%.")
    ] = None
    calls: Annotated[
        str | None,
        typer.Option(help="Instead of --gpus: passes through the network in a year, such as 1e9 or 2e6/day."),
    ] = None
    energy_price: Annotated[
        str | None, typer.Option(help="What energy costs, such as 0.25EUR/kWh; needs --gpus or --calls.")
    ] = None
    carbon: Annotated[
        str | None, typer.Option(help="Carbon dioxide of the energy, such as 380g/kWh; needs --gpus or --calls.")
    ] = None

    @property
    def tariff(self) -> "Tariff | None":
        """The work of a year and its prices; None without any of the options.

        Raises:
            UsageError: a value is impossible, or an option lacks the one that it belongs to.
        """
        price, carbon = self.energy_price, self.carbon
        if self.calls is not None and self.gpus is not None:
            raise UsageError("--calls and --gpus were both given; either says how much runs in a year")
        if self.gpus is None:
            for flag, value in (("--hours", self.hours), ("--utilization", self.utilization)):
                if value is not None:
                    raise UsageError(f"{flag} needs --gpus, how many GPUs run the network, such as 200")
        if self.calls is None and self.gpus is None:
            for flag, value in (("--energy-price", price), ("--carbon", carbon)):
                if value is not None:
                    raise UsageError(f"{flag} needs --gpus, such as 200, or --calls a year, such as 1e9")
            return None
        from kernrec.recommender.networks.bill import Tariff

        return Tariff(
            None if self.calls is None else quantity.calls("--calls", self.calls),
            None if price is None else quantity.energy_price("--energy-price", price),
            None if carbon is None else quantity.carbon("--carbon", carbon),
            self._gpu_seconds(),
        )

    def _gpu_seconds(self) -> float:
        hours = 8760.0 if self.hours is None else self.hours
        share = 1.0 if self.utilization is None else quantity.fraction("--utilization", self.utilization)
        for flag, value, most, expected in (
            ("--gpus", 1 if self.gpus is None else self.gpus, 10**9, "a whole number from 1"),
            ("--hours", hours, 8784.0, "more than 0 and at most 8784, the hours of a year"),
            ("--utilization", share, 1.0, "more than 0 % and at most 100 %"),
        ):
            if not 0 < value <= most:
                raise UsageError(f"{flag} {value:g}: {expected} is expected")
        return (self.gpus or 0) * hours * 3600.0 * share


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
