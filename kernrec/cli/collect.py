"""`kernrec collect`: measure kernel configs on a GPU and store the measurements."""

from typing import TYPE_CHECKING, Annotated

import typer

from kernrec import paths
from kernrec.cli import measuring, options, quantity
from kernrec.cli.collected import print_collected, print_result
from kernrec.errors import UsageError, unknown

if TYPE_CHECKING:
    from kernrec.measure.campaign.results import CampaignBudget
    from kernrec.measure.request import CollectRequest, Strategy
    from kernrec.recommender.estimate.operating_point import OperatingPoint

__all__ = ["collect", "print_collected"]

_SEARCHES = ("guide", "genetic")
_EFFORTS = {"quick": "quick", "all": "normal", "exhaustive": "exhaustive"}
"""Strategies that measure every problem in turn, with the effort per problem."""
_ONLY_FOR = {
    "objective": ("refine", *_SEARCHES),
    "workload": (*_EFFORTS, "refine"),
}
"""Strategies to which each option applies."""
_BUDGETS = {"refine": "10m", "guide": "200configs", "genetic": "200configs"}


class CollectOptions(options.Options):
    op: Annotated[str, typer.Option("--op", help="Operator or alias, or all (`kernrec ops`).")] = ""
    shape: Annotated[
        str | None, typer.Option(help="Dimensions, such as m=4096,n=4096,k=4096. Default: the layers of a workload.")
    ] = None
    workload: Annotated[str | None, typer.Option(help="Workload whose layers to measure.")] = None
    dtype: Annotated[str | None, typer.Option(help="Data type of the tensors. Default: the op's first.")] = None
    layout: options.Layout = None
    gpu: Annotated[
        str, typer.Option("--gpu", callback=measuring.present, help="auto, all, or an index in this machine.")
    ] = "auto"
    strategy: Annotated[
        str | None,
        typer.Option(
            help="all, quick, exhaustive: every problem in turn, at most 1,024, 64 or all configs. refine: what lowers"
            " the expected regret most. guide, genetic: search one problem. plan: what models are unsure of. Default:"
            " all; plan if nothing is named."
        ),
    ] = None
    objective: Annotated[
        str, typer.Option(help="What refine, guide and genetic minimize: latency, energy or edp; searches also pareto.")
    ] = ""
    budget: Annotated[
        str | None,
        typer.Option(
            help="When to stop: 30m, 2h or 200configs; with refine also a mean regret: 2%, or 30m,2%. Default: 10m"
            " (refine, plan), 200configs (searches)."
        ),
    ] = None
    replay: measuring.Replay = None
    set_power_limit: measuring.SetPowerLimit = None
    lock_clocks: measuring.LockClocks = None
    cluster: measuring.Cluster = None

    def request(self) -> "CollectRequest":  # type: ignore[override]
        """Return the request. Raises `UsageError` for conflicting options."""
        from kernrec.measure.campaign.results import EFFORTS
        from kernrec.measure.problems import select_layers
        from kernrec.measure.request import CollectRequest
        from kernrec.recommender.request import SCALAR_OBJECTIVES, objective_named

        strategy, effort = self._strategy()
        if self.shape and self.workload:
            raise UsageError("--shape and --workload were both given; a shape is one problem, a workload has many")
        if strategy.searches and self.op and not self.shape:
            raise UsageError(f"--strategy {strategy} searches one problem: give a --shape with --op")
        usual = "energy" if strategy.searches and self.replay != "shipped" else "latency"
        objective = objective_named(self.objective or usual)
        if strategy == "refine" and objective not in SCALAR_OBJECTIVES:
            raise unknown("objective", objective, SCALAR_OBJECTIVES)
        budget, until = self._budget(strategy)
        recording, database = measuring.replay_files(self.replay, self.db)  # last, as this reads a recording
        return CollectRequest(
            problems=select_layers(self.op or None, self.shape, self.workload, self.dtype, self.layout),
            database=database or paths.user_database(),
            gpu=self.gpu,
            recording=recording,
            strategy=strategy,
            objective=objective,
            effort=EFFORTS[effort],
            budget=budget,
            until=until,
        )

    def _budget(self, strategy: "Strategy") -> "tuple[CampaignBudget, float | None]":
        """Return (budget of the campaign, mean regret at which a refinement stops)."""
        from kernrec.measure.campaign.results import CampaignBudget

        parts = (self.budget or _BUDGETS.get(strategy, "")).split(",")
        bounds = [part for part in parts if part.strip().endswith("%")]
        amounts = [part for part in parts if part not in bounds]
        if len(bounds) > 1 or len(amounts) > 1:
            raise UsageError(f"--budget {self.budget!r:.60}: expected one amount and one regret, such as 30m,2%")
        if bounds and strategy != "refine":
            raise UsageError(f"--budget {bounds[0]} is a mean regret; use it with --strategy refine")
        seconds, configs = quantity.budget("--budget", amounts[0]) if any(amounts) else (None, None)
        return CampaignBudget(seconds, configs), quantity.fraction("--budget", bounds[0]) if bounds else None

    def _strategy(self) -> "tuple[Strategy, str]":
        """Return (strategy, maximum configs to measure per problem)."""
        from kernrec.measure.request import Strategy

        nothing = not self.op and self.shape is None and self.workload is None and self.replay is None
        name = self.strategy or ("plan" if nothing and self.cluster is None else "all")
        names = [*_EFFORTS, *(each for each in Strategy if each not in _EFFORTS)]
        if name not in names:
            raise unknown("strategy", name, names)
        for option, strategies in _ONLY_FOR.items():
            if getattr(self, option) and name not in strategies:
                fits = " or ".join(strategies)
                raise UsageError(f"--{option} needs --strategy {fits}; the strategy is {name}")
        effort = _EFFORTS.get(name)
        return (Strategy.ALL, effort) if effort else (Strategy(name), "normal")

    def points(self) -> "tuple[OperatingPoint, ...]":
        """Return the operating points to measure at; without options, only the GPU's current one."""
        return measuring.limits(self.set_power_limit, self.lock_clocks, self.replay is not None)


@options.takes(CollectOptions)
def collect(wanted: CollectOptions) -> None:
    """Measure latency and energy of kernel configs on a GPU of this machine and add them to a database.

    If the run is interrupted or killed, at most one config is lost; run it again to resume. Several runs on one
    database share the work. Clocks and power limit stay as they are, unless --set-power-limit or --lock-clocks sets
    them; the budget applies to each setting. If nothing is named, the plan of `kernrec contribute` is measured for ten
    minutes, and the rows are kept. With --cluster, all GPUs of a Ray cluster measure, and --gpu is auto or a GPU's
    name.
    """
    from kernrec.measure.collect import collect_at

    request, points = wanted.request(), wanted.points()
    if wanted.cluster is not None:
        from kernrec.cluster.commands import collect_on
        from kernrec.cluster.ray_cluster import RayCluster

        if wanted.set_power_limit or wanted.lock_clocks:
            raise UsageError(
                "--set-power-limit and --lock-clocks set one GPU of this machine, not those of a --cluster"
            )
        request.check(many_gpus=True)
        cards = RayCluster(wanted.cluster, request.database, request.recording is not None)
        measuring.run_measuring(
            lambda report, stopping: collect_on(cards, request, report, stopping),
            lambda result: print_result(result, request),
        )
    else:
        measuring.run_each(
            lambda report, stopping: collect_at(points, request, report, stopping),
            lambda result: print_result(result, request),
        )
