"""`kernrec collect`: measure kernel configs on a GPU and keep what was measured."""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernrec import paths
from kernrec.cli.format import config_text
from kernrec.cli.quantity import budget as parse_budget
from kernrec.cli.quantity import human
from kernrec.errors import UsageError, unknown

if TYPE_CHECKING:
    from kernrec.measure.collect import CollectRequest, CollectResult
    from kernrec.op import Problem


def collect(
    op: Annotated[str | None, typer.Option("--op", help="Operator or alias, or all (`kernrec ops`).")] = None,
    shape: Annotated[str | None, typer.Option(help="Dimensions, m=4096,n=4096,k=4096; none: a workload's.")] = None,
    workload: Annotated[str | None, typer.Option(help="Workload set whose layers to measure.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Data type of the tensors; the op's first by default.")] = None,
    layout: Annotated[str | None, typer.Option(help="Tensor layout, such as nchw or nhwc.")] = None,
    gpu: Annotated[str, typer.Option("--gpu", help="auto, all, or the index of a GPU of this machine.")] = "auto",
    budget: Annotated[str | None, typer.Option(help="When to stop: 30m, 2h or 200configs.")] = None,
    effort: Annotated[str, typer.Option(help="quick, normal or exhaustive: how many configs of a problem.")] = "normal",
    db: Annotated[Path | None, typer.Option(help="Database to fill; yours by default.")] = None,
    resume: Annotated[bool, typer.Option(help="Leave out what the database holds already.")] = True,
    device: Annotated[str, typer.Option(help="cuda, or replay: answer from recorded measurements.")] = "cuda",
    replay: Annotated[Path | None, typer.Option(help="Database whose measurements to replay.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything drawn at random.")] = 0,
) -> None:
    """Measure latency and energy of kernel configs on a GPU of this machine and add them to a database.

    Interrupted or killed, it loses at most the config in flight; run again, it goes on from there.
    """
    from kernrec.measure.campaign.results import EFFORTS, CampaignBudget
    from kernrec.measure.collect import DEVICES, CollectRequest
    from kernrec.measure.collect import collect as run

    if effort not in EFFORTS:
        raise unknown("effort", effort, EFFORTS)
    if device not in DEVICES:
        raise unknown("device", device, DEVICES)
    if shape and workload:
        raise UsageError("--shape and --workload were both given; a shape is one problem, a workload many")
    if device == "replay" and db is None:
        raise UsageError("--device replay needs --db: replayed rows do not belong among those you measured")
    if device != "replay" and replay is not None:
        raise UsageError(f"--replay {replay} goes with --device replay, and --device is {device}")
    seconds, configs = (None, None) if budget is None else parse_budget("--budget", budget)
    wanted = CollectRequest(
        problems=_problems(op, shape, workload, dtype, layout),
        database=db or paths.user_database(),
        device=device,
        gpu=gpu,
        recording=replay,
        effort=EFFORTS[effort],
        budget=CampaignBudget(seconds, configs),
        resume=resume,
        seed=seed,
    )
    stop = Stop()
    from kernrec.cli.progress import display

    with stop, display() as show:
        collected = run(wanted, show, stop)
    print_collected(collected, wanted)
    if collected.error is not None:
        print(f"kernrec: {collected.error}", file=sys.stderr)
        raise typer.Exit(1)
    if any(result.measured for result in collected.results) and not any(result.best for result in collected.results):
        print("kernrec: no config could be measured; the reasons are above", file=sys.stderr)
        raise typer.Exit(1)
    if collected.stopped:
        print("kernrec: interrupted", file=sys.stderr)
        raise typer.Exit(stop.status)


class Stop:
    """Whether somebody asked to stop; the second time asks louder, as without us. status: to exit with then."""

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[int, Any] = {}
        self.status = 130

    def __call__(self) -> bool:
        return self._asked

    def __enter__(self) -> "Stop":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._asked, self.status = True, 128 + number
        for known, handler in self._before.items():
            signal.signal(known, handler)


def _problems(
    op: str | None, shape: str | None, workload: str | None, dtype: str | None, layout: str | None
) -> "list[tuple[str, Problem]] | None":
    """(name, problem) for what was asked; None where nothing was."""
    from kernrec.kernel import kernels_for
    from kernrec.op import all_ops, find_op, parse_shape
    from kernrec.op.workload import default_workload
    from kernrec.op.workload import workload as find_workload

    if op is None and workload is None and shape is None:
        return None
    every = op is None or op == "all"
    if shape:
        if every:
            raise UsageError("--shape needs --op: the dimensions are an op's")
        problem = find_op(str(op)).problem(dtype, layout, **parse_shape(shape))
        return [(problem.key, problem)]
    chosen = find_workload(workload) if workload else None
    problems: dict[str, tuple[str, Problem]] = {}
    for definition in all_ops() if every else [find_op(str(op))]:
        # Of all ops those are meant that can be measured so; of a single one it is for others to say why it cannot.
        if every and not kernels_for(definition.name, dtype, layout):
            continue
        for layer in (chosen or default_workload(definition)).layers_of(definition, dtype, layout):
            problems.setdefault(layer.problem.key, (layer.name, layer.problem))
    if not problems:
        where = f"workload {chosen.name}" if chosen else "the standard workloads"
        raise UsageError(f"no layer of {where} is {'one that a kernel here computes' if every else f'of op {op}'}")
    return list(problems.values())


def print_collected(collected: "CollectResult", wanted: "CollectRequest") -> None:
    """What was measured or replayed, what is best, what failed and why: the answer, on standard output."""
    done = "replayed" if wanted.device == "replay" else "measured"
    for result in collected.results:
        known = f", {result.known} known before" if result.known else ""
        name = "" if result.name == result.problem else f"{result.name}: "
        print(f"{name}{result.problem}: {result.measured} {done}{known}")
        for what, row, cost, unit in (
            ("fastest", result.best, "latency_s", "s"),
            ("frugal", result.frugal, "energy_j", "J"),
        ):
            if row is not None:
                config = config_text(row["config"])
                print(f"  {what}  {human(row[cost], unit):>8}  {row['kernel']} {config}")
    failures: dict[str, tuple[int, str]] = {}
    for result in collected.results:
        for kind, count in result.failures.items():
            before, example = failures.get(kind, (0, result.examples[kind]))
            failures[kind] = (before + count, example)
    for kind, (count, example) in sorted(failures.items()):
        print(f"{count} {kind}, such as: {example}")
    left = f", {collected.leftover} of them left behind by an earlier run" if collected.leftover else ""
    print(f"{collected.stored + collected.leftover} rows are new in {wanted.database}{left}")
