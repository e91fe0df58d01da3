"""`kernrec recommend`: print the best configs for an op, a shape and a GPU, or for all layers of a network."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from kernrec import paths
from kernrec.cli import options
from kernrec.cli.options import ANY, NETWORK, PRINTED, SELECTION, SWEEP, option
from kernrec.cli.output import Form, NotePrinter, print_csv, print_json, print_notes, source_text
from kernrec.errors import KernrecError, UsageError
from kernrec.util.human import config_text, counted, human

if TYPE_CHECKING:
    from kernrec.emit.formats import Format
    from kernrec.recommender import Answer, Recommender

EmitFormat = Annotated[
    str | None,
    option("Write the code of the first row: cuda, triton, ptx, ...", "--emit", panel=PRINTED, metavar="FORMAT"),
]
Output = Annotated[Path | None, option("File or new folder for --emit.", "--output", "-o", panel=PRINTED)]
_SEVERAL = re.compile(r"=\s*\d+k?(\.\.|:|-|\s*,\s*\d+k?\s*(,|$))", re.IGNORECASE)
"""Matches a --shape with several sizes of one dimension: `m=1..512`, `m=1,8,64`."""
UntrustedSource = Annotated[bool, option("Also emit untrusted code.", "--untrusted-source", panel=PRINTED)]


class RecommendOptions(options.Options):
    sweeps = True
    databases_used = options.SEVERAL
    gpu: options.Gpus
    op: options.Op = ""
    kernel: options.Kernel = None
    shape: options.Shapes = None
    dtype: options.Dtype = None
    layout: options.Layout = None
    inputs: options.Inputs = "random"
    l2: options.L2 = "cold"
    workload: options.WorkloadName = None
    batch: options.Batch = None
    context: options.Context = None
    phase: Annotated[str | None, option("For a config.json: decode or prefill.", "--phase", panel=NETWORK)] = None
    tp: options.TensorParallel = 1
    objective: options.Objective = "pareto"
    max_slowdown: options.MaxSlowdown = None
    max_power: options.MaxPower = None
    power_limit: Annotated[str | None, option("300W, or `sweep` for a network at all limits.", panel=SELECTION)] = None
    clock: Annotated[str | None, option("1410MHz, `any` (the best) or `sweep`.", panel=SELECTION)] = None
    backend: options.Backends = None
    estimated_by: options.Source = None
    top: Annotated[int | None, option("Maximum number of rows per problem, or of layers.", panel=SELECTION)] = None
    printed: options.Printed
    why: options.Why = False
    emit: EmitFormat = None
    output: Output = None
    untrusted_source: UntrustedSource = False

    @property
    def of_shapes(self) -> bool:
        """Return whether the user named shapes or a kernel."""
        return bool(self.kernel or (self.shape and not self.workload))

    @property
    def swept(self) -> Literal["power limit", "clock"] | None:
        """Return the quantity to sweep (power limit or clock), or None."""
        if self.power_limit == SWEEP and self.clock is not None:
            raise UsageError(
                "--power-limit sweep cannot be used with --clock; --clock sweep can be used with one --power-limit"
            )
        return "power limit" if self.power_limit == SWEEP else "clock" if self.clock == SWEEP else None

    @property
    def compares(self) -> bool:
        """Return whether to compare several GPUs or batch sizes."""
        several = len(self.named_gpus) > 1 or len(self.batches) > 1
        tables = self.workload or self.printed.form not in (Form.JSON, Form.CSV)
        return bool(several and tables and not self.swept and self.top is None)


@options.takes(RecommendOptions)
def recommend(wanted: RecommendOptions) -> None:
    """Recommend kernel configs and power limits for an op or a network on a GPU that you need not have.

    The default is the Pareto front of latency and energy. Without --shape and --workload, the layers of the op's
    default workload are used. Several GPUs or batch sizes are compared in one table.

    Examples of every option: docs/guides/recommend.md, deployment.md and run.md.
    """
    from kernrec.recommender import Recommender

    emitted = None
    if wanted.emit is not None:
        from kernrec.emit.formats import format_named

        emitted = format_named(wanted.emit)
    _refuse_contradictions(wanted, emitted)
    _ = wanted.named_gpus, wanted.query  # Report incorrect usage before opening a database.
    recommender = Recommender(wanted.databases, triton=emitted is None or emitted.language != "cuda")
    if wanted.of_shapes and not wanted.swept:
        by_shape, missing = _answers_of_shapes(recommender, wanted, emitted)
        if emitted:
            answers = [answer for each in by_shape for answer in each]
            _write_emitted(answers, emitted, wanted.output, wanted.untrusted_source)
        else:
            _print_answers(recommender, wanted, by_shape, missing)
    elif emitted:
        from kernrec.recommender.networks.network import answer_network

        network = answer_network(recommender, wanted.named_gpus[0], wanted.network, wanted.query)
        answers = [layer.answer for layer in network.layers if layer.best is not None]
        _write_emitted(answers, emitted, wanted.output, wanted.untrusted_source)
    else:
        _print_networks(recommender, wanted)


def _refuse_contradictions(wanted: RecommendOptions, emitted: "Format | None") -> None:
    shape, form, swept, kernel = wanted.shape, wanted.printed.form, wanted.swept, wanted.kernel
    locked = wanted.clock not in (None, ANY)
    refused = {
        "--output needs --emit, whose code it writes; to save an answer, use --format FORMAT > FILE": wanted.output
        and not emitted,
        "--op is missing (`kernrec list ops` lists them); or give a --kernel or a --workload": not (
            wanted.op or kernel or wanted.workload
        ),
        "--batch, --tp and --context are for networks; a --shape states its sizes and may be repeated": wanted.of_shapes
        and (wanted.batch is not None or wanted.tp != 1 or wanted.context is not None),
        "--context is for a --workload": wanted.context is not None and not wanted.workload,
        f"--backend {wanted.whose} is for networks; a --shape shows kernrec's kernels beside all backends": wanted.whose
        and wanted.of_shapes,
        "--shape and --workload were both given; only a --workload FILE.onnx with dynamic dimensions takes both": shape
        and wanted.workload
        and not wanted.workload.lower().endswith(".onnx"),
        "a --shape has one size per dimension; for several sizes, repeat --shape": any(
            map(_SEVERAL.search, shape or ())
        ),
        "--shape is empty; expected dimensions such as m=4096,n=4096,k=4096, or no --shape at all": any(
            not text.strip() for text in shape or ()
        ),
        f"--emit and --format {form} were both given; omit --format": emitted and form is not Form.TABLE,
        f"--emit {wanted.emit} writes code for one GPU: name one with --gpu": emitted and len(wanted.named_gpus) > 1,
        f"--emit {wanted.emit} needs a --shape: it writes one config": emitted
        and not (emitted.many or emitted.writes_folder(wanted.output) or wanted.of_shapes),
        "--kernel was given with --op or --workload; give only one of them": kernel and (wanted.op or wanted.workload),
        "--kernel works only with --shape, --dtype, --layout, --objective, --power-limit, --clock any, --top": kernel
        and (wanted.max_slowdown or wanted.max_power or locked),
        "'--clock any' needs a --shape; for a network, --clock sweep tries several clocks": wanted.clock == ANY
        and not wanted.of_shapes,
        "a sweep needs --op or --workload, without --emit; --kernel tries several power limits without a sweep": swept
        and (kernel or emitted),
    }
    for message, applies in refused.items():
        if applies:
            raise UsageError(message)


def _answers_of_shapes(
    recommender: "Recommender", wanted: RecommendOptions, emitted: "Format | None"
) -> "tuple[list[list[Answer]], list[str]]":
    """Return each shape's answers for all GPUs, and notes on GPUs without an answer.

    Append the queries to the query log if there is one. Raise `KernrecError` if no GPU has an answer for a shape.
    """
    shapes = wanted.shape or [""]
    if emitted and len(shapes) > 1 and not (emitted.many or emitted.writes_folder(wanted.output)):
        raise UsageError(f"--emit {wanted.emit} writes one config: give one shape")
    requests = [[wanted.request(shape, gpu.name) for gpu in wanted.named_gpus] for shape in shapes]
    every_call = False
    if emitted and wanted.kernel and not wanted.shape:
        from kernrec.emit.tuned_tables import of_every_call

        every_call = of_every_call(emitted.name, emitted.detail)
    by_shape: list[list[Answer]] = []
    missing: list[str] = []
    for of_shape in requests:
        answers: list[Answer] = []
        error: KernrecError | None = None
        for request in of_shape:
            try:
                answers += recommender.answer_calls(request) if every_call else [recommender.answer(request)]
            except KernrecError as problem:
                error = error or problem
                missing.append(f"{request.gpu} is left out: {problem}")
        if error is not None and not answers:
            raise error
        by_shape.append(answers)
    if (log := paths.query_log()) is not None:
        from kernrec.interop.workload_files import append_query

        for answers in by_shape:
            for answer in answers:
                append_query(log, answer.problem)
    return by_shape, missing


def _print_answers(
    recommender: "Recommender", wanted: RecommendOptions, by_shape: "Sequence[Sequence[Answer]]", missing: Sequence[str]
) -> None:
    """Print the answers, with one table per shape if there are several GPUs."""
    form, notes = wanted.printed.form, NotePrinter(wanted.why)
    order = [gpu.name for gpu in wanted.named_gpus]
    answers = sorted((answer for each in by_shape for answer in each), key=lambda answer: order.index(answer.gpu.name))
    several = len(order) * len(by_shape) > 1
    if form is Form.JSON:
        regrets = [{str(each.objective): each.as_dict() for each in recommender.regrets(answer)} for answer in answers]
        documents = [answer.as_dict() | {"regret": regret} for answer, regret in zip(answers, regrets, strict=True)]
        print_json(documents if several else documents[0])
        notes.print(missing)
        return
    from kernrec.cli.recommendations import print_gpus, print_recommendations
    from kernrec.recommender.tabular import plain_rows

    if form is Form.CSV:
        print_csv([row for answer in answers for row in plain_rows(answer)])
        notes.print(missing)
        return
    together = len(wanted.named_gpus) > 1 and wanted.top is None
    groups = by_shape if together else [[answer] for answer in answers]
    for number, group in enumerate(groups):
        if number:
            print()
        if together:
            print_gpus(group, notes)
        else:
            print_recommendations(group[0], notes)
    notes.print(missing)


def _print_networks(recommender: "Recommender", wanted: RecommendOptions) -> None:
    from kernrec.cli.network_tables import network_csv, print_comparison, print_network, print_sweep
    from kernrec.recommender.networks.compare import ComparedGpu, compare_gpus

    form, query, notes = wanted.printed.form, wanted.query, NotePrinter(wanted.why)
    swept = wanted.swept
    if wanted.compares and query.power_limit_w is None and query.clock_hz is None:
        swept = "power limit"
    rows, missing = compare_gpus(recommender, wanted.named_gpus, wanted.network, query, wanted.batches, swept)
    if wanted.compares:
        print_comparison(rows, missing, form, notes)
        return
    answered = [row for row in rows if isinstance(row, ComparedGpu)]
    if form is Form.JSON:
        documents = [
            row.sweep.as_dict() if row.sweep else row.answer.as_dict_with_regrets(recommender) for row in answered
        ]
        print_json(documents if len(wanted.named_gpus) * len(wanted.batches) > 1 else documents[0])
    elif form is Form.CSV:
        print_csv([cells for row in answered for cells in network_csv(row.answer, row.sweep)])
    else:
        for number, row in enumerate(answered):
            print("\n" * (number > 0), end="")
            if row.sweep is not None:
                print_sweep(row.sweep, notes)
            else:
                print_network(row.answer, wanted.top, notes)
    notes.print([*(row.note for row in rows if not isinstance(row, ComparedGpu)), *missing])


def _kernels_written(answers: "Sequence[Answer]") -> str:
    if len(answers) > 1:
        counts = Counter(answer.best.kernel.name for answer in answers)
        return "written: " + ", ".join(f"{name} for {counted(count, 'problem')}" for name, count in counts.items())
    from kernrec.kernel import find_kernel, kernel_names

    best, kernel = answers[0].best, answers[0].best.kernel
    own = kernel.name in kernel_names() and find_kernel(kernel.name).hash == kernel.hash
    cost = f"{human(best.latency_s.value, 's')} ({source_text(best)})"
    owner = kernel.owner if kernel.owner is not None else "kernrec" if own else "yours"
    return f"written: {kernel.name} {config_text(best.config)}, {cost}; source: {owner}"


def _write_emitted(answers: "Sequence[Answer]", form: "Format", output: Path | None, untrusted: bool) -> None:
    from kernrec.emit.formats import emit, write_file, write_files

    if output is not None and form.suffix and not output.is_dir() and output.suffix != form.suffix:
        raise UsageError(f"--output {output}: expected a {form.suffix} file, for {form.content}")
    name, folder = f"{form.name}:{form.detail}" if form.detail else form.name, form.writes_folder(output)
    files = emit(answers, name, folder, untrusted)
    if output is None:
        print("".join(content.decode() for content in files.values()), end="")
    elif folder:
        write_files(output, files)
    else:
        ((file, content),) = files.items()
        if form.example:
            from kernrec.emit.tuned_tables import merged

            output = output / file if output.is_dir() else output
            content = merged(output.read_bytes(), content, str(output)) if output.exists() else content
        write_file(output, content)
    print_notes([_kernels_written(answers)])
