"""Print tables for whole networks: layers, totals, sweeps, and comparisons of GPUs."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kernrec.cli.output import (
    ALWAYS,
    SELDOM,
    USUALLY,
    Column,
    Form,
    NotePrinter,
    digits,
    print_columns,
    print_csv,
    print_json,
    print_line,
    quantities,
)
from kernrec.cli.quantity import percent
from kernrec.recommender.tabular import plain_rows
from kernrec.util.human import Note, human

if TYPE_CHECKING:
    from kernrec.recommender.networks.compare import ComparedGpu, NetworkSweep, Unfit
    from kernrec.recommender.networks.result import LayerAnswer, NetworkAnswer
    from kernrec.recommender.networks.total import Total

SHARED_ERROR = Note(
    "total intervals assume fully correlated errors",
    "An error in the prediction of a kernel on a GPU repeats in every layer that runs it, so the relative interval of a"
    " sum is as wide as that of its layers.",
)


def network_csv(answer: "NetworkAnswer", sweep: "NetworkSweep | None" = None) -> list[dict[str, Any]]:
    """Return a network's CSV rows: one per layer, or one per power limit or clock of `sweep`."""
    if sweep is not None:
        return [{"gpu": answer.gpu.name, **row} for row in sweep.as_dict()["rows"]]
    rows = []
    for layer in answer.layers:
        of_baseline = {} if layer.baseline is None else layer.baseline.as_dict()
        chosen = plain_rows(layer.answer)[:1] or [{"problem": layer.answer.problem.key, "gpu": answer.gpu.name}]
        rows.append(
            {"layer": layer.name, "count": layer.count}
            | chosen[0]
            | {"worth_it": layer.worth_it, "run": _runs(layer)}
            | {f"backend_{name}": value for name, value in of_baseline.items()}
        )
    return rows


def print_network(answer: "NetworkAnswer", layers: int | None, notes: NotePrinter) -> None:
    """Print the totals of a network, its slowest layers, useful commands and the notes.

    Args:
        layers: Number of layers to print. None selects the layers that take most of the time.
    """
    _print_totals(answer)
    print()
    _print_layers(answer, layers)
    print_line("next: --power-limit sweep finds the best limit, --top N shows N layers")
    notes.print([*answer.notes, SHARED_ERROR])


def _subject(answer: "NetworkAnswer") -> str:
    chosen = "".join(f", {op} in layout {layout} (chosen)" for op, layout in answer.layouts_chosen.items())
    single = len(answer.layers) == 1 and answer.layers[0].layer.alone  # The title of one shape names the data type.
    kind = "" if single else f" in {', '.join(answer.dtypes)}"
    return f"{answer.workload.title}{kind} on {answer.gpu.title}{chosen}"


def _print_totals(answer: "NetworkAnswer") -> None:
    from kernrec.recommender.networks.compare import ComparedGpu

    point = answer.query.point
    clock = "" if point.clock_hz is None else f", locked to {human(point.clock_hz, 'Hz')}"
    limit = f"power limit {human(point.limit_w(answer.gpu), 'W')}{clock}"
    shown = answer.distinct_totals
    versus = [total.versus(shown[0]) for total in shown[1:]]
    columns = [
        Column("runs", "left", [total.label for total in shown]),
        *_cost_columns(shown),
        Column("time vs the first", "right", ["-", *(percent(each.slowdown) for each in versus)], SELDOM),
        Column("energy vs the first", "right", ["-", *(percent(-each.energy_saved) for each in versus)], SELDOM),
    ]
    print_columns(f"{_subject(answer)}, objective {answer.query.objective}, {limit}: {answer.scope}", columns)
    if answer.unit == "token":
        headline = ComparedGpu(answer)
        several = f", all {answer.tp} GPUs together" if answer.tp > 1 else ""
        most, least = ("", "") if headline.total.complete else ("less than ", "more than ")
        energy = f"{least}{human(headline.energy.value, 'J')}"
        print_line(f"{headline.total.label}: {most}{digits(headline.rate)} tokens/s, {energy} per token{several}")
    if answer.advice:
        print_line(answer.advice)


def _print_layers(answer: "NetworkAnswer", most: int | None) -> None:
    shown, count = answer.longest(most), len(answer.layers)
    seconds = sum(layer.latency_s for layer in answer.layers)
    share = sum(layer.latency_s for layer in shown) / seconds
    total = f"the {len(shown)} of {count} distinct layers that take {share * 100:.0f} % of the time"
    if len(shown) == count:
        total = f"all {count} distinct layers, the longest first"
    costs = [layer.run_costs for layer in shown]
    configs = [layer.program[1] for layer in shown]
    saved = ["" if layer.saved is None else percent(-layer.saved) for layer in shown]
    bottlenecks = ["" if layer.runs_backend or layer.best is None else layer.best.bottleneck for layer in shown]
    columns = [
        Column("layer", "left", [_shortened(layer.name) for layer in shown]),
        Column("count", "right", [str(layer.count) for layer in shown]),
        Column("time", "right", [f"{layer.latency_s / seconds * 100:.0f} %" for layer in shown]),
        quantities("latency", "s", [latency for latency, _ in costs], intervals=False),
        quantities("energy", "J", [energy for _, energy in costs], USUALLY, intervals=False),
        Column("runs", "left", [_runs(layer) for layer in shown]),
        Column(f"kernrec vs {answer.backend}", "right", saved, SELDOM),
        Column("config", "left", configs, ALWAYS if any(configs) else USUALLY, below=True),
        Column("source", "left", [layer.source for layer in shown], SELDOM),
        Column("bottleneck", "left", bottlenecks, SELDOM),
    ]
    if len(answer.dtypes) > 1:
        columns.insert(2, Column("dtype", "left", [layer.answer.problem.dtype for layer in shown], USUALLY))
    how = f", source {', '.join(answer.sources)}; latency and energy of one occurrence"
    print_columns(f"{total}{how}", columns)


_LONGEST_NAME = 34


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3].rstrip(' ,')}..."


def _runs(layer: "LayerAnswer") -> str:
    return layer.baseline.backend if layer.baseline is not None and layer.runs_backend else layer.program[0]


def _cost_columns(totals: "Sequence[Total]") -> list[Column]:
    return [
        quantities("latency", "s", [total.latency_s for total in totals]),
        quantities("energy", "J", [total.energy_j for total in totals]),
        quantities("power", "W", [total.power_w for total in totals], importance=USUALLY),
        Column("source", "left", [total.source for total in totals], USUALLY),
    ]


def print_sweep(sweep: "NetworkSweep", notes: NotePrinter) -> None:
    """Print a network's totals at each power limit or clock, the recommended value, and the notes."""
    answer, rows = sweep.answer, sweep.rows
    gpu = answer.gpu
    default = human(rows[0].point.limit_w(gpu), "W")
    locked = sweep.locked
    values = [row.point.clock_hz if locked else row.point.limit_w(gpu) for row in rows]
    scale, head = (1e6, "locked clock [MHz]") if locked else (1.0, "power limit [W]")
    points = ["-" if value is None else f"{value / scale:.0f}" for value in values]
    points[sweep.best] = f"{'knee' if sweep.why_best == 'knee' else 'best'} {points[sweep.best]}"
    versus = [f"{percent(row.versus_first.slowdown)}, {percent(-row.versus_first.energy_saved)}" for row in rows]
    columns = [
        Column(head, "right", points),
        *_cost_columns([row.total for row in rows]),
        Column("vs default", "right", ["-", *versus[1:]]),
    ]
    title = (
        f"{_subject(answer)}, {rows[0].total.label}, objective {answer.query.objective}, default power limit {default}:"
        f" {answer.scope}; vs default: time, energy"
    )
    print_columns(title, columns)
    print_line(sweep.advice)
    notes.print([*answer.notes, SHARED_ERROR])


def print_comparison(
    compared: "Sequence[ComparedGpu | Unfit]", missing: Sequence[str], form: Form, notes: NotePrinter
) -> None:
    """Print a table that compares GPUs and batch sizes for one network.

    Args:
        compared: Answers for each GPU and batch size. An `Unfit` marks a network that exceeds the GPU's memory.
        missing: Notes on GPUs that cannot be compared.
    """
    from kernrec.recommender.networks.compare import Unfit, verdict

    rows = [row for row in compared if not isinstance(row, Unfit)]
    unfit = [row.note for row in compared if isinstance(row, Unfit)]
    several = len({row.batch for row in compared}) > 1
    answers = [row.answer for row in rows]
    if form is Form.JSON:
        whole = {"workload": answers[0].workload.title, "gpus": [row.as_dict() for row in compared]}
        every = dict.fromkeys([*unfit, *missing, *(note for answer in answers for note in answer.notes)])
        print_json(whole | {"notes": list(every)})
        return
    if form is Form.CSV:
        print_csv([row.as_dict() for row in compared])
        return
    first = answers[0]
    dtypes = {answer.dtypes for answer in answers}
    kind = f" in {', '.join(first.dtypes)}" if len(dtypes) == 1 else ""
    title = first.workload.title.replace(f", batch {first.batch}", "") if several else first.workload.title
    runs = {row.total.label for row in rows}
    whose = f", {next(iter(runs))}" if len(runs) == 1 else ""
    scopes = {answer.scope for answer in answers}
    scope = f": {first.scope}" if len(scopes) == 1 else ""
    limit = ""
    if rows[0].sweep is not None:  # The column `best limit` differs, so state the limit of the costs.
        most_w = first.query.max_power_w
        limit = ", default power limit" if most_w is None else f", power limit of at most {human(most_w, 'W')}"
    title = f"{title}{kind}{whose}, objective {first.query.objective}{limit}{scope}"
    print_columns(title, _comparison_columns(compared, len(dtypes) > 1, several, len(runs) > 1))
    if not several and (best := verdict(rows)):
        print_line(best)
    notes.print([*unfit, *missing, *(note for answer in answers for note in answer.notes), SHARED_ERROR])


def _comparison_columns(
    compared: "Sequence[ComparedGpu | Unfit]", dtypes: bool, batches: bool, backends: bool
) -> list[Column]:
    """Return the columns of a comparison. `dtypes`, `batches` and `backends` say which columns are needed."""
    from kernrec.recommender.networks.compare import Unfit

    rows = [None if isinstance(row, Unfit) else row for row in compared]
    first = next(row.answer for row in rows if row is not None)
    tokens = first.workload.tokens
    item = "token" if tokens == 1 else "prompt" if tokens else first.unit
    swept = any(row is not None and row.sweep is not None for row in rows)
    limits = [None if row is None else row.best_limit_w for row in rows]
    below = [row.error.short if isinstance(row, Unfit) else _dominant(row, backends) for row in compared]

    def each(text: "Callable[[ComparedGpu], str]") -> list[str]:
        return ["" if row is None else text(row) for row in rows]

    columns = [
        Column("GPU", "left", [row.gpu.name for row in compared]),
        Column("batch", "right", [str(row.batch) for row in compared], ALWAYS if batches else SELDOM),
        Column("fits", "left", ["no" if row is None else "yes" for row in rows]),
        Column(f"ms/{item}", "right", each(lambda row: digits(1e3 * row.total.latency_s.value))),
        Column(f"J/{first.unit}", "right", each(lambda row: digits(row.energy.value))),
        Column(f"{first.unit}s/s", "right", each(lambda row: digits(row.rate))),
        quantities("best limit", "W", limits, importance=ALWAYS if swept else SELDOM),
        Column("power [W]", "right", each(lambda row: digits(row.total.power_w)), USUALLY),
        Column("source", "left", each(lambda row: row.total.source), USUALLY),
        Column(f"{first.unit}s/J", "right", each(lambda row: digits(row.rate_per_watt)), USUALLY),
        Column("layers that take most of the time", "left", below, below=True),
    ]
    if dtypes:
        columns.insert(1, Column("dtype", "left", each(lambda row: ", ".join(row.answer.dtypes)), USUALLY))
    return columns


def _dominant(row: "ComparedGpu", backends: bool) -> str:
    layers = ", ".join(f"{_shortened(name)} {share * 100:.0f} %" for name, share in row.answer.dominant(2))
    return f"{row.total.label}: {layers}" if backends else layers
