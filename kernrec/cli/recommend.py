"""`kernrec recommend`: the configs to run for an op, a shape and a GPU."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec.cli.format import config_text, interval_text, occasion_text, print_notes, source_text
from kernrec.cli.quantity import fraction, hertz, human, percent, watts
from kernrec.cli.table import print_table
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.recommender import Recommendation


def recommend(
    gpu: Annotated[str, typer.Option("--gpu", help="GPU, as you call it (`kernrec gpus`).")],
    op: Annotated[str, typer.Option("--op", help="Operator: matmul, conv2d, or an alias (`kernrec ops`).")] = "",
    kernel: Annotated[
        str | None, typer.Option(help="One kernel instead, your own (`kernrec analyze`) or ours.")
    ] = None,
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
    calibrated: Annotated[
        bool, typer.Option("--calibration/--no-calibration", help="Use coefficients fitted by `train --calibrate`.")
    ] = True,
    emit: Annotated[str | None, typer.Option(help="Print the best config's source instead: cuda.")] = None,
    db: Annotated[list[Path] | None, typer.Option(help="Database to ask first; may be repeated.")] = None,
) -> None:
    """Print the latency/energy Pareto front of kernel configs for an op on a GPU, without that GPU.

    With no --shape it answers for a workload's layers, the best config of each.
    """
    from kernrec.recommender import Query, Recommender

    if not op and not kernel:
        raise UsageError("--op is missing (`kernrec ops` lists what is known); or give a --kernel")
    if emit not in (None, "cuda"):
        raise UsageError(f"--emit {emit!r}: only cuda is known")
    if shape and workload:
        raise UsageError("--shape and --workload were both given; a shape is one problem, a workload many")
    if shape is not None and not shape.strip():
        raise UsageError("--shape is empty; expected dimensions such as m=4096,n=4096,k=4096, or no --shape at all")
    if emit and as_json:
        raise UsageError("--emit and --json were both given; the source is printed as it is, without JSON")
    if emit and not (shape or kernel):
        raise UsageError("--emit cuda needs a --shape: it prints one config")
    query = Query(
        objective=objective,
        max_slowdown=None if max_slowdown is None else fraction("--max-slowdown", max_slowdown),
        max_power_w=None if max_power is None else watts("--max-power", max_power),
        power_limit_w=None if power_limit is None else watts("--power-limit", power_limit),
        clock_hz=None if clock is None else hertz("--clock", clock),
        top=top,
    )
    if kernel:
        from kernrec.cli.analyze import recommend_kernel

        if op or workload or emit or max_slowdown or max_power or clock:
            raise UsageError("--kernel goes with --shape, --dtype, --layout, --objective, --power-limit and --top")
        recommend_kernel(kernel, gpu, shape, dtype, layout, query, db, as_json, calibrated)
        return
    recommender = Recommender(databases=db, calibrated=calibrated, keep_open=True)
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
                interval_text(choice.latency_s, "s"),
                interval_text(choice.energy_j, "J"),
                human(choice.power_w, "W"),
                source_text(choice),
                choice.limit,
                percent(-choice.versus_fastest.energy_saved),
                percent(choice.versus_fastest.slowdown),
                percent(-choice.versus_occupancy.energy_saved),
                percent(choice.versus_occupancy.slowdown),
                *([occasion_text(choice)] if measured else []),
                config_text(choice.config),
            ]
        )
    print_table(title, columns, rows)
    print_notes(answer.notes)


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
                interval_text(best.latency_s, "s"),
                interval_text(best.energy_j, "J"),
                human(best.power_w, "W"),
                source_text(best),
                best.limit,
                percent(-best.versus_occupancy.energy_saved),
                *([occasion_text(best)] if measured else []),
                config_text(best.config),
            ]
        )
    print_table(title, columns, rows)
    print_notes(note for _, _, answer in layers for note in answer.notes)
