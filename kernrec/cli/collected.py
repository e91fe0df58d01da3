"""Print the result of `kernrec collect`."""

from typing import TYPE_CHECKING

from kernrec.cli.format import print_line
from kernrec.util.human import config_text, human

if TYPE_CHECKING:
    from kernrec.measure.refine_planner import Refined
    from kernrec.measure.request import CollectRequest, CollectResult
    from kernrec.measure.search_rounds import Searched, SearchedConfig

_SHOWN = 12
"""Maximum entries of a printed list."""


def print_result(collected: "CollectResult", request: "CollectRequest") -> None:
    """Print the result of a campaign with any strategy."""
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
    """Print how much was measured or replayed, the best configs, and failures with their reasons."""
    done = "replayed" if request.recording is not None else "measured"
    for result in collected.results:
        before = f", {result.earlier} known before" if result.earlier else ""
        name = "" if result.name == result.problem else f"{result.name}: "
        print(f"{name}{result.problem}: {result.measured} {done}{before}")
        for what, measurement, cost, unit in (
            ("fastest", result.best, "latency_s", "s"),
            ("lowest energy", result.lowest_energy, "energy_j", "J"),
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


def _print_refined(refined: "Refined", objective: str, done: str) -> None:
    """Print the measurements, the answers that changed, and the remaining regret."""
    from kernrec.measure.refine_planner import FORECAST_S

    plural = "" if refined.problems == 1 else "s"
    print_line(f"{refined.measured} configs of {refined.problems} problem{plural} {done}; {refined.ended}")
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
