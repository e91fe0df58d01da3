"""`kernrec recommend`: the configs to run for an op, a shape and a GPU, or for all layers of a network."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kernrec import paths
from kernrec.cli import options
from kernrec.cli.emitted import EmitFormat, Output, emitted_format, write_emitted
from kernrec.cli.output import AsCsv, AsJson, AsMarkdown, AsWide, Form, form_of, print_csv, print_json
from kernrec.cli.quantity import fraction, hertz, watts
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.recommender import Query, Recommendation, Recommender
    from kernrec.recommender.bill import Tariff
    from kernrec.recommender.network import NetworkRequest

SWEEP = "sweep"
"""The value of `--power-limit` and `--clock` that asks for all of them."""


def recommend(
    gpu: Annotated[str, typer.Option("--gpu", help="GPU name or alias (`kernrec gpus` lists them), or several: a,b.")],
    op: options.Op = "",
    kernel: Annotated[str | None, typer.Option(help="One kernel instead of an op: yours or the library's.")] = None,
    shape: options.Shapes = None,
    workload: options.WorkloadName = None,
    fix: options.Fix = None,
    dtype: options.Dtype = None,
    layout: options.Layout = None,
    objective: options.Objective = "pareto",
    max_slowdown: options.MaxSlowdown = None,
    max_power: options.MaxPower = None,
    power_limit: Annotated[
        str | None,
        typer.Option(
            help="Power limit that the GPU runs under, such as 300W; `sweep` for a network at all of them."
            " Default: for latency and for networks the GPU's own, else several."
        ),
    ] = None,
    clock: Annotated[
        str | None,
        typer.Option(help="Core clock that the GPU is locked to, such as 1410MHz; `sweep` for a network at several."),
    ] = None,
    clocks: Annotated[bool, typer.Option("--clocks", help="Also try locked core clocks.")] = False,
    inputs: options.Inputs = "random",
    top: Annotated[int, typer.Option(help="Number of configs to print at most.")] = 5,
    energy_price: options.EnergyPrice = None,
    carbon: options.Carbon = None,
    calls: options.Calls = None,
    wide: AsWide = False,
    as_csv: AsCsv = False,
    as_json: AsJson = False,
    markdown: AsMarkdown = False,
    calibrated: Annotated[
        bool,
        typer.Option(
            "--calibration/--no-calibration", help="Whether to use coefficients fitted by `kernrec train --calibrate`."
        ),
    ] = True,
    emit: EmitFormat = None,
    output: Output = None,
    db: options.Databases = None,
    query_log: Annotated[
        Path | None,
        typer.Option(help="JSON lines file to add the query to, for `refine --workload`. Default: KERNREC_QUERY_LOG."),
    ] = None,
) -> None:
    """Recommend kernel configs and power limits for an op or a network on a GPU, without that GPU.

    The default is the Pareto front of latency and energy.

    Where energy counts, a choice is a config and a power limit. With --workload every layer of a network is answered
    at one power limit for all, with totals; without --shape and --workload the layers of the op's own workload.
    `--power-limit sweep` shows which power limit to set, --calls what a year costs and saves in kWh, money and CO2.
    """
    from kernrec.recommender import Query, Recommender
    from kernrec.recommender.compare_gpus import find_gpus
    from kernrec.recommender.network import NetworkRequest, shapes_as_network
    from kernrec.recommender.request import objective_named

    emitted = emitted_format(emit, output)
    form = form_of(wide, as_csv, as_json, markdown)
    swept = _swept(power_limit, clock)
    billed = options.tariff(energy_price, carbon, calls)
    refused = {
        "--op is missing (`kernrec ops` lists what is known); or give a --kernel or a --workload": not (
            op or kernel or workload
        ),
        "--fix is for the open dimensions of an .onnx --workload": fix and not workload,
        "--shape and --workload were both given; a shape is one problem, a workload many": shape and workload,
        "--shape is empty; expected dimensions such as m=4096,n=4096,k=4096, or no --shape at all": any(
            not given.strip() for given in shape or ()
        ),
        f"--emit and --{form} were both given; what is emitted is written as it is": emitted and form is not Form.TABLE,
        f"--emit {emit} needs a --shape: it is of one config": emitted and not (emitted.many or shape or kernel),
        "--kernel goes with --shape, --dtype, --layout, --objective, --power-limit, --clocks and --top": kernel
        and (op or workload or max_slowdown or max_power or clock),
        "--clock and --clocks were both given; a locked clock is one clock, --clocks tries several": clocks
        and clock is not None,
        "--clocks needs a --shape; --clock sweep tries several for a network": clocks and not (shape or kernel),
        "a sweep is over an op or a network, without --emit; --kernel tries power limits by itself": swept
        and (kernel or emitted),
        "--emit and --calls were both given; a bill is printed, a config is written": emitted and billed,
    }
    for message, applies in refused.items():
        if applies:
            raise UsageError(message)
    query = Query(
        objective=objective_named(objective),
        max_slowdown=None if max_slowdown is None else fraction("--max-slowdown", max_slowdown),
        max_power_w=None if max_power is None else watts("--max-power", max_power),
        power_limit_w=None if power_limit in (None, SWEEP) else watts("--power-limit", str(power_limit)),
        clock_hz=None if clock in (None, SWEEP) else hertz("--clock", str(clock)),
        top=top,
        clocks=clocks,
        inputs=inputs,
    )
    recommender = Recommender(databases=db, calibrated=calibrated, keep_open=True)
    if emitted and emitted.compiled:
        from kernrec.compile.triton_version import has_triton

        recommender.context.triton = has_triton()
    names = [card.name for card in find_gpus(gpu)]
    if (kernel or shape) and not swept and billed is None:
        from kernrec.recommender import Request

        shapes: list[str] = shape or [""]
        requests = [
            Request(name, op or None, kernel, given or {}, dtype, layout, query) for name in names for given in shapes
        ]
        if emitted and (len(names) > 1 or (len(shapes) > 1 and not emitted.many)):
            raise UsageError(f"--emit {emit} is of one config: give one GPU and one shape")
        every = False
        if emitted and kernel and not shape:
            from kernrec.emit.expert_configs import of_every_call

            every = of_every_call(emitted.name, emitted.detail)
        answers = [a for r in requests for a in (recommender.answer_calls(r) if every else [recommender.answer(r)])]
        if (log := query_log or paths.query_log()) is not None:
            from kernrec.interop.query_log import append_query

            for answer in answers:
                append_query(log, answer.problem)
        if emitted:
            write_emitted(answers, emitted, output)
        elif form is Form.JSON:
            objects = [_with_regret(recommender, answer) for answer in answers]
            print_json(objects[0] if len(objects) == 1 else objects)
        else:
            _print_answers(answers, form)
        return
    wanted = [NetworkRequest(workload, op or None, dtype, layout, options.fixed(fix))]
    if shape:
        wanted = [NetworkRequest(shapes_as_network(op, shape, dtype, layout), None, dtype)]
    if op == "all" and workload is None and not shape:
        from kernrec.op import all_ops

        wanted = [NetworkRequest(None, known.name, dtype, layout) for known in all_ops()]
    if emitted:
        if len(names) > 1:
            raise UsageError(f"--emit {emit} is for one GPU: give one")
        from kernrec.recommender.network import answer_network

        network = [answer_network(recommender, names[0], request, query) for request in wanted]
        write_emitted([layer.answer for answer in network for layer in answer.layers], emitted, output)
        return
    _print_networks(recommender, names, wanted, query, (swept, billed, form))


def _with_regret(recommender: "Recommender", answer: "Recommendation") -> dict[str, Any]:
    """An answer for JSON, with the expected regret of each objective; contenders are at the first operating point."""
    regrets = {str(regret.objective): regret.as_dict() for regret in recommender.regrets(answer)}
    return answer.as_dict() | {"regret": regrets}


def _swept(power_limit: str | None, clock: str | None) -> Literal["power limit", "clock"] | None:
    if power_limit == SWEEP and clock is not None:
        raise UsageError("--power-limit sweep goes without --clock; --clock sweep takes one --power-limit")
    return "power limit" if power_limit == SWEEP else "clock" if clock == SWEEP else None


def _print_answers(answers: "list[Recommendation]", form: Form) -> None:
    from kernrec.cli.choices import csv_rows, print_choices

    if form is Form.CSV:
        print_csv([row for answer in answers for row in csv_rows(answer)])
    else:
        for number, answer in enumerate(answers):
            if number:
                print()
            print_choices(answer, form)


def _print_networks(
    recommender: "Recommender",
    gpus: list[str],
    wanted: "list[NetworkRequest]",
    query: "Query",
    shown: "tuple[Literal['power limit', 'clock'] | None, Tariff | None, Form]",
) -> None:
    from kernrec.cli.network_tables import network_csv, network_json, print_network, print_sweep
    from kernrec.recommender.bill import bills
    from kernrec.recommender.network import answer_network

    swept, billed, form = shown
    objects: list[dict[str, object]] = []
    rows: list[dict[str, object]] = []
    for number, (gpu, request) in enumerate((gpu, request) for gpu in gpus for request in wanted):
        answer = answer_network(recommender, gpu, request, query)
        sweep = None
        if swept:
            from kernrec.recommender.network_sweep import sweep_network

            sweep = sweep_network(recommender, answer, swept, query.power_limit_w)
        year = bills(sweep.billed if sweep else answer.totals, billed) if billed else []
        if form is Form.JSON:
            objects.append(network_json(recommender, answer, sweep, year))
            continue
        if form is Form.CSV:
            rows += network_csv(answer, sweep)
            continue
        if number:
            print()
        if sweep:
            print_sweep(sweep, form, year)
        else:
            print_network(answer, form, year)
    if form is Form.JSON:
        print_json(objects[0] if len(objects) == 1 else objects)
    elif form is Form.CSV:
        print_csv(rows)
