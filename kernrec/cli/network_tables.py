"""Print tables for whole networks: layers, totals, yearly bills, power-limit and clock sweeps, and GPU comparisons."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernrec.cli.output import (
    ALWAYS,
    SELDOM,
    USUALLY,
    WIDE,
    Column,
    Form,
    NotePrinter,
    digits,
    estimates,
    print_csv,
    print_json,
    print_line,
    print_table_as,
    quantities,
)
from kernrec.cli.quantity import percent
from kernrec.cli.recommendations import print_command, problem_command
from kernrec.recommender.tabular import plain_rows
from kernrec.util.human import Note, config_text, human

if TYPE_CHECKING:
    from kernrec.recommender.networks.compare import Bill, ComparedGpu, Tariff, Unfit
    from kernrec.recommender.networks.result import LayerAnswer, NetworkAnswer, Total
    from kernrec.recommender.networks.sweep import NetworkSweep

SHARED_ERROR = Note(
    "total intervals assume fully correlated errors",
    "An error in the prediction of a kernel on a GPU repeats in every layer that runs it, so the relative interval of a"
    " sum is as wide as that of its layers.",
)


def network_csv(answer: "NetworkAnswer", sweep: "NetworkSweep | None" = None) -> list[dict[str, Any]]:
    """Return CSV rows for a network.

    A sweep has a row for each power limit or clock. Any other answer has a row for each layer.
    """
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


def print_network(
    answer: "NetworkAnswer",
    form: Form,
    billed: "Sequence[Bill]" = (),
    layers: int | None = None,
    notes: NotePrinter | None = None,
) -> None:
    """Print the totals of a network, its slowest layers, the yearly bills, useful next commands and the notes.

    Args:
        layers: Number of layers to print, slowest first. By default, a normal table has the layers that take most of
            the time, and other formats have all layers.
    """
    _print_totals(answer, form)
    print()
    _print_layers(answer, form, layers)
    if billed:
        print()
        _print_bills(billed, form)
    if form is Form.TABLE:
        print()
        _print_next(answer, layers)
    (notes or NotePrinter()).print([*answer.notes, SHARED_ERROR])


def _chosen(answer: "NetworkAnswer") -> str:
    return "".join(f", {op} in layout {layout} (chosen)" for op, layout in answer.layouts_chosen.items())


def _title(answer: "NetworkAnswer") -> str:
    point = answer.query.point
    limit = human(point.limit_w(answer.gpu), "W")
    clock = "" if point.clock_hz is None else f", locked to {human(point.clock_hz, 'Hz')}"
    return (
        f"{answer.workload.title} in {', '.join(answer.dtypes)} on {answer.gpu.title}{_chosen(answer)}, objective"
        f" {answer.query.objective}, power limit {limit}{clock}"
    )


def _print_totals(answer: "NetworkAnswer", form: Form) -> None:
    count = sum(layer.count for layer in answer.layers)
    which = f"all {count} layers together"
    if answer.left_out:
        which = f"{count} layers together, without {len(answer.left_out)} distinct ones that the notes name"
    shown = answer.distinct_totals
    columns = [Column("runs", "left", [total.name for total in shown]), *_cost_columns(shown)]
    print_table_as(form, f"{_title(answer)}: {which}", [*columns, *_against(shown, "the first")])
    if answer.advice:
        print_line(answer.advice)


def _print_layers(answer: "NetworkAnswer", form: Form, most: int | None) -> None:
    """Print the layers of a network.

    A normal table has the `most` slowest layers. If `most` is None, it has the layers that take most of the time.
    """
    shown = answer.layers
    total = f"all {len(shown)} distinct layers"
    if form is Form.TABLE and most != len(shown):
        shown = answer.longest(most)
        share = sum(layer.latency_s for layer in shown) / sum(layer.latency_s for layer in answer.layers)
        total = f"the {len(shown)} of {len(answer.layers)} distinct layers that take {share * 100:.0f} % of the time"
        if len(shown) == len(answer.layers):
            total = f"all {len(shown)} distinct layers, the longest first"
    cut = form is Form.TABLE
    names = [_shortened(layer.name) if cut else layer.name for layer in shown]
    seconds = sum(layer.latency_s for layer in answer.layers)
    costs = [layer.run_costs for layer in shown]
    ours = [None if layer.runs_backend else layer.best for layer in shown]
    columns = [
        Column("layer", "left", names),
        Column("count", "right", [str(layer.count) for layer in shown]),
        Column("time", "right", [f"{layer.latency_s / seconds * 100:.0f} %" for layer in shown]),
        estimates("latency", "s", [latency for latency, _ in costs], intervals=not cut),
        estimates("energy", "J", [energy for _, energy in costs], USUALLY, intervals=not cut),
        Column("runs", "left", [_runs(layer) for layer in shown], styles=["marked" * bool(x.worth_it) for x in shown]),
        Column(f"kernrec vs {answer.backend}", "right", [_saved(layer) for layer in shown], SELDOM),
    ]
    if form is Form.WIDE:
        configs = [config_text(best.config) if best else "" for best in ours]
    else:
        configs = [layer.program[1] for layer in shown]
    columns += [
        Column("config", "left", configs, ALWAYS if any(configs) else USUALLY, below=True),
        Column("source", "left", [layer.source for layer in shown], SELDOM, styles=[layer.source for layer in shown]),
        Column("bottleneck", "left", [best.bottleneck if best else "" for best in ours], SELDOM),
        Column("problem", "left", [layer.answer.problem.key for layer in shown], WIDE),
    ]
    if len(answer.dtypes) > 1:
        columns.insert(2, Column("dtype", "left", [layer.answer.problem.dtype for layer in shown], USUALLY))
    how = f", source {', '.join(answer.sources)}; latency and energy of one occurrence"
    print_table_as(form, f"{total}{how}", columns)


_LONGEST_NAME = 34


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3].rstrip(' ,')}..."


def _runs(layer: "LayerAnswer") -> str:
    return layer.baseline.backend if layer.baseline is not None and layer.runs_backend else layer.program[0]


def _saved(layer: "LayerAnswer") -> str:
    return "" if layer.saved is None else percent(-layer.saved)


def _print_next(answer: "NetworkAnswer", layers: int | None) -> None:
    count, longest = len(answer.layers), answer.longest(1)[0]
    every = f"--top {count} (all layers) or " if layers is None and len(answer.layers_that_matter) < count else ""
    print_line(f"next: this command with {every}--power-limit sweep (best limit); or the longest layer on its own:")
    print_command(problem_command(longest.answer.problem, answer.gpu.name))


def _cost_columns(totals: "Sequence[Total]") -> list[Column]:
    sources = [total.source for total in totals]
    return [
        estimates("latency", "s", [total.latency_s for total in totals]),
        estimates("energy", "J", [total.energy_j for total in totals]),
        quantities("power", "W", [total.power_w for total in totals], importance=USUALLY),
        Column("source", "left", sources, USUALLY, styles=sources),
    ]


def _against(totals: "Sequence[Total]", name: str) -> list[Column]:
    versus = [total.versus(totals[0]) for total in totals[1:]]
    return [
        Column(f"time vs {name}", "right", ["-", *(percent(time) for time, _ in versus)], SELDOM),
        Column(f"energy vs {name}", "right", ["-", *(percent(energy) for _, energy in versus)], SELDOM),
    ]


def _print_bills(billed: "Sequence[Bill]", form: Form) -> None:
    columns = [
        Column("of a year", "left", [bill.name for bill in billed]),
        quantities("energy", "Wh", [bill.energy_kwh * 1e3 for bill in billed]),
    ]
    costs = [bill.cost for bill in billed if bill.cost is not None]
    if costs:
        columns.append(Column(f"cost [{billed[0].currency}]", "right", [f"{cost:,.2f}" for cost in costs]))
    masses = [bill.carbon_kg for bill in billed if bill.carbon_kg is not None]
    if masses:
        unit, scale = next(((unit, scale) for unit, scale in _MASSES if max(masses) >= scale), _MASSES[-1])
        columns.append(Column(f"CO2 [{unit}]", "right", [digits(mass / scale) for mass in masses]))
    versus = next((bill.versus for bill in billed if bill.versus), "")
    if versus:
        columns.append(Column(f"vs {versus.removesuffix(' today')}", "left", [_more(bill.more_kwh) for bill in billed]))
    print_table_as(form, "energy of the GPUs while they run; excludes idle power, hosts and cooling", columns)


_MASSES = (("t", 1e3), ("kg", 1.0), ("g", 1e-3))
"""Units of mass with their size in kilograms, largest first."""


def _more(kwh: float | None) -> str:
    return "-" if kwh is None else f"{human(abs(kwh) * 1e3, 'Wh')} {'more' if kwh >= 0 else 'less'}"


def print_sweep(sweep: "NetworkSweep", form: Form, billed: "Sequence[Bill]", notes: NotePrinter) -> None:
    """Print a network's totals at each power limit or clock, the best limit or clock, the bills and the notes."""
    answer, rows = sweep.answer, sweep.rows
    gpu = answer.gpu
    default = human(rows[0].point.limit_w(gpu), "W")
    locked = sweep.locked
    values = [row.point.clock_hz if locked else row.point.limit_w(gpu) for row in rows]
    scale, head = (1e6, "locked clock [MHz]") if locked else (1.0, "power limit [W]")
    points = ["-" if value is None else f"{value / scale:.0f}" for value in values]
    points[sweep.best] = f"{'knee' if sweep.why_best == 'knee' else 'best'} {points[sweep.best]}"
    styles = ["marked" if number == sweep.best else "" for number in range(len(rows))]
    versus = [f"{percent(row.versus_first.slowdown)}, {percent(-row.versus_first.energy_saved)}" for row in rows]
    columns = [
        Column(head, "right", points, styles=styles),
        *_cost_columns([row.total for row in rows]),
        Column("vs default", "right", ["-", *versus[1:]]),
    ]
    title = (
        f"{answer.workload.title} in {', '.join(answer.dtypes)} on {gpu.title}{_chosen(answer)}, {rows[0].total.name},"
        f" objective {answer.query.objective}, default power limit {default}: all layers together;"
        " vs default: time, energy"
    )
    print_table_as(form, title, columns)
    print_line(sweep.advice)
    if billed:
        print()
        _print_bills(billed, form)
    notes.print([*answer.notes, SHARED_ERROR])


def print_comparison(
    compared: "Sequence[ComparedGpu | Unfit]",
    missing: Sequence[str],
    form: Form,
    tariff: "Tariff | None",
    notes: NotePrinter,
) -> None:
    """Print a table that compares GPUs and batch sizes for one network.

    Args:
        compared: A row for each GPU and batch size. A row is `Unfit` if the network does not fit in the GPU's memory.
        missing: Notes on GPUs that cannot be compared.
        tariff: Number of GPUs and prices for yearly bills, or None to print no bills.
    """
    from kernrec.recommender.networks.compare import Unfit, verdict

    rows = [row for row in compared if not isinstance(row, Unfit)]
    unfit = [row.note for row in compared if isinstance(row, Unfit)]
    several = len({row.batch for row in compared}) > 1
    billed = []
    if tariff is not None:
        from kernrec.recommender.networks.compare import bills

        for row in rows:
            name = f"{row.gpu.name}, batch {row.batch}" if several else row.gpu.name
            billed += bills([replace(row.total, name=name)], tariff)
    answers = [row.answer for row in rows]
    if form is Form.JSON:
        whole = {"workload": answers[0].workload.title, "gpus": [row.as_dict() for row in compared]}
        every = dict.fromkeys([*unfit, *missing, *(note for answer in answers for note in answer.notes)])
        print_json(whole | {"bills": [bill.as_dict() for bill in billed], "notes": list(every)})
        return
    if form is Form.CSV:
        print_csv([row.as_dict() for row in compared])
        return
    first = answers[0]
    dtypes = {answer.dtypes for answer in answers}
    kind = f" in {', '.join(first.dtypes)}" if len(dtypes) == 1 else ""
    title = first.workload.title.replace(f", batch {first.batch}", "") if several else first.workload.title
    runs = {row.total.name for row in rows}
    whose = f", {next(iter(runs))}" if len(runs) == 1 else ""
    title = f"{title}{kind}{whose}, objective {first.query.objective}: all layers together"
    print_table_as(form, title, _comparison_columns(compared, form, len(dtypes) > 1, several, len(runs) > 1))
    if len(rows) > 1 and not several:
        print_line(verdict(rows))
    if billed:
        print()
        _print_bills(billed, form)
    notes.print([*unfit, *missing, *(note for answer in answers for note in answer.notes), SHARED_ERROR])


def _comparison_columns(
    compared: "Sequence[ComparedGpu | Unfit]", form: Form, dtypes: bool, batches: bool, backends: bool
) -> list[Column]:
    """Return the columns of the comparison. Its rows may differ in data type, batch size and backend."""
    from kernrec.recommender.networks.compare import Unfit

    rows = [None if isinstance(row, Unfit) else row for row in compared]
    there = [row for row in rows if row is not None]
    unit, workload = there[0].answer.unit, there[0].answer.workload
    served = any(row.sweep is not None for row in there)
    latencies = [None if row is None else row.total.latency_s for row in rows]
    energies = [None if row is None else row.energy for row in rows]
    per = "J" if unit == "call" else f"J/{unit}"
    costs = [
        estimates("latency", "s", latencies),
        estimates("energy", per, energies),
    ]
    if served and form is Form.TABLE:
        item = "token" if workload.tokens == 1 else "prompt" if workload.tokens else "pass"
        costs = [
            Column(f"ms/{item}", "right", ["" if x is None else digits(1e3 * x.value) for x in latencies]),
            Column(f"J/{unit}", "right", ["" if x is None else digits(x.value) for x in energies]),
            Column(f"{unit}s/s", "right", ["" if row is None else digits(row.rate) for row in rows]),
        ]
    else:
        costs.append(quantities(f"{unit}s/s", "", _of(rows, "rate"), importance=USUALLY))
    below = ["" if row is None else _dominant(row, backends) for row in rows] if served else ["" for _ in rows]
    below = [row.error.short if isinstance(row, Unfit) else text for row, text in zip(compared, below, strict=True)]
    names = ["" if row is None else row.total.name for row in rows]
    watts = [None if row is None else row.total.power_w for row in rows]
    power = quantities("power", "W", watts, importance=USUALLY)
    if served:  # Name the power limit: the best limit would draw less.
        limit = "default" if there[0].answer.query.max_power_w is None else "--max-power"
        power = replace(power, name=f"W at {limit}")
    columns = [
        Column("GPU", "left", [row.gpu.name for row in compared]),
        Column("batch", "right", [str(row.batch) for row in compared], ALWAYS if batches else SELDOM),
        Column(
            "fits", "left", ["no" if row is None else "yes" for row in rows], ALWAYS if served or None in rows else WIDE
        ),
        *costs[:2],
        *costs[2:],
        quantities("best limit", "W", _of(rows, "best_limit_w"), importance=ALWAYS if served else WIDE),
        power,
        Column("runs", "left", names, ALWAYS if backends and not served else WIDE),
        Column("source", "left", ["" if row is None else row.total.source for row in rows], USUALLY),
        quantities(f"{unit}s/J", "", _of(rows, "rate_per_watt"), importance=USUALLY),
    ]
    if any(below):
        columns.append(Column("layers that take most of the time" if served else "memory", "left", below, below=True))
    if dtypes:
        kinds = ["" if row is None else ", ".join(row.answer.dtypes) for row in rows]
        columns.insert(1, Column("dtype", "left", kinds, USUALLY))
    return columns


def _of(rows: "Sequence[ComparedGpu | None]", name: str) -> list[float | None]:
    return [None if row is None else getattr(row, name) for row in rows]


def _dominant(row: "ComparedGpu", backends: bool) -> str:
    layers = ", ".join(f"{_shortened(name)} {share * 100:.0f} %" for name, share in row.answer.dominant(2))
    return f"{row.total.name}: {layers}" if backends else layers
