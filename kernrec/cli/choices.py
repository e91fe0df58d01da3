"""The tables of choices that `recommend` and `analyze` print."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from kernrec.cli.answer_table import SELDOM, USUALLY, WIDE, Column, quantities
from kernrec.cli.format import measurement_text, print_line, print_notes, source_text
from kernrec.cli.output import Form, print_csv, print_json, print_table_as
from kernrec.cli.quantity import percent
from kernrec.cli.stack_lines import line_columns, line_texts
from kernrec.util.config_short import short_config
from kernrec.util.human import config_text, human

if TYPE_CHECKING:
    from kernrec.recommender import Choice, Recommendation
    from kernrec.recommender.result import Foreign, Saving


def print_choices(answer: "Recommendation", form: Form = Form.TABLE) -> None:
    """The choices for one problem, and the notes; of a kernel beside what the occupancy heuristic picks."""
    if form is Form.JSON:
        print_json(answer.as_dict())
        return
    if form is Form.CSV:
        from kernrec.recommender.tabular import plain_rows

        print_csv(plain_rows(answer))
        return
    if answer.no_kernel is not None:
        _print_lines(answer, answer.no_kernel, form)
        return
    about = answer.about_kernel
    title = f"{answer.problem.title} on {answer.gpu.title}, objective {answer.objective}"
    swept = any(choice.point != answer.point for choice in answer.choices)
    if answer.layout_chosen:
        title += f", layout {answer.problem.layout} chosen"
    if about is None:
        title += f", {'default ' if swept else ''}power limit {human(answer.power_limit_w, 'W')}"
    elif answer.problem.op != about.kernel.name:
        title = f"{about.kernel.name} {title}"
    shown: list[Choice | Foreign] = _in_order(answer)
    if about:
        marks = [*[""] * len(shown), "<- occupancy heuristic"]
        columns = [*choice_columns([*shown, about.heuristic], form, of_op=False), Column("", "left", marks, below=True)]
    else:
        ranks = [str(row.place) if hasattr(row, "place") else "" for row in shown]
        unsure = ["unsure" if hasattr(row, "place") and row.place.ambiguous else "" for row in shown]
        columns = [Column("rank", "right", ranks, styles=unsure), *choice_columns(shown, form)]
    print_table_as(form, title, columns)
    if answer.saving is not None:
        print_line(_saving_text(answer.saving, human(answer.power_limit_w, "W")))
    for text in line_texts(answer.lines, answer.gpu):
        print_line(text)
    print_notes(answer.notes)


def _print_lines(answer: "Recommendation", reason: str, form: Form) -> None:
    """The answer where no kernel runs the problem: why, and what stacks take."""
    limit = human(answer.power_limit_w, "W")
    clock = "" if answer.point.clock_hz is None else f", locked to {human(answer.point.clock_hz, 'Hz')}"
    title = f"{answer.problem.key} on {answer.gpu.title}, power limit {limit}{clock}: what stacks take, fastest first"
    print_table_as(form, title, line_columns(answer.lines))
    print_line(f"No kernel of kernrec's own: {reason}.")
    print_notes(answer.notes)


def _in_order(answer: "Recommendation") -> "list[Choice | Foreign]":
    """Choices, and what was measured of other kernels, by what the objective counts; of a front the fastest first."""
    rows: list[Choice | Foreign] = [*answer.choices, *answer.foreign]
    if not answer.foreign:
        return rows
    counted = answer.objective.quantities if answer.objective != "pareto" else ("latency",)

    def value(row: "Choice | Foreign") -> float:
        costs = {"latency": row.latency_s.value, "energy": row.energy_j.value if row.energy_j else float("inf")}
        return prod(costs[quantity] for quantity in counted)

    return sorted(rows, key=value)


def choice_columns(
    shown: "Sequence[Choice | Foreign]", form: Form, of_op: bool = True, layers: bool = False
) -> list[Column]:
    """The columns of some choices, the most important first.

    Args:
        shown: a row for each.
        form: in a wide table configs have names and values.
        of_op: whether the choices are of an op: then kernels are named, and compared with the fastest config.
        layers: whether the rows are the layers of a network.
    """
    config = config_text if form is Form.WIDE else short_config
    kernels = [row.kernel if isinstance(row.kernel, str) else row.kernel.name for row in shown]
    columns = [Column("kernel", "left", kernels, below=True)] if of_op else []
    columns.append(Column("config", "left", [config(row.config) for row in shown], below=True))
    if len({row.point for row in shown}) > 1 or not of_op:
        limits = [row.power_limit_w if hasattr(row, "power_limit_w") else row.point.power_limit_w for row in shown]
        columns.append(quantities("power limit", "W", limits))
        clocks = ["-" if row.point.clock_hz is None else f"{row.point.clock_hz / 1e6:.0f}" for row in shown]
        columns.append(Column("locked clock [MHz]", "right", clocks, USUALLY))
    costs = [
        quantities(
            name,
            unit,
            [None if estimate is None else estimate.value for estimate in estimates],
            [None if estimate is None else (estimate.low, estimate.high) for estimate in estimates],
        )
        for name, unit, estimates in (
            ("latency", "s", [row.latency_s for row in shown]),
            ("energy", "J", [row.energy_j for row in shown]),
        )
    ]
    columns += [
        *costs,
        quantities("power", "W", [row.power_w for row in shown], importance=USUALLY),
        Column("source", "left", [source_text(row) for row in shown], styles=[row.source for row in shown]),
        Column("bottleneck", "left", [getattr(row, "bottleneck", "") for row in shown], USUALLY),
    ]
    for other in ("occupancy",) if layers or not of_op else ("fastest", "occupancy"):
        against = [getattr(row, f"versus_{other}", None) for row in shown]
        time = ["" if versus is None else percent(versus.slowdown) for versus in against]
        energy = ["" if versus is None else percent(-versus.energy_saved) for versus in against]
        columns.append(Column(f"time vs {other}", "right", time, SELDOM))
        columns.append(Column(f"energy vs {other}", "right", energy, SELDOM))
    launches = [row.launches[0] if hasattr(row, "launches") else None for row in shown]
    grids = ["" if launch is None else f"{launch.blocks} x {launch.threads}" for launch in launches]
    resident = [f"{row.occupancy * 100:.0f} %" if hasattr(row, "occupancy") else "" for row in shown]
    columns += [
        Column("measured", "left", [measurement_text(row) for row in shown], USUALLY, below=True),
        Column("grid x block", "right", grids, SELDOM),
        Column("occupancy", "right", resident, WIDE),
    ]
    if not layers:
        return columns
    # The names of layers are long: on two lines they stand alone with the kernel, the numbers below them.
    kernel, *others = columns
    others = [replace(column, below=True) for column in others]
    source = next(i for i, column in enumerate(others) if column.name == "source")
    others[source] = replace(others[source], importance=USUALLY)  # the title says it, too
    return [replace(kernel, importance=USUALLY, below=False), *others]


def _saving_text(saving: "Saving", compared: str) -> str:
    """The saving of the first choice's config at a lower limit, as a sentence."""
    clock = saving.point.clock_hz
    point = f"locked to {human(clock, 'Hz')}" if clock else f"at a power limit of {human(saving.power_limit_w, 'W')}"
    slower = f"{saving.slowdown * 100:.1f} % longer" if saving.slowdown >= 0.0005 else "as long"
    saved = f"{saving.energy_saved * 100:.0f} % less energy"
    return f"{point[0].upper()}{point[1:]}, the first config takes {slower} and {saved} than at {compared}."
