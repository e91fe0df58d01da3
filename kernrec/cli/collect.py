"""`kernrec collect`: measure kernel configs on a GPU and store the measurements."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec import paths
from kernrec.cli import measuring
from kernrec.cli.quantity import budget as parse_budget
from kernrec.errors import UsageError, unknown
from kernrec.util.human import config_text, human

if TYPE_CHECKING:
    from kernrec.measure.collect import CollectRequest, CollectResult


def collect(
    op: Annotated[str | None, typer.Option("--op", help="Operator or alias, or all (`kernrec ops`).")] = None,
    shape: Annotated[
        str | None, typer.Option(help="Dimensions, such as m=4096,n=4096,k=4096. Default: the layers of a workload.")
    ] = None,
    workload: Annotated[str | None, typer.Option(help="Workload whose layers to measure.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Data type of the tensors. Default: the op's first.")] = None,
    layout: Annotated[str | None, typer.Option(help="Tensor layout, such as nchw or nhwc.")] = None,
    gpu: Annotated[
        str, typer.Option("--gpu", callback=measuring.present, help="auto, all, or an index in this machine.")
    ] = "auto",
    budget: Annotated[
        str | None, typer.Option(help="When to stop: 30m, 2h or 200configs. Default, if nothing is named: 10m.")
    ] = None,
    effort: Annotated[
        str, typer.Option(help="How many configs to measure per problem: quick, normal or exhaustive.")
    ] = "normal",
    db: measuring.Database = None,
    resume: Annotated[bool, typer.Option(help="Skip what the database already has.")] = True,
    device: measuring.Device = "cuda",
    replay: measuring.Replay = None,
    seed: measuring.Seed = 0,
    set_power_limit: measuring.SetPowerLimit = None,
    lock_clocks: measuring.LockClocks = None,
    cluster: measuring.Cluster = None,
) -> None:
    """Measure latency and energy of kernel configs on a GPU of this machine and add them to a database.

    If it is interrupted or killed, at most the config being measured is lost; run it again to resume. The card is
    measured as it is set, unless --set-power-limit or --lock-clocks allow to set it; the budget is for each of them.
    With nothing named it measures the plan of `kernrec contribute` for ten minutes, and keeps the rows.
    With --cluster, all GPUs of a Ray cluster measure, and --gpu is auto or the name of a GPU.
    """
    from kernrec.measure.campaign.results import EFFORTS, CampaignBudget
    from kernrec.measure.card_plan import collect_plan
    from kernrec.measure.collect import CollectRequest
    from kernrec.measure.collect import collect as collect_named
    from kernrec.measure.device.interface import DeviceKind
    from kernrec.measure.problem_selection import select_layers

    if effort not in EFFORTS:
        raise unknown("effort", effort, EFFORTS)
    replay, db = measuring.replay_files(device, replay, db)
    if shape and workload:
        raise UsageError("--shape and --workload were both given; a shape is one problem, a workload has many")
    seconds, configs = (None, None) if budget is None else parse_budget("--budget", budget)
    layers = select_layers(op, shape, workload, dtype, layout)
    request = CollectRequest(
        problems=None if layers is None else [(layer.name, layer.problem) for layer in layers],
        layers=layers or (),
        database=db or paths.user_database(),
        device=DeviceKind(device),
        gpu=gpu,
        recording=replay,
        effort=EFFORTS[effort],
        budget=CampaignBudget(seconds, configs),
        resume=resume,
        seed=seed,
    )
    if cluster is not None:
        from kernrec.cluster.commands import collect_on

        if request.problems is None and request.recording is None:
            raise UsageError("name what to measure with --op, and --shape or --workload")
        measuring.run_on_cluster(
            cluster,
            request,
            set_power_limit or lock_clocks,
            lambda cards, report, stopping: collect_on(cards, request, report, stopping),
            lambda result: print_collected(result, request),
        )
        return
    run = collect_plan if request.problems is None and request.recording is None else collect_named
    measuring.run_at_limits(
        measuring.limits(set_power_limit, lock_clocks, device),
        gpu,
        lambda card, point, report, stopping: run(replace(request, gpu=card), report, stopping),
        lambda result: print_collected(result, request),
    )


def print_collected(collected: "CollectResult", request: "CollectRequest") -> None:
    """Print how much was measured or replayed, the best configs, and what failed and why."""
    done = "replayed" if request.recording is not None else "measured"
    for result in collected.results:
        before = f", {result.earlier} known before" if result.earlier else ""
        name = "" if result.name == result.problem else f"{result.name}: "
        print(f"{name}{result.problem}: {result.measured} {done}{before}")
        for what, measurement, cost, unit in (
            ("fastest", result.best, "latency_s", "s"),
            ("frugal", result.frugal, "energy_j", "J"),
        ):
            if measurement is not None:
                config = config_text(measurement.identity.config)
                value = human(getattr(measurement, cost), unit)
                print(f"  {what}  {value:>8}  {measurement.identity.kernel} {config}")
    failures: dict[str, tuple[int, str]] = {}
    for result in collected.results:
        for kind, count in result.failures.items():
            total, example = failures.get(kind, (0, result.examples[kind]))
            failures[kind] = (total + count, example)
    for kind, (count, example) in sorted(failures.items()):
        print(f"{count} {kind}, such as: {example}")
    left = f", {collected.leftover} of them from an interrupted earlier run" if collected.leftover else ""
    print(f"{collected.stored + collected.leftover} rows are new in {request.database}{left}")
