"""`kernrec explain`: show the bottleneck of a config, and which changes would reduce its time or energy."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kernrec.cli import options
from kernrec.cli.options import SELECTION, argument, option
from kernrec.cli.output import (
    AsJson,
    NotePrinter,
    measurement_text,
    print_json,
    print_line,
    print_table,
    source_text,
)
from kernrec.cli.quantity import percent
from kernrec.errors import UsageError
from kernrec.util.human import config_text, counted, human

if TYPE_CHECKING:
    from kernrec.recommender.explain.breakdown import Explanation
    from kernrec.recommender.explain.report import Change

_SHARE_SHOWN = 0.02
_FIGURES = {"DRAM traffic": "B", "L2 traffic": "B", "energy": "J", "time": "s", "power": "W"}
_SHARES = ("occupancy", "tail-wave utilization")
_PRIOR = (("latency_s", "s"), ("energy_j", "J"), ("power_w", "W"))


class ExplainOptions(options.Options):
    databases_used = options.SEVERAL
    source: Annotated[Path | None, argument("A .cu file that launches its kernel; kernel.cu:name selects one.")] = None
    arguments: Annotated[
        list[str] | None, argument("Values that the file does not state: n=4096, x=f32\\[n].", "NAME=VALUE")
    ] = None
    gpu: options.Gpu = ""
    op: options.Op = ""
    kernel: options.Kernel = None
    shape: options.Shape = None
    dtype: options.Dtype = None
    layout: options.Layout = None
    l2: options.L2 = "cold"
    config: Annotated[
        str | None, option("Tunables of the config to explain: block_m=128,stages=3.", panel=SELECTION)
    ] = None
    against: Annotated[str | None, option("Tunables of another config to compare with.", panel=SELECTION)] = None
    objective: Annotated[str, option("latency, energy or edp.", panel=SELECTION)] = "latency"
    power_limit: options.PowerLimit = None
    clock: options.Clock = None
    grid: Annotated[str | None, option('Grid size of the file\'s kernel: "ceil(n/256)".', panel=options.PROBLEM)] = None
    block: Annotated[str | None, option("Block size of the file's kernel: 32x8.", panel=options.PROBLEM)] = None
    as_json: AsJson = False


@options.takes(ExplainOptions)
def explain(wanted: ExplainOptions) -> None:
    """Show the bottleneck of a config, where its time and energy go, and which change should gain most.

    Without --config, the recommended config is explained. --against compares the config with another one. To see the
    roofline, all candidates and the energy of each component as charts, use `kernrec explore`.
    """
    if not wanted.gpu:
        raise UsageError("--gpu is missing (`kernrec list gpus` lists them)")
    if wanted.source is not None:
        _explain_source(wanted, wanted.source)
        return
    if wanted.grid or wanted.block:
        raise UsageError("--grid and --block need a .cu file; for a library kernel, --config sets the block")
    from kernrec.recommender.context import Context
    from kernrec.recommender.explain.report import report, tunables_of

    if bool(wanted.op) == bool(wanted.kernel):
        raise UsageError("give either --op or --kernel")
    request, tunables = wanted.request(wanted.shape), tunables_of("--config", wanted.config)
    other = None if wanted.against is None else tunables_of("--against", wanted.against)
    answer = report(request, Context(wanted.databases), tunables, other)
    if wanted.as_json:
        print_json(answer.as_dict())
        return
    _print(answer.subject)
    if answer.other is not None:
        _print_difference(answer.subject, answer.other, answer.difference)
    _print_changes(answer.changes, wanted.objective, answer.what_to_do)
    NotePrinter(why=True).print(answer.notes)


def _explain_source(wanted: ExplainOptions, source: Path) -> None:
    from kernrec.checking.analyze_source import explain_source
    from kernrec.cli.check import with_entry
    from kernrec.gpu import find_gpu
    from kernrec.interop.spec_text import LaunchWords
    from kernrec.kernel.source_files import compile_flags
    from kernrec.recommender.request import Query, objective_named

    named = ("op", "kernel", "shape", "dtype", "layout", "config", "against", "power_limit", "clock")
    if used := [name for name in named if getattr(wanted, name)]:
        if "=" in str(source):
            raise UsageError(f"unexpected argument '{source}'; a shape is one option, such as --shape m=64,n=64,k=64")
        option_name = used[0].replace("_", "-")
        raise UsageError(f"--{option_name} and {source} were both given; the file already defines the launch")
    path, entry = with_entry(source)
    if path.is_dir():
        raise UsageError(
            f"{path} is a folder; explain takes a .cu file (for captured calls: kernrec analyze {path} --gpu"
            f" {wanted.gpu})"
        )
    database = wanted.database
    words = LaunchWords(entry, wanted.grid, wanted.block, wanted.arguments or (), **vars(compile_flags(path, (), ())))
    query = Query(objective_named(wanted.objective), l2=wanted.l2)
    answer = explain_source(path, words, find_gpu(wanted.gpu), database, query)
    if wanted.as_json:
        lines = [advice.as_dict() for advice in answer.advice]
        print_json({**answer.report.as_dict(), "lines": lines, "what_to_do": answer.what_to_do})
        return
    _print(answer.report.subject)
    print()
    print_line(f"what to do: {answer.what_to_do}")
    for advice in answer.advice[1:]:
        print_line(advice.sentence)
    NotePrinter(why=True).print([*answer.notes, *answer.report.notes])


def _print(subject: "Explanation") -> None:
    from kernrec.kernel.expression import as_in_source
    from kernrec.recommender.tabular import interval_text

    recommendation = subject.recommendation
    locked = (
        ""
        if recommendation.point.clock_hz is None
        else f", clock locked at {human(recommendation.point.clock_hz, 'Hz')}"
    )
    print_line(
        f"{recommendation.kernel.name} {recommendation.problem.title} on {recommendation.gpu.title},"
        f" {recommendation.power_limit_w:g} W{locked}"
    )
    print_line(f"  {config_text(recommendation.config)}")
    print_line(
        f"  {source_text(recommendation)}: {interval_text(recommendation.latency_s, 's')},"
        f" {interval_text(recommendation.energy_j, 'J')},"
        f" {human(recommendation.power_w, 'W')}"
        + (f" ({measurement_text(recommendation)})" if recommendation.measurement else "")
    )
    if recommendation.latency_s.value != subject.analytical["latency_s"]:
        latency, energy, power = (human(subject.analytical[name], unit) for name, unit in _PRIOR)
        print_line(f"  analytical model only: {latency}, {energy}, {power}")
    print_line(f"  bottleneck: {recommendation.bottleneck}; expected core clock {human(recommendation.clock_hz, 'Hz')}")
    for launch in subject.launches:
        print()
        print_line(f"{launch.entry}: {counted(launch.blocks, 'block')} of {launch.threads} threads")
        print_line(
            f"  occupancy {launch.occupancy * 100:.0f} %: {counted(launch.resident_blocks, 'block')} per SM, limited by"
            f" {launch.capped_by} ({launch.registers} registers per thread, {launch.shared_bytes} B shared per block)"
        )
        print_line(f"  waves {launch.waves:.3g}; tail-wave utilization {launch.tail * 100:.0f} %")
        times = sorted(launch.time_s.items(), key=lambda item: -item[1])
        print_line(
            "  time: " + ", ".join(f"{name} {human(seconds, 's')}" for name, seconds in times[:5] if seconds > 0)
        )
        if launch.in_turn_s > _SHARE_SHOWN * sum(longest for _, longest in times[:1]):
            print_line(
                f"  not overlapped: {human(launch.in_turn_s, 's')}, in which a block waits or uses one pipe and no"
                " other block keeps the SM busy"
            )
        mix = [f"{name} {share * 100:.0f} %" for name, share in launch.mix.items() if share >= _SHARE_SHOWN]
        print_line("  instructions: " + ", ".join(mix))
        for access in launch.accesses:
            print_line(
                f"  {as_in_source(access.buffer)} {access.what}: {access.sectors_per_request:.3g} sectors per request,"
                f" {access.useful * 100:.0f} % of their bytes used"
            )
        if any(name.endswith("shared") for name in launch.mix):
            print_line(f"  shared memory: {launch.conflicts:.2f}x the ideal number of wavefronts (bank conflicts)")
    roof = subject.roofline
    operations = "counted operations" if roof.counted else "operations"
    print()
    if roof.flops and roof.dram_bytes < 1.0:
        reached, peak = roof.achieved_flops / 1e12, roof.peak_flops / 1e12
        print_line(f"roofline: all data in L2; {reached:.3g} of {peak:.3g} TFLOP/s attainable")
    elif roof.flops:
        print_line(
            f"roofline: {roof.intensity:.3g} {operations} per byte of DRAM traffic (ridge {roof.ridge:.3g}):"
            f" {roof.achieved_flops / 1e12:.3g} of {roof.attainable_flops / 1e12:.3g} TFLOP/s attainable"
        )
    else:
        moved, most = human(roof.dram_bytes / recommendation.latency_s.value, "B/s"), human(roof.bandwidth, "B/s")
        print_line(f"roofline: no floating-point operations; {moved} of DRAM's {most}")
    whole = sum(subject.energy_j.values())
    parts = sorted(subject.energy_j.items(), key=lambda item: -item[1])
    print_line("energy: " + ", ".join(f"{name} {joules / whole * 100:.0f} %" for name, joules in parts if joules > 0))


def _print_difference(subject: "Explanation", other: "Explanation", changes: dict[str, float]) -> None:
    rows = []
    for name, value in other.figures.items():
        rows.append([name, _figure(name, value), _figure(name, subject.figures[name]), percent(changes[name])])
    for name, joules in other.energy_j.items():
        now = subject.energy_j.get(name, 0.0)
        change = percent(now / joules - 1) if joules else ""
        rows.append([f"energy of {name}", human(joules, "J"), human(now, "J"), change])
    print()
    names = ("", "against", "config", "change")
    print_table(f"against {config_text(other.recommendation.config)}", names, rows)


def _figure(name: str, value: float) -> str:
    if name in _FIGURES:
        return human(value, _FIGURES[name])
    return f"{value * 100:.0f} %" if name in _SHARES else f"{value:.4g}"


def _print_changes(changes: "Sequence[Change]", objective: str, advice: str) -> None:
    print()
    if not changes:
        print_line(f"no change of one or two tunables, or of the power limit, is expected to reduce {objective}")
    else:
        print_line(f"changes by expected reduction of {objective}:")
    for change in changes:
        shown = [f"{name} {percent(value)}" for name, value in change.changes.items()]
        verb = "measured" if change.source == "measured" else "expected"
        print_line(
            f"  {change.what}: "
            + ", ".join([*shown, f"{verb} energy {percent(change.energy)}, time {percent(change.time)}"])
        )
    print()
    print_line(f"what to do: {advice}")
