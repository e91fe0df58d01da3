"""`kernrec recommend`: the configs to run for an op, a shape and a GPU."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kernrec.cli.choices import print_choices, print_layers
from kernrec.cli.quantity import fraction, hertz, watts
from kernrec.errors import UsageError


def recommend(
    gpu: Annotated[str, typer.Option("--gpu", help="GPU name or alias (`kernrec gpus` lists them).")],
    op: Annotated[str, typer.Option("--op", help="Operator name or alias (`kernrec ops` lists them).")] = "",
    kernel: Annotated[str | None, typer.Option(help="One kernel instead of an op: yours or the library's.")] = None,
    shape: Annotated[str | None, typer.Option(help="Dimensions, such as m=4096,n=4096,k=4096.")] = None,
    workload: Annotated[str | None, typer.Option(help="Workload set: recommend for each of its layers.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Data type of the tensors. Default: the op's first.")] = None,
    layout: Annotated[str | None, typer.Option(help="Tensor layout, such as nchw or nhwc.")] = None,
    objective: Annotated[str, typer.Option(help="What to optimize: pareto, latency, energy or edp.")] = "pareto",
    max_slowdown: Annotated[
        str | None, typer.Option(help="Most slowdown against the fastest config, such as 3%.")
    ] = None,
    max_power: Annotated[str | None, typer.Option(help="Highest mean power of a config, such as 250W.")] = None,
    power_limit: Annotated[
        str | None,
        typer.Option(
            help="Power limit that the GPU runs under, such as 300W. Default: for latency the GPU's own, else several."
        ),
    ] = None,
    clock: Annotated[str | None, typer.Option(help="Core clock that the GPU is locked to, such as 1410MHz.")] = None,
    clocks: Annotated[bool, typer.Option("--clocks", help="Also try locked core clocks.")] = False,
    top: Annotated[int, typer.Option(help="Number of configs to print at most.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    calibrated: Annotated[
        bool,
        typer.Option(
            "--calibration/--no-calibration", help="Whether to use coefficients fitted by `kernrec train --calibrate`."
        ),
    ] = True,
    emit: Annotated[
        str | None, typer.Option(help="Print the best config's source instead; the only format is cuda.")
    ] = None,
    db: Annotated[list[Path] | None, typer.Option(help="Database to read first; may be given several times.")] = None,
) -> None:
    """Recommend kernel configs for an op on a GPU, without that GPU: the latency/energy Pareto front by default.

    Where energy counts, a choice is a config and a power limit. Without --shape the best config of each layer of a
    workload set is printed, at one power limit for all.
    """
    from kernrec.recommender import Query, Recommender, Request
    from kernrec.recommender.request import objective_named

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
    if kernel and (op or workload or emit or max_slowdown or max_power or clock):
        raise UsageError(
            "--kernel goes with --shape, --dtype, --layout, --objective, --power-limit, --clocks and --top"
        )
    if clocks and clock is not None:
        raise UsageError("--clock and --clocks were both given; a locked clock is one clock, --clocks tries several")
    if clocks and not (shape or kernel):
        raise UsageError("--clocks needs a --shape; the layers of a workload are answered at one operating point")
    query = Query(
        objective=objective_named(objective),
        max_slowdown=None if max_slowdown is None else fraction("--max-slowdown", max_slowdown),
        max_power_w=None if max_power is None else watts("--max-power", max_power),
        power_limit_w=None if power_limit is None else watts("--power-limit", power_limit),
        clock_hz=None if clock is None else hertz("--clock", clock),
        top=top,
        clocks=clocks,
    )
    recommender = Recommender(databases=db, calibrated=calibrated, keep_open=True)
    request = Request(gpu, op or None, kernel, shape or {}, dtype, layout, query)
    if kernel or shape:
        answer = recommender.answer(request)
        if emit:
            from kernrec.recommender.emit import emit_cuda

            print(emit_cuda(answer.best), end="")
        elif as_json:
            print(json.dumps(answer.as_dict(), indent=2))
        else:
            print_choices(answer)
        return
    title, layers = recommender.answer_workload(request, workload)
    if as_json:
        named = [{"layer": layer.name, "count": layer.count, **layer.answer.as_dict()} for layer in layers]
        print(json.dumps({"workload": title, "layers": named}, indent=2))
    else:
        print_layers(title, layers)
