"""`kernrec refine`: measure only what is uncertain and matters."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec import paths
from kernrec.cli import measuring, options
from kernrec.cli.format import print_line
from kernrec.cli.quantity import budget as parse_budget
from kernrec.cli.quantity import fraction
from kernrec.cli.table import print_table
from kernrec.errors import UsageError, unknown
from kernrec.util.human import human

if TYPE_CHECKING:
    from kernrec.measure.refine import Outlook
    from kernrec.measure.refine_planner import RefineResult

_SHOWN = 12
"""Lines of a list at most."""


def refine(
    op: Annotated[str | None, typer.Option("--op", help="Operator or alias, or all (`kernrec ops`).")] = None,
    shape: measuring.Shape = None,
    workload: options.WorkloadName = None,
    dtype: options.Dtype = None,
    layout: options.Layout = None,
    gpu: measuring.Gpu = "auto",
    objective: Annotated[str, typer.Option(help="What choices are judged by: latency, energy or edp.")] = "latency",
    budget: Annotated[
        str | None, typer.Option(help="When to stop: 10m or 200configs. Default: 10m, without --until.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Stop once the mean regret is below this with 95 % probability, such as 2%.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be measured and why.")] = False,
    db: measuring.Database = None,
    device: measuring.Device = "cuda",
    replay: measuring.Replay = None,
    seed: measuring.Seed = 0,
    set_power_limit: measuring.SetPowerLimit = None,
    lock_clocks: measuring.LockClocks = None,
    cluster: measuring.Cluster = None,
) -> None:
    """Measure only what is uncertain and matters: the configs that lower the expected regret most per second.

    Problems count as often as the workload has them. If it is interrupted or killed, run it again to go on;
    several runs on one database share the work. With --set-power-limit or --lock-clocks there is a run at each of them.
    With --cluster, all GPUs of a Ray cluster measure, and --gpu is auto or the name of a GPU.
    """
    from kernrec.measure.campaign.results import CampaignBudget
    from kernrec.measure.problem_selection import select_layers
    from kernrec.measure.refine import outlook
    from kernrec.measure.refine import refine as run
    from kernrec.measure.refine_subject import RefineRequest, WantedProblem, check_refinable
    from kernrec.recommender.request import SCALAR_OBJECTIVES, Objective

    if shape and workload:
        raise UsageError("--shape and --workload were both given; a shape is one problem, a workload has many")
    replay, db = measuring.replay_files(device, replay, db)
    if objective not in SCALAR_OBJECTIVES:
        raise unknown("objective", objective, SCALAR_OBJECTIVES)
    if budget is None and until is None:
        budget = "10m"
    seconds, configs = (None, None) if budget is None else parse_budget("--budget", budget)
    layers = select_layers(op, shape, workload, dtype, layout) or []
    request = RefineRequest(
        problems=[WantedProblem(layer.name, layer.problem, layer.count) for layer in layers],
        layers=layers,
        database=db or paths.user_database(),
        gpu=gpu,
        recording=replay,
        objective=Objective(objective),
        budget=CampaignBudget(seconds, configs),
        until=None if until is None else fraction("--until", until),
        seed=seed,
    )

    def show(result: "RefineResult") -> None:
        _print_result(result, objective, replayed=replay is not None)

    if cluster is not None:
        from kernrec.cluster.commands import refine_on

        if dry_run:
            raise UsageError("--dry-run lists what one card would measure first: leave out --cluster")
        check_refinable(request)
        measuring.run_on_cluster(
            cluster,
            request.campaign,
            set_power_limit or lock_clocks,
            lambda cards, report, stopping: refine_on(cards, request, report, stopping),
            lambda results: measuring.show_kinds(results, show),
        )
        return
    points = measuring.limits(set_power_limit, lock_clocks, device)
    if dry_run:
        for point in points:
            if text := measuring.limit_text(point):
                print(text)
            _print_outlook(outlook(replace(request, point=point)), objective)
        return
    measuring.run_at_limits(
        points,
        gpu,
        lambda card, point, report, stopping: run(replace(request, gpu=card, point=point), report, stopping),
        show,
    )


def _print_outlook(outlook: "Outlook", objective: str) -> None:
    """Print the problems that would be measured, and why."""
    print_line(f"expected regret {_percent(outlook.regret)} ({objective}, weighted mean over the problems)")
    rows = [
        [
            visit.name,
            f"{visit.count:g}",
            _percent(visit.regret),
            str(len(visit.configs)),
            _percent(visit.gain),
            human(visit.seconds, "s"),
            visit.configs[0],
        ]
        for visit in outlook.visits[:_SHOWN]
    ]
    columns = [
        ("problem", "left"),
        ("count", "right"),
        ("regret", "right"),
        ("configs", "right"),
        ("gain", "right"),
        ("time", "right"),
        ("first config", "left"),
    ]
    print_table("what would be measured first, by gain per second", columns, rows)
    if (more := len(outlook.visits) - _SHOWN) > 0:
        print_line(f"and {more} more problems")


def _print_result(refined: "RefineResult", objective: str, *, replayed: bool) -> None:
    """Print what was measured, the answers that changed, and the regret that is left."""
    from kernrec.measure.refine_planner import FORECAST_S

    verb = "replayed" if replayed else "measured"
    plural = "" if refined.problems == 1 else "s"
    print_line(f"{refined.measured} configs of {refined.problems} problem{plural} {verb}; {refined.ended}")
    before, after = refined.regret
    print_line(f"expected regret ({objective}, weighted mean): {_percent(before)} before, {_percent(after)} now")
    print_line(f"another {human(FORECAST_S, 's')} would lower it by about {_percent(refined.forecast)}")
    for answer in refined.changed[:_SHOWN]:
        print_line(f"{answer.name}: {_percent(answer.faster)} better than before with another config")
        print_line(f"  before  {answer.before}")
        print_line(f"  now     {answer.after}")
    if (more := len(refined.changed) - _SHOWN) > 0:
        print_line(f"and {more} more answers changed")
    if not refined.changed:
        print_line("no answer changed")
    print_line(f"{refined.stored} rows are new in the database; deciding took {human(refined.deciding_s, 's')}")


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.0995 else f"{share * 100:.2g} %"
