"""`kernrec search`: search one problem's space for the config of least latency, energy or both."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec import paths
from kernrec.cli import measuring, options
from kernrec.cli.format import print_line
from kernrec.cli.quantity import budget as parse_budget
from kernrec.errors import UsageError, unknown
from kernrec.util.human import config_text, human

if TYPE_CHECKING:
    from kernrec.measure.search_rounds import SearchedConfig, SearchResult
    from kernrec.recommender.request import Objective


def search(
    op: Annotated[str | None, typer.Option("--op", help="Operator or alias (`kernrec ops`).")] = None,
    shape: measuring.Shape = None,
    dtype: options.Dtype = None,
    layout: options.Layout = None,
    gpu: measuring.Gpu = "auto",
    objective: Annotated[
        str | None,
        typer.Option(
            help="What to search for: latency, energy, edp or pareto. Default: energy; latency for the recorded space"
            " that ships, which has no energy."
        ),
    ] = None,
    budget: Annotated[str, typer.Option(help="When to stop: 10m or 200configs.")] = "200configs",
    strategy: Annotated[str, typer.Option(help="How configs are chosen: guide or genetic.")] = "guide",
    db: measuring.Database = None,
    device: measuring.Device = "cuda",
    replay: measuring.Replay = None,
    seed: measuring.Seed = 0,
    set_power_limit: measuring.SetPowerLimit = None,
    lock_clocks: measuring.LockClocks = None,
    cluster: measuring.Cluster = None,
) -> None:
    """Search the configs of one problem for the least latency, energy or energy-delay product, or for the front.

    Latency is measured for every config that the search asks for, energy only where it may matter. If it is interrupted
    or killed, run it again to go on. With --set-power-limit or --lock-clocks there is a search at each of them.
    With --cluster, all GPUs of a Ray cluster measure, and --gpu is auto or the name of a GPU.
    """
    from kernrec.measure.campaign.results import CampaignBudget
    from kernrec.measure.collect import CollectRequest
    from kernrec.measure.device.interface import DeviceKind
    from kernrec.measure.problem_selection import select_layers
    from kernrec.measure.search import search as run
    from kernrec.measure.search_rounds import Strategy
    from kernrec.recommender.request import objective_named

    objective = objective or ("latency" if device == "replay" and replay is None else "energy")
    if strategy not in list(Strategy):
        raise unknown("strategy", strategy, list(Strategy))
    if op is not None and shape is None:
        raise UsageError("a search is of one problem: give a --shape with --op")
    chosen, how = objective_named(objective), Strategy(strategy)
    most = CampaignBudget(*parse_budget("--budget", budget))
    replay, db = measuring.replay_files(device, replay, db)  # last: it reads a recording
    if op is None and replay is None:
        raise UsageError("name the problem to search: --op and --shape")
    layers = select_layers(op, shape, None, dtype, layout)
    request = CollectRequest(
        problems=None if layers is None else [(layer.name, layer.problem) for layer in layers],
        layers=layers or (),
        database=db or paths.user_database(),
        device=DeviceKind(device),
        gpu=gpu,
        recording=replay,
        budget=most,
        seed=seed,
    )

    def show(result: "SearchResult") -> None:
        _print_result(result, chosen)

    if cluster is not None:
        from kernrec.cluster.commands import search_on

        measuring.run_on_cluster(
            cluster,
            request,
            set_power_limit or lock_clocks,
            lambda cards, report, stopping: search_on(cards, request, chosen, report, stopping, how),
            lambda results: measuring.show_kinds(results, show),
        )
        return
    measuring.run_at_limits(
        measuring.limits(set_power_limit, lock_clocks, device),
        gpu,
        lambda card, point, report, stopping: run(replace(request, gpu=card), chosen, report, stopping, how),
        show,
    )


def _print_result(searched: "SearchResult", objective: "Objective") -> None:
    energies = f", energy of {searched.energies}" if searched.energies else ""
    print_line(f"{searched.problem}: latency of {searched.latencies} of {searched.space} configs measured{energies}")
    if searched.best is not None and objective != "pareto":
        print_line(f"best by {objective}")
        _print_config(searched.best)
    if searched.front:
        print_line("Pareto front, fastest first")
        for config in searched.front:
            _print_config(config)
    print_line(f"{searched.stored} rows are new in the database")


def _print_config(searched: "SearchedConfig") -> None:
    energy = "-" if searched.energy_j is None else human(searched.energy_j, "J")
    print_line(f"  {human(searched.latency_s, 's'):>8}  {energy:>8}  {searched.kernel} {config_text(searched.config)}")
