"""The tables of whole networks: layers, totals, bills, sweeps over power limits and clocks, GPUs side by side."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernrec.cli.answer_table import SELDOM, USUALLY, Column, digits, quantities
from kernrec.cli.choices import choice_columns, csv_rows
from kernrec.cli.format import print_line, print_notes
from kernrec.cli.output import Form, print_csv, print_json, print_table_as
from kernrec.cli.quantity import percent
from kernrec.util.human import human

if TYPE_CHECKING:
    from kernrec.recommender.bill import Bill, Tariff
    from kernrec.recommender.compare_gpus import ComparedGpu
    from kernrec.recommender.network import NetworkAnswer, Total
    from kernrec.recommender.network_sweep import NetworkSweep
    from kernrec.recommender.recommender import Recommender

SHARED_ERROR = (
    "intervals of totals take every layer to be wrong in the same direction: predictions for one GPU share their error"
)


def network_json(
    recommender: "Recommender",
    answer: "NetworkAnswer",
    sweep: "NetworkSweep | None" = None,
    billed: "Sequence[Bill]" = (),
) -> dict[str, Any]:
    """A network's answer as plain values: its sweep, or its layers with their regrets, and totals."""
    whole = answer.as_dict_with_regrets(recommender) if sweep is None else sweep.as_dict()
    return whole | ({"bills": [bill.as_dict() for bill in billed]} if billed else {})


def network_csv(answer: "NetworkAnswer", sweep: "NetworkSweep | None" = None) -> list[dict[str, Any]]:
    """Rows of plain values: the points of a sweep, or the layers' first choices."""
    if sweep is not None:
        return [{"gpu": answer.gpu.name, **row} for row in sweep.as_dict()["rows"]]
    return [{"layer": layer.name, "count": layer.count} | csv_rows(layer.answer)[0] for layer in answer.layers]


def print_network(answer: "NetworkAnswer", form: Form, billed: "Sequence[Bill]" = ()) -> None:
    """The first choice of each layer, the totals, the bills, and the notes."""
    best = [layer.answer.best for layer in answer.layers]
    columns = [
        Column("layer", "left", [layer.name for layer in answer.layers]),
        Column("count", "right", [str(layer.count) for layer in answer.layers]),
        *choice_columns(best, form, layers=True),
    ]
    if len(answer.dtypes) > 1:
        columns.insert(2, Column("dtype", "left", [choice.problem.dtype for choice in best], USUALLY))
    sources = ", ".join(dict.fromkeys(str(choice.source) for choice in best))
    print_table_as(form, f"{_title(answer)}, source {sources}: the first choice of each layer", columns)
    print()
    print_totals(answer, form)
    _print_bills_and_notes(billed, form, answer.notes)


def _title(answer: "NetworkAnswer") -> str:
    point = answer.query.point
    limit = human(point.limit_w(answer.gpu), "W")
    clock = "" if point.clock_hz is None else f", locked to {human(point.clock_hz, 'Hz')}"
    return (
        f"{answer.workload.title} in {', '.join(answer.dtypes)} on {answer.gpu.title}, objective"
        f" {answer.query.objective}, power limit {limit}{clock}"
    )


def print_totals(answer: "NetworkAnswer", form: Form) -> None:
    """The totals of the whole network: of the choice and of its alternatives."""
    count = sum(layer.count for layer in answer.layers)
    title = f"all {count} layers together"
    if answer.left_out:
        title = f"{count} layers together, without what the notes list"
    first, *others = answer.totals
    same = [total.name for total in others if (total.latency_s, total.energy_j) == (first.latency_s, first.energy_j)]
    shown = [first, *(total for total in others if total.name not in same)]
    names = [" = ".join([first.name, *same]), *(total.name for total in shown[1:])]
    columns = [Column("with each layer's", "left", names), *_cost_columns(shown)]
    print_table_as(form, title, [*columns, *_against(shown, "choice")])


def _cost_columns(totals: "Sequence[Total]") -> list[Column]:
    latencies, energies = [total.latency_s for total in totals], [total.energy_j for total in totals]
    sources = [str(min(total.latency_s.source, total.energy_j.source, key=_SURENESS.index)) for total in totals]
    return [
        quantities("latency", "s", [e.value for e in latencies], [(e.low, e.high) for e in latencies]),
        quantities("energy", "J", [e.value for e in energies], [(e.low, e.high) for e in energies]),
        quantities("power", "W", [total.power_w for total in totals], importance=USUALLY),
        Column("source", "left", sources, USUALLY, styles=sources),
    ]


_SURENESS = ["prior", "learned", "measured"]


def _against(totals: "Sequence[Total]", name: str) -> list[Column]:
    """Time and energy of totals against the first one."""
    first = totals[0]
    time = [percent(total.latency_s.value / first.latency_s.value - 1.0) for total in totals]
    energy = [percent(total.energy_j.value / first.energy_j.value - 1.0) for total in totals]
    return [
        Column(f"time vs {name}", "right", ["-", *time[1:]], SELDOM),
        Column(f"energy vs {name}", "right", ["-", *energy[1:]], SELDOM),
    ]


def _print_bills_and_notes(billed: "Sequence[Bill]", form: Form, notes: Sequence[str]) -> None:
    if billed:
        print()
        _print_bills(billed, form)
    print_notes([*notes, SHARED_ERROR])


def _print_bills(billed: "Sequence[Bill]", form: Form) -> None:
    columns = [
        Column("of a year", "left", [bill.name for bill in billed]),
        quantities("energy", "Wh", [bill.energy_kwh * 1e3 for bill in billed]),
    ]
    costs = [bill.cost for bill in billed if bill.cost is not None]
    if costs:
        columns.append(Column(f"cost [{costs[0][1]}]", "right", [f"{amount:,.2f}" for amount, _ in costs]))
    if billed[0].carbon_kg is not None:
        columns.append(quantities("CO2", "g", [1e3 * (bill.carbon_kg or 0.0) for bill in billed]))
    print_table_as(form, "energy of the GPU while it runs; nothing idle, no host, no cooling", columns)


def print_sweep(sweep: "NetworkSweep", form: Form, billed: "Sequence[Bill]" = ()) -> None:
    """The network over power limits or clocks, the one worth setting, and the bills."""
    answer, rows = sweep.answer, sweep.rows
    gpu = answer.gpu
    default = human(rows[0].point.limit_w(gpu), "W")
    locked = any(row.point.clock_hz for row in rows)
    values = [row.point.clock_hz if locked else row.point.limit_w(gpu) for row in rows]
    scale, head = (1e6, "locked clock [MHz]") if locked else (1.0, "power limit [W]")
    points = ["-" if value is None else f"{value / scale:.0f}" for value in values]
    points[sweep.knee] = f"knee {points[sweep.knee]}"
    styles = ["marked" if number == sweep.knee else "" for number in range(len(rows))]
    versus = [f"{percent(row.versus_first.slowdown)}, {percent(-row.versus_first.energy_saved)}" for row in rows]
    columns = [
        Column(head, "right", points, styles=styles),
        *_cost_columns([row.total for row in rows]),
        Column("vs default", "right", ["-", *versus[1:]]),
    ]
    title = (
        f"{answer.workload.title} in {', '.join(answer.dtypes)} on {gpu.title}, objective {answer.query.objective},"
        f" default power limit {default}: all layers together; vs default: time, energy"
    )
    print_table_as(form, title, columns)
    print_line(_knee_text(sweep))
    _print_bills_and_notes(billed, form, answer.notes)


def _knee_text(sweep: "NetworkSweep") -> str:
    """The knee as a sentence."""
    from kernrec.recommender.network_sweep import point_text

    gpu, first, row = sweep.answer.gpu, sweep.rows[0], sweep.rows[sweep.knee]
    default = human(first.point.limit_w(gpu), "W")
    if sweep.knee == 0:
        return f"Leave the limit at {default}: no other point saves energy at a price in time that is worth it."
    point = point_text(row.point, gpu)
    versus = row.versus_first
    slower = f"{abs(versus.slowdown) * 100:.1f} % {'slower' if versus.slowdown >= 0 else 'faster'}"
    return f"At {point}: {slower}, {versus.energy_saved * 100:.0f} % less energy than at {default}."


def print_comparison(
    rows: "Sequence[ComparedGpu]", missing: Sequence[str], form: Form, tariff: "Tariff | None" = None
) -> None:
    """GPUs side by side, which is best at what, and with a tariff what each takes in a year."""
    billed = []
    if tariff is not None:
        from kernrec.recommender.bill import bill

        billed = [bill(row.answer.gpu.name, row.answer.choice.energy_j.value, tariff) for row in rows]
    if form is Form.JSON:
        whole = {"workload": rows[0].answer.workload.title, "gpus": [row.as_dict() for row in rows]}
        print_json(whole | {"bills": [bill.as_dict() for bill in billed], "notes": list(missing)})
        return
    if form is Form.CSV:
        print_csv([row.as_dict() for row in rows])
        return
    unit = rows[0].work.unit
    answers = [row.answer for row in rows]
    name, latency, energy, *others = [
        Column("GPU", "left", [answer.gpu.name for answer in answers]),
        *_cost_columns([answer.choice for answer in answers]),
    ]
    if unit != "call":
        energy = quantities(
            "energy",
            f"J/{unit}",
            [row.energy_j for row in rows],
            [(row.energy_j * low, row.energy_j * high) for row in rows for low, high in [_relative(row)]],
        )
    columns = [
        *(name, latency, energy),
        *_per_money(rows, unit),
        *others,
        quantities(f"{unit}s/s", "", [row.rate for row in rows], importance=USUALLY),
        quantities(f"{unit}s/J", "", [row.rate_per_watt for row in rows], importance=USUALLY),
    ]
    first = answers[0]
    dtypes = {answer.dtypes for answer in answers}
    if len(dtypes) > 1:
        columns.insert(1, Column("dtype", "left", [", ".join(answer.dtypes) for answer in answers], USUALLY))
    kind = f" in {', '.join(first.dtypes)}" if len(dtypes) == 1 else ""
    title = f"{first.workload.title}{kind}, objective {first.query.objective}: all layers together"
    print_table_as(form, title, columns)
    if len(rows) > 1:
        print_line(_best_text(rows))
    notes = [note for answer in answers for note in answer.notes]
    _print_bills_and_notes(billed, form, [*missing, *notes])


def _relative(row: "ComparedGpu") -> tuple[float, float]:
    """The ends of the interval of energy, as factors."""
    energy = row.answer.choice.energy_j
    return energy.low / energy.value, energy.high / energy.value


def _per_money(rows: "Sequence[ComparedGpu]", unit: str) -> list[Column]:
    """The work that money buys at the user's prices."""
    currency = next((row.price.currency for row in rows if row.price is not None), "")
    columns = []
    for name, values in (
        (f"{unit}s/s per k{currency}", [row.rate_per_money for row in rows]),
        (f"{currency}/million {unit}s", [row.money_per_million for row in rows]),
    ):
        if any(values):
            columns.append(Column(name, "right", ["" if value is None else digits(value) for value in values]))
    return columns


def _best_text(rows: "Sequence[ComparedGpu]") -> str:
    """Which GPU is the fastest, and which takes the least energy, as a sentence."""
    fastest = min(rows, key=lambda row: row.answer.choice.latency_s.value).answer
    frugal = min(rows, key=lambda row: row.answer.choice.energy_j.value).answer
    if fastest is frugal:
        return f"{fastest.gpu.title} is expected to be the fastest and to take the least energy."
    slower = frugal.choice.latency_s.value / fastest.choice.latency_s.value
    saved = 1.0 - frugal.choice.energy_j.value / fastest.choice.energy_j.value
    return (
        f"{fastest.gpu.title} is expected to be the fastest; {frugal.gpu.title} to take {saved * 100:.0f} % less energy"
        f" and {slower:.2g} times as long."
    )
