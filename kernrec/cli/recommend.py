"""`kernrec recommend`: the configs to run for an op, a shape and a GPU."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernrec.cli.quantity import fraction, hertz, human, percent, watts
from kernrec.cli.table import print_table
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.recommender import Choice, Recommendation


def recommend(
    op: Annotated[str, typer.Option("--op", help="Operator: matmul, conv2d, or an alias (`kernrec ops`).")],
    gpu: Annotated[str, typer.Option("--gpu", help="GPU, as you call it (`kernrec gpus`).")],
    shape: Annotated[str | None, typer.Option(help="Dimensions, m=4096,n=4096,k=4096; none: a workload's.")] = None,
    workload: Annotated[str | None, typer.Option(help="Workload set to answer for, layer by layer.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Data type of the tensors; the op's first by default.")] = None,
    layout: Annotated[str | None, typer.Option(help="Tensor layout, such as nchw or nhwc.")] = None,
    objective: Annotated[str, typer.Option(help="pareto, latency, energy or edp.")] = "pareto",
    max_slowdown: Annotated[str | None, typer.Option(help="At most this much slower than the fastest: 3%.")] = None,
    max_power: Annotated[str | None, typer.Option(help="Only configs whose mean power stays below: 250W.")] = None,
    power_limit: Annotated[str | None, typer.Option(help="Power limit the GPU will run under: 300W.")] = None,
    clock: Annotated[str | None, typer.Option(help="Core clock the GPU will be locked to: 1410MHz.")] = None,
    top: Annotated[int, typer.Option(help="At most this many configs for a shape.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    emit: Annotated[str | None, typer.Option(help="Print the best config's source instead: cuda.")] = None,
    db: Annotated[list[Path] | None, typer.Option(help="Database to ask first; may be repeated.")] = None,
) -> None:
    """Print the latency/energy Pareto front of kernel configs for an op on a GPU, without that GPU.

    With no --shape it answers for a workload's layers, the best config of each.
    """
    from kernrec.recommender import Query, Recommender

    if emit not in (None, "cuda"):
        raise UsageError(f"--emit {emit!r}: only cuda is known")
    if shape and workload:
        raise UsageError("--shape and --workload were both given; a shape is one problem, a workload many")
    if emit and not shape:
        raise UsageError("--emit cuda needs a --shape: it prints one config")
    query = Query(
        objective=objective,
        max_slowdown=None if max_slowdown is None else fraction("--max-slowdown", max_slowdown),
        max_power_w=None if max_power is None else watts("--max-power", max_power),
        power_limit_w=None if power_limit is None else watts("--power-limit", power_limit),
        clock_hz=None if clock is None else hertz("--clock", clock),
        top=top,
    )
    recommender = Recommender(databases=db)
    if shape:
        answer = recommender.recommend(op, gpu, shape, dtype=dtype, layout=layout, query=query)
        if emit:
            from kernrec.recommender.emit import emit_cuda

            print(emit_cuda(answer.best), end="")
        elif as_json:
            print(json.dumps(answer.as_dict(), indent=2))
        else:
            _print_choices(answer)
        return
    title, layers = recommender.recommend_workload(op, gpu, workload, dtype=dtype, layout=layout, query=query)
    if as_json:
        named = [{"layer": name, "count": count, **answer.as_dict()} for name, count, answer in layers]
        print(json.dumps({"workload": title, "layers": named}, indent=2))
    else:
        _print_layers(title, layers)


def _note(notes: Iterable[str]) -> None:
    for note in dict.fromkeys(notes):
        print(f"note: {note}", file=sys.stderr)


def _config(config: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())


def _print_choices(answer: "Recommendation") -> None:
    limit = human(answer.power_limit_w, "W")
    title = f"{answer.problem.key} on {answer.gpu.title}, objective {answer.objective}, power limit {limit}"
    measured = any(choice.sessions for choice in answer.choices)
    columns = [
        ("rank", "right"),
        ("kernel", "left"),
        ("grid x block", "right"),
        ("latency (90 %)", "right"),
        ("energy (90 %)", "right"),
        ("power", "right"),
        ("source", "left"),
        ("limit", "left"),
        ("energy vs fastest", "right"),
        ("time vs fastest", "right"),
        ("energy vs occupancy", "right"),
        ("time vs occupancy", "right"),
        *([("measured", "left")] if measured else []),
        ("config", "left"),
    ]
    rows = []
    for choice in answer.choices:
        first = choice.launches[0]
        rows.append(
            [
                str(choice.place),
                choice.kernel.name,
                f"{first.blocks} x {first.threads}",
                _interval(choice.latency_s, "s"),
                _interval(choice.energy_j, "J"),
                human(choice.power_w, "W"),
                _source(choice),
                choice.limit,
                percent(-choice.versus_fastest.energy_saved),
                percent(choice.versus_fastest.slowdown),
                percent(-choice.versus_occupancy.energy_saved),
                percent(choice.versus_occupancy.slowdown),
                *([_occasion(choice)] if measured else []),
                _config(choice.config),
            ]
        )
    print_table(title, columns, rows)
    _note(answer.notes)


def _source(choice: "Choice") -> str:
    if choice.energy_j.source == choice.source:
        return choice.source
    return f"{choice.source}, energy {choice.energy_j.source}"


def _occasion(choice: "Choice") -> str:
    """Where, how often and when a choice was measured; nothing for another."""
    if not choice.sessions or choice.measured_at is None:
        return ""
    sessions = "1 session" if choice.sessions == 1 else f"{choice.sessions} sessions, last"
    device = "" if choice.device is None else f"{choice.device}, "
    return f"{device}{sessions} {choice.measured_at[:10]}"


def _interval(cost: Any, unit: str) -> str:
    low, high = human(cost.low, unit).split(" ")[0], human(cost.high, unit)
    if human(cost.low, unit).split(" ")[1] != high.split(" ")[1]:
        low = human(cost.low, unit)
    return f"{human(cost.value, unit)} ({low} to {high})"


def _print_layers(title: str, layers: list[tuple[str, int, "Recommendation"]]) -> None:
    first = layers[0][2]
    title = f"{title} on {first.gpu.title}, objective {first.objective}: the first choice of each layer"
    measured = any(answer.best.sessions for _, _, answer in layers)
    columns = [
        ("layer", "left"),
        ("count", "right"),
        ("kernel", "left"),
        ("latency (90 %)", "right"),
        ("energy (90 %)", "right"),
        ("power", "right"),
        ("source", "left"),
        ("limit", "left"),
        ("energy vs occupancy", "right"),
        *([("measured", "left")] if measured else []),
        ("config", "left"),
    ]
    rows = []
    for name, count, answer in layers:
        best = answer.best
        rows.append(
            [
                name,
                str(count),
                best.kernel.name,
                _interval(best.latency_s, "s"),
                _interval(best.energy_j, "J"),
                human(best.power_w, "W"),
                _source(best),
                best.limit,
                percent(-best.versus_occupancy.energy_saved),
                *([_occasion(best)] if measured else []),
                _config(best.config),
            ]
        )
    print_table(title, columns, rows)
    _note(note for _, _, answer in layers for note in answer.notes)
