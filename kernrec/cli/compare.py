"""`kernrec compare`: GPUs side by side on one network: time, joules, and what a watt or the price of a card buys."""

from typing import TYPE_CHECKING, Annotated

import typer

from kernrec.cli import options
from kernrec.cli.output import AsCsv, AsJson, AsMarkdown, AsWide, form_of
from kernrec.cli.quantity import fraction, price, watts
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.gpu import GPU
    from kernrec.recommender.compare_gpus import CardPrice, Work

_OF_A_CARD = {"": 1.0, "h": 1.0, "hour": 1.0}


def compare(
    gpu: Annotated[str, typer.Option("--gpu", help="GPUs with commas between them, such as h200,l40s,rtx4090.")],
    workload: options.WorkloadName = None,
    fix: options.Fix = None,
    op: options.Op = "",
    shape: Annotated[str | None, typer.Option(help="One problem of an op, such as m=4096,n=4096,k=4096.")] = None,
    dtype: options.Dtype = None,
    layout: options.Layout = None,
    objective: options.Objective = "latency",
    max_slowdown: options.MaxSlowdown = None,
    max_power: options.MaxPower = None,
    inputs: options.Inputs = "random",
    power_limit: Annotated[
        str | None, typer.Option(help="Power limit that all GPUs run under, such as 300W. Default: each one's own.")
    ] = None,
    tokens: Annotated[
        float | None, typer.Option(help="Tokens that one pass gives: also prints the energy of a token.")
    ] = None,
    images: Annotated[
        float | None, typer.Option(help="Images that one pass gives: also prints the energy of an image.")
    ] = None,
    card_price: Annotated[
        str | None,
        typer.Option("--price", help="What a card costs, such as h200=30000EUR,l40s=8000EUR, or h200=3EUR/h rented."),
    ] = None,
    energy_price: options.EnergyPrice = None,
    carbon: options.Carbon = None,
    calls: options.Calls = None,
    wide: AsWide = False,
    as_csv: AsCsv = False,
    as_json: AsJson = False,
    markdown: AsMarkdown = False,
    db: options.Databases = None,
) -> None:
    """Compare GPUs on a network: time, energy, throughput for a watt and, with --price, for the money.

    Every layer runs the config that is best for the objective on that GPU. Prices are yours: none is built in.
    """
    from kernrec.cli.network_tables import print_comparison
    from kernrec.recommender import Query, Recommender
    from kernrec.recommender.compare_gpus import compare_gpus, find_gpus
    from kernrec.recommender.network import NetworkRequest, shapes_as_network
    from kernrec.recommender.request import objective_named

    if shape and workload:
        raise UsageError("--shape and --workload were both given; a shape is one problem, a workload many")
    if shape and not op:
        raise UsageError("--shape needs --op: the dimensions are an op's")
    if not workload and not op:
        raise UsageError("--workload is missing: a workload that ships, or a .toml, .csv, .jsonl or .onnx file")
    form = form_of(wide, as_csv, as_json, markdown)
    query = Query(
        objective=objective_named(objective),
        max_slowdown=None if max_slowdown is None else fraction("--max-slowdown", max_slowdown),
        max_power_w=None if max_power is None else watts("--max-power", max_power),
        power_limit_w=None if power_limit is None else watts("--power-limit", power_limit),
        inputs=inputs,
    )
    gpus = find_gpus(gpu)
    wanted = (
        NetworkRequest(shapes_as_network(op, [shape], dtype, layout), None, dtype)
        if shape
        else NetworkRequest(workload, op or None, dtype, layout, options.fixed(fix))
    )
    rows, missing = compare_gpus(
        Recommender(databases=db, keep_open=True), gpus, wanted, query, _work(tokens, images), _prices(card_price, gpus)
    )
    print_comparison(rows, missing, form, options.tariff(energy_price, carbon, calls))


def _work(tokens: float | None, images: float | None) -> "Work":
    from kernrec.recommender.compare_gpus import Work

    if tokens is not None and images is not None:
        raise UsageError("--tokens and --images were both given; a pass gives one or the other")
    if tokens is None and images is None:
        return Work()
    amount, unit = (tokens, "token") if tokens is not None else (images or 0.0, "image")
    if not 0.0 < amount < float("inf"):
        raise UsageError(f"--{unit}s {amount:g}: more than 0 is expected")
    return Work(amount, unit)


def _prices(text: str | None, gpus: "list[GPU]") -> "dict[str, CardPrice]":
    """`h200=30000EUR,l40s=8000EUR` by name of the GPU, in one currency, bought or rented."""
    from kernrec.gpu import find_gpu
    from kernrec.recommender.compare_gpus import CardPrice

    prices: dict[str, CardPrice] = {}
    for part in text.split(",") if text else ():
        name, equals, amount = part.partition("=")
        if not equals:
            raise UsageError(f"--price {part!r:.60}: expected a GPU and its price, such as h200=30000EUR")
        card = find_gpu(name)
        if card.name not in {known.name for known in gpus}:
            raise UsageError(f"--price {part!r:.60}: {card.name} is not among the GPUs that are compared")
        value, currency, unit = price("--price", amount, _OF_A_CARD, "h200=30000EUR or h200=3EUR/h")
        if value <= 0.0:
            raise UsageError(f"--price {part!r:.60}: a price of more than 0 is expected")
        prices[card.name] = CardPrice(value, currency, bool(unit))
    if len({(known.currency, known.hourly) for known in prices.values()}) > 1:
        raise UsageError("--price: expected one currency, and all cards bought or all rented by the hour")
    return prices
