"""`kernrec compare`: GPUs side by side on one network: time, joules, and what a watt or the price of a card buys."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec.cli import options
from kernrec.cli.quantity import price
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.gpu import GPU
    from kernrec.recommender.networks.compare import CardPrice, Work

_OF_A_CARD = {"": 1.0, "h": 1.0, "hour": 1.0}


class CompareOptions(options.Options):
    """The options of `kernrec compare`."""

    gpu: Annotated[
        str,
        typer.Option(
            "--gpu",
            callback=options.card,
            help="GPUs or .toml files of cards, such as h200,l40s,rtx4090.",
        ),
    ]
    workload: options.WorkloadName = None
    fix: options.Fix = None
    batch: options.Batch = None
    tp: options.TensorParallel = 1
    context: options.Context = None
    phase: options.Phase = None
    ignore_memory: options.IgnoreMemory = False
    backend: options.Backends = None
    op: options.Op = ""
    shape: Annotated[str | None, typer.Option(help="One problem of an op, such as m=4096,n=4096,k=4096.")] = None
    dtype: options.Dtype = None
    layout: options.Layout = None
    objective: options.Objective = "latency"
    max_slowdown: options.MaxSlowdown = None
    max_power: options.MaxPower = None
    inputs: options.Inputs = "random"
    power_limit: Annotated[
        str | None, typer.Option(help="Power limit that all GPUs run under, such as 300W. Default: each one's own.")
    ] = None
    tokens: Annotated[
        float | None, typer.Option(help="Tokens that one pass gives each sequence: prints the energy of a token.")
    ] = None
    images: Annotated[
        int | None, typer.Option(help="Images in one pass, the batch: also prints the energy of an image.")
    ] = None
    card_price: Annotated[
        str | None,
        typer.Option("--price", help="What a card costs, such as h200=30000EUR,l40s=8000EUR, or h200=3EUR/h rented."),
    ] = None
    billed: options.Billed
    printed: options.Printed
    db: options.Databases = None


@options.takes(CompareOptions)
def compare(wanted: CompareOptions) -> None:
    """Compare GPUs on a network: time, energy, throughput for a watt and, with --price, for the money.

    Costs are those of the fastest backend that has all layers, or of --backend, and for a --shape those of kernrec's
    best config for the objective. Prices are yours: none is built in.
    """
    from kernrec.cli.network_tables import print_comparison
    from kernrec.gpu import find_gpus
    from kernrec.recommender import Recommender
    from kernrec.recommender.networks.compare import compare_gpus

    if wanted.shape and wanted.workload:
        raise UsageError("--shape and --workload were both given; a shape is one problem, a workload many")
    if wanted.shape and not wanted.op:
        raise UsageError("--shape needs --op: the dimensions are an op's")
    if not wanted.workload and not wanted.op:
        raise UsageError(
            "--workload is missing: a workload that ships, a .toml, .csv, .jsonl or .onnx file, or a config.json"
        )
    form, query, gpus = wanted.printed.form, wanted.query, find_gpus(wanted.gpu)
    batches, prices = wanted.batches, _prices(wanted.card_price, gpus)
    work = _work(wanted.tokens, wanted.images, batches)
    network = wanted.network([wanted.shape] if wanted.shape else [])
    if wanted.images is not None and not wanted.shape:
        network = replace(network, batch=wanted.images)
    recommender = Recommender(databases=wanted.db, keep_open=True)
    rows, missing = compare_gpus(recommender, gpus, network, query, work, prices, batches or [None])
    print_comparison(rows, missing, form, wanted.billed.tariff)


def _work(tokens: float | None, images: int | None, batches: list[int]) -> "Work | None":
    """The yield of each item of a pass; None for that of the workload."""
    from kernrec.recommender.networks.compare import Work

    if tokens is not None and images is not None:
        raise UsageError("--tokens and --images were both given; a pass gives one or the other")
    if images is not None and batches not in ([], [images]):
        raise UsageError(f"--images {images} and --batch were both given; the images of a pass are its batch")
    if tokens is None and images is None:
        return None
    amount, unit = (tokens, "token") if tokens is not None else (images or 0, "image")
    if not 0.0 < amount < float("inf"):
        raise UsageError(f"--{unit}s {amount:g}: more than 0 is expected")
    return Work(amount if unit == "token" else 1.0, unit)


def _prices(text: str | None, gpus: "list[GPU]") -> "dict[str, CardPrice]":
    """`h200=30000EUR,l40s=8000EUR` by name of the GPU, in one currency, bought or rented."""
    from kernrec.gpu import find_gpu
    from kernrec.recommender.networks.compare import CardPrice

    prices: dict[str, CardPrice] = {}
    for part in text.split(",") if text else ():
        name, equals, amount = part.partition("=")
        if not equals:
            raise UsageError(f"--price {part!r:.60}: expected a GPU and its price, such as h200=30000EUR")
        card = find_gpu(name)
        if card.name not in {gpu.name for gpu in gpus}:
            raise UsageError(f"--price {part!r:.60}: {card.name} is not among the GPUs that are compared")
        value, currency, unit = price("--price", amount, _OF_A_CARD, "h200=30000EUR or h200=3EUR/h")
        if value <= 0.0:
            raise UsageError(f"--price {part!r:.60}: a price of more than 0 is expected")
        prices[card.name] = CardPrice(value, currency, bool(unit))
    if len({(card_price.currency, card_price.hourly) for card_price in prices.values()}) > 1:
        raise UsageError("--price: expected one currency, and all cards bought or all rented by the hour")
    return prices
