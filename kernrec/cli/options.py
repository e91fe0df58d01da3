"""Options that several commands have, and what they mean together."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec.cli.quantity import calls, carbon, energy_price
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.recommender.bill import Tariff

Op = Annotated[str, typer.Option("--op", help="Operator name or alias (`kernrec ops` lists them).")]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Dimensions, such as m=4096,n=4096,k=4096; may be given several times."),
]
WorkloadName = Annotated[
    str | None,
    typer.Option(
        help="A network that ships (bert-base, gpt2, llama-3-8b-decode, llama-3-8b-prefill, mobilenetv2, resnet50,"
        " stable-diffusion-unet, vgg16), or a .toml, .csv, .jsonl or .onnx file."
    ),
]
Fix = Annotated[
    str | None, typer.Option(help="Values of dimensions that an .onnx workload leaves open, such as batch=1,seq=128.")
]
Dtype = Annotated[str | None, typer.Option(help="Data type of the tensors. Default: the network's, or the op's first.")]
Layout = Annotated[str | None, typer.Option(help="Tensor layout, such as nchw or nhwc.")]
Objective = Annotated[str, typer.Option(help="What to optimize: pareto, latency, energy or edp.")]
Inputs = Annotated[
    str,
    typer.Option(help="What the kernel computes on: random (numbers), or zeros, which draw less power."),
]
MaxSlowdown = Annotated[str | None, typer.Option(help="Most slowdown against the fastest config, such as 3%.")]
MaxPower = Annotated[str | None, typer.Option(help="Highest mean power of a config, such as 250W.")]
EnergyPrice = Annotated[str | None, typer.Option(help="What energy costs, such as 0.25EUR/kWh; needs --calls.")]
Carbon = Annotated[str | None, typer.Option(help="Carbon dioxide of the energy, such as 380g/kWh; needs --calls.")]
Calls = Annotated[
    str | None,
    typer.Option(help="How often the network runs in a year, such as 1e9 or 2e6/day: prints the bill."),
]
Databases = Annotated[list[Path] | None, typer.Option(help="Database to read first; may be given several times.")]


def fixed(text: str | None) -> dict[str, int]:
    """`batch=1,seq=128` by name."""
    values: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.rpartition("=")
        if not (name.strip() and equals and value.strip().isascii() and value.strip().isdigit() and int(value) > 0):
            raise UsageError(f"--fix {part!r:.60}: expected the name of a dimension and its value, such as batch=1")
        values[name.strip()] = int(value)
    return values


def tariff(price: str | None, carbon_of: str | None, calls_a_year: str | None) -> "Tariff | None":
    """What `--energy-price`, `--carbon` and `--calls` say together; None without any of them."""
    from kernrec.recommender.bill import Tariff

    if calls_a_year is None:
        for flag, given in (("--energy-price", price), ("--carbon", carbon_of)):
            if given is not None:
                raise UsageError(f"{flag} needs --calls, how often the network runs in a year, such as 1e9")
        return None
    return Tariff(
        calls("--calls", calls_a_year),
        None if price is None else energy_price("--energy-price", price),
        None if carbon_of is None else carbon("--carbon", carbon_of),
    )
