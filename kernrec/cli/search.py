"""`kernrec search`: search one problem's space for the config of least latency, energy or both."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec import paths
from kernrec.cli import measuring, options
from kernrec.cli.format import config_text
from kernrec.cli.quantity import budget as parse_budget
from kernrec.errors import UsageError, unknown
from kernrec.util.human import human

if TYPE_CHECKING:
    from kernrec.measure.search import SearchedConfig, SearchResult


def search(
    op: Annotated[str | None, typer.Option("--op", help="Operator or alias (`kernrec ops`).")] = None,
    shape: measuring.Shape = None,
    dtype: options.Dtype = None,
    layout: options.Layout = None,
    gpu: measuring.Gpu = "auto",
    objective: Annotated[str, typer.Option(help="What to search for: latency, energy, edp or pareto.")] = "energy",
    budget: Annotated[str, typer.Option(help="When to stop: 10m or 200configs.")] = "200configs",
    strategy: Annotated[str, typer.Option(help="How configs are chosen: guide or genetic.")] = "guide",
    db: measuring.Database = None,
    device: measuring.Device = "cuda",
    replay: measuring.Replay = None,
    seed: measuring.Seed = 0,
    set_power_limit: measuring.SetPowerLimit = None,
    lock_clocks: measuring.LockClocks = None,
) -> None:
    """Search the configs of one problem for the least latency, energy or energy-delay product, or for the front.

    Latency is measured for every config that the search asks for, energy only where it may matter. If it is interrupted
    or killed, run it again to go on. With --set-power-limit or --lock-clocks there is a search at each of them.
    """
    from kernrec.measure.campaign.results import CampaignBudget
    from kernrec.measure.collect import CollectRequest
    from kernrec.measure.device.interface import DeviceKind
    from kernrec.measure.problem_selection import select_problems
    from kernrec.measure.search import Strategy
    from kernrec.measure.search import search as run
    from kernrec.recommender.request import objective_named

    measuring.check_device(device, replay, db)
    if strategy not in list(Strategy):
        raise unknown("strategy", strategy, list(Strategy))
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
    measuring.run_at_limits(
        measuring.limits(set_power_limit, lock_clocks, device),
        gpu,
        lambda card, point, report, stopping: run(
            replace(request, gpu=card), chosen, report, stopping, Strategy(strategy)
        ),
        lambda result: _print_result(result, objective),
    )


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
