"""`kernrec collect`: measure kernel configs on a GPU until the budget is spent or the user interrupts the command."""

import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec import paths
from kernrec.cli import options, quantity
from kernrec.cli.options import option
from kernrec.cli.output import print_line, print_notes
from kernrec.cli.progress import Lines, Steps
from kernrec.errors import UsageError, unknown
from kernrec.util.human import config_text, counted, human

if TYPE_CHECKING:
    from kernrec.measure.campaign.results import CampaignBudget
    from kernrec.measure.refine_planner import Refined
    from kernrec.measure.request import CollectRequest, CollectResult, Report, Stopping, Strategy
    from kernrec.measure.search_rounds import Searched, SearchedConfig
    from kernrec.recommender.estimate.operating_point import OperatingPoint

_SHOWN = 12
"""Maximum number of recommendations to print that changed because of new measurements."""


def _refuse_gpu_file(text: str) -> str:
    if text.lower().endswith(".toml"):
        raise UsageError(f"--gpu {text} is a GPU file for predictions; to measure, name a GPU of this machine")
    return text


Gpu = Annotated[str, option("GPU: auto, or its index on this machine.", "--gpu", callback=_refuse_gpu_file)]

_SHIPPED = "shipped"
"""Value of --replay that selects the recording that ships with kernrec."""
_SEARCHES = ("guide", "genetic")
_EFFORTS = {"quick": "quick", "all": "normal", "exhaustive": "exhaustive"}
"""Efforts, which limit the number of configs per problem, keyed by strategy."""
_ONLY_FOR = {
    "objective": ("refine", *_SEARCHES),
    "workload": (*_EFFORTS, "refine"),
}
"""Strategies that accept an option, keyed by option. Options that are not listed work with all strategies."""
_BUDGETS = {"refine": "10m", "guide": "200configs", "genetic": "200configs"}


class CollectOptions(options.Options):
    op: Annotated[str, option("Operator (`kernrec list ops`), or all.", "--op")] = ""
    shape: Annotated[str | None, option("Dimensions: m=64,n=64,k=64. Default: the layers of a workload.")] = None
    workload: Annotated[str | None, option("Network whose layers to measure.")] = None
    dtype: Annotated[str | None, option("Data type of the tensors. Default: the op's first.")] = None
    layout: options.Layout = None
    gpu: Gpu = "auto"
    strategy: Annotated[
        str | None,
        option(
            "all, quick, exhaustive: measure every problem, with at most 1,024, 64 or all configs. "
            "refine: lower the expected regret. guide, genetic: search one problem. plan: measure what "
            "models are unsure of. Default: all; without a problem, plan."
        ),
    ] = None
    objective: Annotated[
        str, option("What refine, guide and genetic minimize; guide and genetic also accept pareto.")
    ] = ""
    budget: Annotated[
        str | None,
        option(
            "When to stop: 30m or 200configs; with refine also a mean regret, 2%. Default: 10m (refine,"
            " plan), 200configs (guide, genetic)."
        ),
    ] = None
    replay: Annotated[str | None, option("Use recorded measurements instead of a GPU: a database, or `shipped`.")] = (
        None
    )
    set_power_limit: Annotated[str | None, option("Power limits to set and measure at: 200W,250W.")] = None
    lock_clocks: Annotated[str | None, option("Core clocks to lock and measure at: 1200MHz,1410MHz.")] = None
    cluster: options.Cluster = None

    def request(self) -> "CollectRequest":  # type: ignore[override]
        """Convert the options to a request. Raise `UsageError` if they contradict each other."""
        from kernrec.measure.campaign.results import EFFORTS
        from kernrec.measure.problems import select_layers
        from kernrec.measure.request import CollectRequest
        from kernrec.recommender.request import SCALAR_OBJECTIVES, objective_named

        strategy, effort = self._strategy()
        if self.shape and self.workload:
            raise UsageError("--shape and --workload were both given; give only one")
        if strategy.searches and self.op and not self.shape:
            raise UsageError(f"--strategy {strategy} searches one problem: give a --shape with --op")
        usual = "energy" if strategy.searches and self.replay != "shipped" else "latency"
        objective = objective_named(self.objective or usual)
        if strategy == "refine" and objective not in SCALAR_OBJECTIVES:
            raise unknown("objective", objective, SCALAR_OBJECTIVES)
        budget, until = self._budget(strategy)
        # Read the replayed file only after all options are known to be valid.
        recording, database = replay_files(self.replay, self.db)
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
        from kernrec.measure.campaign.results import CampaignBudget

        parts = (self.budget or _BUDGETS.get(strategy, "")).split(",")
        bounds = [part for part in parts if part.strip().endswith("%")]
        amounts = [part for part in parts if part not in bounds]
        if len(bounds) > 1 or len(amounts) > 1:
            raise UsageError(
                f"--budget {self.budget!r:.60}: expected at most one time or number of configs, and at most one mean"
                " regret in %, such as 30m,2%"
            )
        if bounds and strategy != "refine":
            raise UsageError(f"--budget {bounds[0]} limits the mean regret; only --strategy refine accepts it")
        seconds, configs = quantity.budget("--budget", amounts[0]) if any(amounts) else (None, None)
        return CampaignBudget(seconds, configs), quantity.fraction("--budget", bounds[0]) if bounds else None

    def _strategy(self) -> "tuple[Strategy, str]":
        """Return the strategy, and the effort that limits the number of configs per problem."""
        from kernrec.measure.request import Strategy

        nothing = not self.op and self.shape is None and self.workload is None and self.replay is None
        name = self.strategy or ("plan" if nothing and self.cluster is None else "all")
        names = [*_EFFORTS, *(each for each in Strategy if each not in _EFFORTS)]
        if name not in names:
            raise unknown("strategy", name, names)
        for setting, strategies in _ONLY_FOR.items():
            if getattr(self, setting) and name not in strategies:
                fits = f"{', '.join(strategies[:-1])} or {strategies[-1]}"
                raise UsageError(f"--{setting} does not work with --strategy {name}; choose {fits}")
        effort = _EFFORTS.get(name)
        return (Strategy.ALL, effort) if effort else (Strategy(name), "normal")

    def points(self) -> "tuple[OperatingPoint, ...]":
        """Return the power limits and clocks to measure at. The default is the GPU's current settings."""
        from kernrec.measure.collect import operating_points

        for flag, text in (("--set-power-limit", self.set_power_limit), ("--lock-clocks", self.lock_clocks)):
            if text is not None and self.replay is not None:
                raise UsageError(f"{flag} {text} cannot be used with --replay, which uses the recorded settings")
        return operating_points(
            [quantity.watts("--set-power-limit", part) for part in (self.set_power_limit or "").split(",") if part],
            [quantity.hertz("--lock-clocks", part) for part in (self.lock_clocks or "").split(",") if part],
        )


@options.takes(CollectOptions)
def collect(wanted: CollectOptions) -> None:
    """Measure latency and energy of kernel configs on a GPU of this machine and add them to a database.

    If no problem is named, the plan of `kernrec contribute` is measured for ten minutes. To resume after an
    interruption, run the same command again: at most one config is lost. Only one campaign at a time may fill a
    database.

    Power limit and clocks are changed only by --set-power-limit and --lock-clocks. The budget applies to each setting.
    With --cluster, all GPUs of a Ray cluster measure, and --gpu is auto or the name of a GPU.
    """
    from kernrec.measure.collect import collect_at

    request, points = wanted.request(), wanted.points()
    show = partial(print_result, request=request)
    if wanted.cluster is not None:
        from kernrec.cluster.commands import collect_on
        from kernrec.cluster.ray_cluster import RayCluster

        if wanted.set_power_limit or wanted.lock_clocks:
            raise UsageError(
                "--set-power-limit and --lock-clocks set one GPU of this machine, not those of a --cluster"
            )
        request.check(many_gpus=True)
        cluster = RayCluster(wanted.cluster, request.database, request.recording is not None)
        run_measuring(lambda report, stopping: [(request.point, collect_on(cluster, request, report, stopping))], show)
    else:
        run_measuring(lambda report, stopping: collect_at(points, request, report, stopping), show)


def replay_files(replay: str | None, db: Path | None) -> tuple[Path | None, Path | None]:
    """Return (recording to replay or None, database for the measurements or None for the user's own database).

    Raise `UsageError` if --replay names a file but --db is missing.
    """
    if replay is None:
        return None, db
    if replay != _SHIPPED:
        if db is None:
            raise UsageError("--replay needs --db, so that replayed rows are not mixed with your measurements")
        return Path(replay), db
    from kernrec.measure.device.replay import DESCRIPTION, replayed_database, shipped_recording

    chosen = db or replayed_database()
    with Steps("reading the recorded space that ships"):
        file = shipped_recording()
    print_notes([f"{DESCRIPTION}; rows go to {chosen}"])
    return file, chosen


class Stop:
    """Context manager that catches the first SIGINT or SIGTERM. A call returns whether a signal has arrived."""

    _stopping = False
    status = 130
    """Exit status after the signal."""

    def __call__(self) -> bool:
        return self._stopping

    def __enter__(self) -> "Stop":
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._stopping, self.status = True, 128 + number
        for handled, handler in self._before.items():
            signal.signal(handled, handler)


def exit_early(result: "CollectResult", stop: Stop) -> None:
    """Print the reason and exit if an error or a signal ended a measurement early."""
    if result.error is not None:
        print(f"kernrec: {result.error}", file=sys.stderr)
        raise typer.Exit(1)
    if result.stopped:
        print("kernrec: interrupted; finished measurements are kept", file=sys.stderr)
        raise typer.Exit(stop.status)


def run_measuring(
    measure: "Callable[[Report, Stopping], list[tuple[OperatingPoint, CollectResult]]]",
    show: "Callable[[CollectResult], None]",
) -> None:
    """Measure at one or more power limits and clocks, show progress on standard error, and print the results.

    Exit if an error or a signal ends the last measurement early.

    Args:
        measure: Function that yields one result per power limit and clock. Its arguments are two functions: the first
            reports progress, and the second returns whether to stop.
    """
    stop = Stop()
    with stop:
        results = measure(Lines().show, stop)
    for point, result in results:
        limit = [] if point.power_limit_w is None else [f"power limit {point.power_limit_w:g} W"]
        clock = [] if point.clock_hz is None else [f"clock locked to {point.clock_hz / 1e6:g} MHz"]
        if limit or clock:
            print(", ".join(limit + clock))
        show(result)
    exit_early(result, stop)


def print_result(collected: "CollectResult", request: "CollectRequest") -> None:
    from kernrec.gpu import find_gpu
    from kernrec.measure.refine_planner import Refined
    from kernrec.measure.search_rounds import Searched

    if request.strategy in ("all", "plan"):
        print_collected(collected, request)
        return
    for gpu, outcome in collected.outcomes:
        if len(collected.outcomes) > 1:
            print_line(find_gpu(gpu).title)
        if isinstance(outcome, Searched):
            _print_searched(outcome, request.objective)
        elif isinstance(outcome, Refined):
            _print_refined(outcome, request.objective, "measured" if request.recording is None else "replayed")
    print_line(f"{collected.stored + collected.leftover} rows are new in the database")


def print_collected(collected: "CollectResult", request: "CollectRequest") -> None:
    """Print the number of measured configs, the best configs, and the failures with their reasons."""
    done = "replayed" if request.recording is not None else "measured"
    for result in collected.results:
        before = f", {result.earlier} already known" if result.earlier else ""
        name = "" if result.name == result.problem else f"{result.name}: "
        print(f"{name}{result.problem}: {result.measured} {done}{before}")
        for what, measurement, cost, unit in (
            ("fastest", result.best, "latency_s", "s"),
            ("lowest energy", result.lowest_energy, "energy_j", "J"),
        ):
            if measurement is not None:
                config = config_text(measurement.config)
                value = human(getattr(measurement, cost), unit)
                print(f"  {what}  {value:>8}  {measurement.kernel} {config}")
    failures: dict[str, tuple[int, str]] = {}
    for result in collected.results:
        for kind, count in result.failures.items():
            total, example = failures.get(kind, (0, result.examples[kind]))
            failures[kind] = (total + count, example)
    for kind, (count, example) in sorted(failures.items()):
        print(f"{count} {kind}, such as: {example}")
    left = f", {collected.leftover} of them from an interrupted earlier run" if collected.leftover else ""
    print(f"{collected.stored + collected.leftover} rows are new in {request.database}{left}")


def _print_refined(refined: "Refined", objective: str, done: str) -> None:
    from kernrec.measure.refine_planner import FORECAST_S

    print_line(f"{refined.measured} configs of {counted(refined.problems, 'problem')} {done}; {refined.ended}")
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
    print_line(f"deciding took {human(refined.deciding_s, 's')}")


def _print_searched(searched: "Searched", objective: str) -> None:
    energies = f", energy of {searched.energies}" if searched.energies else ""
    print_line(f"{searched.problem}: latency of {searched.latencies} of {searched.space} configs measured{energies}")
    if searched.best is not None and objective != "pareto":
        print_line(f"best by {objective}")
        _print_config(searched.best)
    if searched.front:
        print_line("Pareto front, fastest first")
        for config in searched.front:
            _print_config(config)


def _print_config(searched: "SearchedConfig") -> None:
    energy = "-" if searched.energy_j is None else human(searched.energy_j, "J")
    print_line(f"  {human(searched.latency_s, 's'):>8}  {energy:>8}  {searched.kernel} {config_text(searched.config)}")


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.0995 else f"{share * 100:.2g} %"
