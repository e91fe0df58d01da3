"""`kernrec recommend`: the configs to run for an op, a shape and a GPU, or for all layers of a network."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kernrec import paths
from kernrec.cli import options
from kernrec.cli.emitted import (
    CudaOnly,
    EmitFormat,
    Output,
    PtxIsa,
    UntrustedSource,
    emitted_format,
    write_emitted,
)
from kernrec.cli.options import SWEEP
from kernrec.cli.output import Form, print_csv, print_json
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.emit.formats import Format
    from kernrec.recommender import Recommendation, Recommender


class RecommendOptions(options.Options):
    """The options of `kernrec recommend`."""

    sweeps = True
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu", callback=options.card, help="GPU by name (`kernrec gpus`), a card's .toml, or several: a,b."
        ),
    ]
    op: options.Op = ""
    kernel: options.Kernel = None
    shape: options.Shapes = None
    workload: options.WorkloadName = None
    fix: options.Fix = None
    batch: options.Batch = None
    tp: options.TensorParallel = 1
    context: options.Context = None
    phase: options.Phase = None
    ignore_memory: options.IgnoreMemory = False
    layers: Annotated[
        str | None, typer.Option(help="Layers of a network to print: `all`, or how many. Default: those that matter.")
    ] = None
    dtype: options.Dtype = None
    layout: options.Layout = None
    objective: options.Objective = "pareto"
    max_slowdown: options.MaxSlowdown = None
    max_power: options.MaxPower = None
    power_limit: Annotated[
        str | None,
        typer.Option(
            help="Power limit that the GPU runs under, such as 300W; `sweep` for a network at all of them."
            " Default: for latency and for networks the GPU's own, else several."
        ),
    ] = None
    clock: Annotated[
        str | None,
        typer.Option(help="Core clock that the GPU is locked to, such as 1410MHz; `sweep` for a network at several."),
    ] = None
    clocks: options.Clocks = False
    inputs: options.Inputs = "random"
    top: options.Top = 5
    backend: options.Backends = None
    estimated_by: options.Source = None
    billed: options.Billed
    printed: options.Printed
    uncalibrated: Annotated[
        bool, typer.Option("--no-calibration", help="Leave out what `kernrec train --calibrate` fitted.")
    ] = False
    emit: EmitFormat = None
    output: Output = None
    ptx_isa: PtxIsa = None
    untrusted_source: UntrustedSource = False
    cuda_only: CudaOnly = False
    db: options.Databases = None
    query_log: Annotated[
        Path | None,
        typer.Option(help="JSON lines file to add the query to, for `collect --workload`. Default: KERNREC_QUERY_LOG."),
    ] = None

    @property
    def most_layers(self) -> int | None:
        """The number of layers to print; None for those that matter."""
        if self.layers is None:
            return None
        if self.layers == "all":
            return sys.maxsize
        if not (self.layers.isascii() and self.layers.isdigit() and int(self.layers) > 0):
            raise UsageError(f"--layers {self.layers!r:.20}: `all` or a number from 1 is accepted")
        return int(self.layers)

    @property
    def swept(self) -> Literal["power limit", "clock"] | None:
        """The quantity that a network is swept over."""
        if self.power_limit == SWEEP and self.clock is not None:
            raise UsageError("--power-limit sweep goes without --clock; --clock sweep takes one --power-limit")
        return "power limit" if self.power_limit == SWEEP else "clock" if self.clock == SWEEP else None


@options.takes(RecommendOptions)
def recommend(wanted: RecommendOptions) -> None:
    """Recommend kernel configs and power limits for an op or a network on a GPU, without that GPU.

    The default is the Pareto front of latency and energy.

    Where energy counts, a choice is a config and a power limit. With --workload every layer of a network is answered
    at one power limit for all, with totals; without --shape and --workload the layers of the op's own workload.
    Several GPUs or batches make one table. `--power-limit sweep` shows which power limit to set, --gpus and --calls
    what a year costs in kWh, money and CO2.
    """
    from kernrec.gpu import find_gpus
    from kernrec.recommender import Recommender

    emitted = emitted_format(wanted.emit, wanted.output, wanted.ptx_isa)
    _refuse_contradictions(wanted, emitted)
    _, _ = wanted.query, wanted.most_layers  # misuse is reported before a database is opened
    recommender = Recommender(databases=wanted.db, calibrated=not wanted.uncalibrated, keep_open=True)
    recommender.context.triton = not wanted.cuda_only
    names = [card.name for card in find_gpus(wanted.gpu)]
    if (wanted.kernel or wanted.shape) and not wanted.swept and wanted.billed.tariff is None:
        _answer_shapes(recommender, names, wanted, emitted)
    else:
        _answer_networks(recommender, names, wanted, emitted)


def _refuse_contradictions(wanted: RecommendOptions, emitted: "Format | None") -> None:
    shape, form, swept = wanted.shape, wanted.printed.form, wanted.swept
    refused = {
        "--op is missing (`kernrec ops` lists what is known); or give a --kernel or a --workload": not (
            wanted.op or wanted.kernel or wanted.workload
        ),
        "--batch, --tp, --context and --phase are for networks; a --shape states its own sizes": (
            wanted.batch is not None or wanted.tp != 1 or wanted.context is not None or wanted.phase is not None
        )
        and (shape or wanted.kernel),
        "--context and --phase are for a --workload": (wanted.context is not None or wanted.phase is not None)
        and not wanted.workload,
        f"--backend {wanted.whose} is for networks; a --shape shows kernrec's kernels beside all backends": wanted.whose
        and (shape or wanted.kernel),
        "--layers is for networks": wanted.layers is not None and (shape or wanted.kernel),
        "--fix is for the open dimensions of an .onnx --workload": wanted.fix and not wanted.workload,
        "--shape and --workload were both given; a shape is one problem, a workload many": shape and wanted.workload,
        "--shape is empty; expected dimensions such as m=4096,n=4096,k=4096, or no --shape at all": any(
            not text.strip() for text in shape or ()
        ),
        f"--emit and --{form} were both given; what is emitted is written as it is": emitted and form is not Form.TABLE,
        f"--emit {wanted.emit} needs a --shape: it writes one config": emitted
        and not (emitted.many or emitted.writes_folder(wanted.output) or shape or wanted.kernel),
        "--kernel goes with --shape, --dtype, --layout, --objective, --power-limit, --clocks and --top": wanted.kernel
        and (wanted.op or wanted.workload or wanted.max_slowdown or wanted.max_power or wanted.clock),
        "--clock and --clocks were both given; a locked clock is one clock, --clocks tries several": wanted.clocks
        and wanted.clock is not None,
        "--clocks needs a --shape; --clock sweep tries several for a network": wanted.clocks
        and not (shape or wanted.kernel),
        "a sweep is over an op or a network, without --emit; --kernel tries power limits by itself": swept
        and (wanted.kernel or emitted),
        "--emit and a bill were both asked for; a bill is printed, a config is written": wanted.billed.tariff
        and emitted,
    }
    for message, applies in refused.items():
        if applies:
            raise UsageError(message)


def _answer_shapes(
    recommender: "Recommender", gpus: Sequence[str], wanted: RecommendOptions, emitted: "Format | None"
) -> None:
    """Prints or emits the choices for each shape on each GPU, of one kernel or of all kernels of the op."""
    shapes, kernel = wanted.shape or [""], wanted.kernel
    one_config = emitted and not (emitted.many or emitted.writes_folder(wanted.output))
    if emitted and (len(gpus) > 1 or (len(shapes) > 1 and one_config)):
        raise UsageError(f"--emit {wanted.emit} writes one config: give one GPU and one shape")
    requests = [wanted.request(shape, gpu) for gpu in gpus for shape in shapes]
    every_call = False
    if emitted and kernel and not wanted.shape:
        from kernrec.emit.expert_configs import of_every_call

        every_call = of_every_call(emitted.name, emitted.detail)
    answers: list[Recommendation] = []
    for request in requests:
        answers += recommender.answer_calls(request) if every_call else [recommender.answer(request)]
    if (log := wanted.query_log or paths.query_log()) is not None:
        from kernrec.interop.query_log import append_query

        for answer in answers:
            append_query(log, answer.problem)
    form = wanted.printed.form
    if emitted:
        write_emitted(answers, emitted, wanted.output, wanted.ptx_isa, untrusted=wanted.untrusted_source)
    elif form is Form.JSON:
        _print_objects([_with_regret(recommender, answer) for answer in answers])
    else:
        from kernrec.cli.choices import print_choices

        if form is Form.CSV:
            from kernrec.recommender.tabular import plain_rows

            print_csv([row for answer in answers for row in plain_rows(answer)])
            return
        noted: set[str] = set()
        for number, answer in enumerate(answers):
            if number:
                print()
            print_choices(answer, form, noted)


def _with_regret(recommender: "Recommender", answer: "Recommendation") -> dict[str, Any]:
    """An answer for JSON, with the expected regret of each objective; contenders are at the first operating point."""
    regrets = {str(regret.objective): regret.as_dict() for regret in recommender.regrets(answer)}
    return answer.as_dict() | {"regret": regrets}


def _print_objects(objects: Sequence[dict[str, Any]]) -> None:
    """Prints one answer as a JSON object, several as a list."""
    print_json(objects[0] if len(objects) == 1 else objects)


def _answer_networks(
    recommender: "Recommender", gpus: Sequence[str], wanted: RecommendOptions, emitted: "Format | None"
) -> None:
    """Prints or emits the choices for the layers of each network on each GPU, or of all shapes together."""
    from kernrec.cli.format import print_notes
    from kernrec.cli.network_tables import network_csv, network_json, print_network, print_sweep
    from kernrec.recommender.bill import bills
    from kernrec.recommender.network import answer_network
    from kernrec.recommender.network_memory import DoesNotFitError

    shapes, query = wanted.shape or [], wanted.query
    networks = [wanted.network(shapes)]
    if wanted.op == "all" and wanted.workload is None and not shapes:
        from kernrec.op import all_ops

        networks = [replace(networks[0], op=op.name) for op in all_ops()]
    if emitted:
        if len(gpus) > 1:
            raise UsageError(f"--emit {wanted.emit} is for one GPU: give one")
        answers = [answer_network(recommender, gpus[0], request, query) for request in networks]
        layers = [layer.answer for answer in answers for layer in answer.layers if layer.best is not None]
        write_emitted(layers, emitted, wanted.output, wanted.ptx_isa, untrusted=wanted.untrusted_source)
        return
    form, swept, tariff, batches = wanted.printed.form, wanted.swept, wanted.billed.tariff, wanted.batches
    several = len(gpus) > 1 or len(batches) > 1
    if several and wanted.workload and not swept and wanted.layers is None:
        _compare(recommender, gpus, wanted)
        return
    objects: list[dict[str, object]] = []
    rows: list[dict[str, object]] = []
    noted: set[str] = set()
    requests = [replace(request, batch=batch) for request in networks for batch in batches] or networks
    unfit: list[DoesNotFitError] = []
    for number, (gpu, request) in enumerate((gpu, request) for gpu in gpus for request in requests):
        try:
            answer = answer_network(recommender, gpu, request, query)
        except DoesNotFitError as error:
            unfit.append(error)
            continue
        sweep = None
        if swept:
            from kernrec.recommender.network_sweep import sweep_network

            sweep = sweep_network(recommender, answer, swept, query.power_limit_w)
        year = []
        if tariff:
            totals, reference = answer.distinct_totals, answer.today or answer.totals[0]
            if sweep:
                totals = sweep.billed
                reference = totals[-1]
            year = bills(totals, tariff, reference, answer.tp)
        if form is Form.JSON:
            objects.append(network_json(recommender, answer, sweep, year))
            continue
        if form is Form.CSV:
            rows += network_csv(answer, sweep)
            continue
        if number:
            print()
        if sweep:
            print_sweep(sweep, form, year, noted)
        else:
            print_network(answer, form, year, wanted.most_layers, noted)
    if len(unfit) == len(gpus) * len(requests):
        raise unfit[0]
    if form is Form.JSON:
        _print_objects(objects)
    elif form is Form.CSV:
        print_csv(rows)
    print_notes(str(error) for error in unfit)


def _compare(recommender: "Recommender", gpus: Sequence[str], wanted: RecommendOptions) -> None:
    """Prints a row for each GPU and batch."""
    from kernrec.cli.network_tables import print_comparison
    from kernrec.gpu import find_gpu
    from kernrec.recommender.compare_gpus import compare_gpus

    query = wanted.query
    limits = query.power_limit_w is None and query.clock_hz is None
    rows, missing = compare_gpus(
        recommender, [find_gpu(gpu) for gpu in gpus], wanted.network([]), query, None, None, wanted.batches or [None],
        limits,
    )  # fmt: skip
    print_comparison(rows, missing, wanted.printed.form, wanted.billed.tariff)
