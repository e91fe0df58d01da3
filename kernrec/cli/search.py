"""`kernrec search`: search one problem's space for the config of least latency, energy or both."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec import paths
from kernrec.cli import options
from kernrec.cli.collect import Stop
from kernrec.cli.format import config_text
from kernrec.cli.quantity import budget as parse_budget
from kernrec.errors import UsageError, unknown
from kernrec.util.human import human

if TYPE_CHECKING:
    from kernrec.measure.search import SearchedConfig, SearchResult


def search(
    op: Annotated[str | None, typer.Option("--op", help="Operator or alias (`kernrec ops`).")] = None,
    shape: Annotated[str | None, typer.Option(help="Dimensions, such as m=4096,n=4096,k=4096.")] = None,
    dtype: options.Dtype = None,
    layout: options.Layout = None,
    gpu: Annotated[str, typer.Option("--gpu", help="auto, or the index of a GPU in this machine.")] = "auto",
    objective: Annotated[str, typer.Option(help="What to search for: latency, energy, edp or pareto.")] = "energy",
    budget: Annotated[str, typer.Option(help="When to stop: 10m or 200configs.")] = "200configs",
    db: Annotated[Path | None, typer.Option(help="Database to add measurements to. Default: your own.")] = None,
    device: Annotated[
        str, typer.Option(help="cuda: measure on a GPU. replay: answer from recorded measurements.")
    ] = "cuda",
    replay: Annotated[Path | None, typer.Option(help="Database whose measurements to replay.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 0,
) -> None:
    """Search the configs of one problem for the least latency, energy or energy-delay product, or for the front.

    Latency is measured for every config that the search asks for, energy only where it may matter. If it is interrupted
    or killed, run it again to go on.
    """
    from kernrec.measure.campaign.results import CampaignBudget
    from kernrec.measure.collect import DEVICES, CollectRequest
    from kernrec.measure.device.interface import DeviceKind
    from kernrec.measure.problem_selection import select_problems
    from kernrec.measure.search import search as run
    from kernrec.recommender.request import objective_named

    if device not in DEVICES:
        raise unknown("device", device, DEVICES)
    if device == "replay" and (db is None or replay is None):
        raise UsageError("--device replay needs --replay, a database of measurements to answer from, and --db")
    if device != "replay" and replay is not None:
        raise UsageError(f"--replay {replay} goes with --device replay, but --device is {device}")
    if op is not None and shape is None:
        raise UsageError("a search is of one problem: give a --shape with --op")
    request = CollectRequest(
        problems=select_problems(op, shape, None, dtype, layout),
        database=db or paths.user_database(),
        device=DeviceKind(device),
        gpu=gpu,
        recording=replay,
        budget=CampaignBudget(*parse_budget("--budget", budget)),
        seed=seed,
    )
    chosen = objective_named(objective)
    stop = Stop()
    from kernrec.cli.progress import display

    with stop, display() as show:
        searched = run(request, chosen, show, stop)
    _print_result(searched, objective)
    if searched.error is not None:
        print(f"kernrec: {searched.error}", file=sys.stderr)
        raise typer.Exit(1)
    if searched.stopped:
        print("kernrec: interrupted", file=sys.stderr)
        raise typer.Exit(stop.status)


def _print_result(searched: "SearchResult", objective: str) -> None:
    energies = f", energy of {searched.energies}" if searched.energies else ""
    print(f"{searched.problem}: latency of {searched.latencies} of {searched.space} configs measured{energies}")
    if searched.best is not None and objective != "pareto":
        print(f"best by {objective}")
        _print_config(searched.best)
    if searched.front:
        print("Pareto front, fastest first")
        for config in searched.front:
            _print_config(config)
    print(f"{searched.stored} rows are new in the database")


def _print_config(searched: "SearchedConfig") -> None:
    energy = "-" if searched.energy_j is None else human(searched.energy_j, "J")
    print(f"  {human(searched.latency_s, 's'):>8}  {energy:>8}  {searched.kernel} {config_text(searched.config)}")
