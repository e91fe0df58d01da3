"""The tables of choices that `recommend` and `analyze` print."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kernrec.cli.answer_table import ALWAYS, SELDOM, USUALLY, WIDE, Column, quantities
from kernrec.cli.format import measurement_text, print_line, print_notes, source_text
from kernrec.cli.output import Form, print_csv, print_json, print_table_as
from kernrec.cli.quantity import percent
from kernrec.cli.stack_lines import StackRow, line_columns, line_texts
from kernrec.util.config_short import short_config
from kernrec.util.human import config_text, human

if TYPE_CHECKING:
    from kernrec.recommender import Choice, Recommendation
    from kernrec.recommender.result import Foreign, Saving

    Row = Choice | Foreign | StackRow


def print_choices(answer: "Recommendation", form: Form = Form.TABLE, noted: set[str] | None = None) -> None:
    """The choices for one problem, and the notes; of a kernel beside what the occupancy heuristic picks.

    noted: the notes that were printed with other answers, as of `print_notes`.
    """
    if form is Form.JSON:
        print_json(answer.as_dict())
        return
    if form is Form.CSV:
        from kernrec.recommender.tabular import plain_rows

        print_csv(plain_rows(answer))
        return
    if answer.no_kernel is not None:
        _print_lines(answer, answer.no_kernel, form, noted)
        return
    about = answer.about_kernel
    title = f"{answer.problem.title} on {answer.gpu.title}, objective {answer.objective}"
    shown = _with_line(answer, [*_in_order(answer), *answer.beside])
    if answer.layout_chosen:
        title += f", layout {answer.problem.layout} chosen"
    if about is None:
        title += f", {_operating_point(answer)}"
    elif answer.problem.op != about.kernel.name:
        title = f"{about.kernel.name} {title}"
    if about:
        marks = [*[""] * len(shown), "<- occupancy heuristic"]
        columns = [*choice_columns([*shown, about.heuristic], form, of_op=False), Column("", "left", marks, below=True)]
    else:
        ranks = [str(row.place) if row in answer.choices else "" for row in shown]
        unsure = ["unsure" if hasattr(row, "place") and row.place.ambiguous else "" for row in shown]
        columns = [Column("rank", "right", ranks, styles=unsure), *choice_columns(shown, form)]
    print_table_as(form, title, columns)
    if (faster := _may_be_faster(answer)) is not None:
        print_line(_measure_text(answer, faster))
    if answer.saving is not None:
        print_line(_saving_text(answer.saving, human(answer.power_limit_w, "W")))
    for text in line_texts(answer.lines, answer.gpu):
        print_line(text)
    print_notes(answer.notes, noted)


def _print_lines(answer: "Recommendation", reason: str, form: Form, noted: set[str] | None) -> None:
    """The answer where no kernel runs the problem: why, and what stacks take."""
    limit = human(answer.power_limit_w, "W")
    clock = "" if answer.point.clock_hz is None else f", locked to {human(answer.point.clock_hz, 'Hz')}"
    title = f"{answer.problem.key} on {answer.gpu.title}, power limit {limit}{clock}: what stacks take, fastest first"
    print_table_as(form, title, line_columns(answer.lines))
    print_line(f"No kernel of kernrec's own: {reason}.")
    print_notes(answer.notes, noted)


def _operating_point(answer: "Recommendation") -> str:
    """The power limit and clock that the rows stand on, in words; never one that a row has not."""
    limits = {choice.power_limit_w for choice in (*answer.choices, *answer.beside)}
    clocks = {choice.point.clock_hz for choice in (*answer.choices, *answer.beside)}
    text = "each row at its own power limit"
    if len(limits) == 1:
        (limit_w,) = limits
        text = f"{'default ' * (limit_w == answer.gpu.tdp_w)}power limit {human(limit_w, 'W')}"
    if clocks != {None}:
        (*_, clock_hz) = clocks
        text += ", clock of each row" if len(clocks) > 1 else f", clock locked at {human(clock_hz or 0.0, 'Hz')}"
    return text


def _with_line(answer: "Recommendation", shown: "list[Choice | Foreign]") -> "list[Row]":
    """The rows with the best backend among them: before the first choice, or where the objective puts it."""
    if not answer.lines or answer.about_kernel is not None:
        return [*shown]
    leading = answer.leading_line
    line = leading or answer.ranked_lines[0]
    place = 0
    if leading is None:
        cost = answer.value_of(line.latency_s, line.energy_j)
        later = (place for place, row in enumerate(shown) if _value(answer, row) > cost)
        place = max(next(later, len(shown)), 1)
    return [*shown[:place], StackRow(line, answer.gpu), *shown[place:]]


def _may_be_faster(answer: "Recommendation") -> "Choice | None":
    """A choice that nobody ran and that is expected to be faster than the row that comes first."""
    first_s = answer.best.latency_s.value if answer.leading_line is None else answer.leading_line.latency_s
    rows = [row for row in (*answer.choices, *answer.beside) if row.unsure > 1.0 and row.latency_s.value < first_s]
    leads = [row for row in rows if row.may_be_faster or answer.leading_line is not None]
    return min(leads, key=lambda row: row.latency_s.value, default=None)


def _measure_text(answer: "Recommendation", faster: "Choice") -> str:
    """That a choice may be faster than the first row, and the command that finds out."""
    problem, line = answer.problem, answer.leading_line
    name, first_s = (line.stack, line.latency_s) if line else (answer.best.kernel.name, answer.best.latency_s.value)
    dims = ",".join(f"{name}={value}" for name, value in problem.dims)
    command = f"kernrec collect --op {problem.op} --shape {dims} --dtype {problem.dtype} --layout {problem.layout}"
    return (
        f"{faster.kernel.name} may be {(1 - faster.latency_s.value / first_s) * 100:.1f} % faster than {name}, less"
        f" than the prior errs on such kernels, and nobody ran it. Measure it on that GPU: `{command}`"
    )


def _in_order(answer: "Recommendation") -> "list[Choice | Foreign]":
    """Choices, and what was measured of other kernels, by what the objective counts; of a front the fastest first."""
    rows: list[Choice | Foreign] = [*answer.choices, *answer.foreign]
    return rows if not answer.foreign else sorted(rows, key=lambda row: _value(answer, row))


def _value(answer: "Recommendation", row: "Choice | Foreign") -> float:
    return answer.value_of(row.latency_s.value, row.energy_j.value if row.energy_j else None)


def choice_columns(shown: "Sequence[Row]", form: Form, of_op: bool = True, layers: bool = False) -> list[Column]:
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
    alike = [getattr(row, "alike", 0) for row in shown]
    configs = [
        "" if isinstance(row, StackRow) else config(row.config) + f" (and {n} alike)" * (n > 0)
        for row, n in zip(shown, alike, strict=True)
    ]
    columns.append(Column("config", "left", configs, below=True))
    if not (of_op and all(map(_at_default, shown))):
        limits = [row.power_limit_w if hasattr(row, "power_limit_w") else row.point.power_limit_w for row in shown]
        columns.append(quantities("power limit", "W", limits))
        clocks = ["-" if row.point.clock_hz is None else f"{row.point.clock_hz / 1e6:.0f}" for row in shown]
        locked = any(row.point.clock_hz is not None for row in shown)
        columns.append(Column("locked clock [MHz]", "right", clocks, ALWAYS if locked else USUALLY))
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
        Column("source", "left", [_source_text(row) for row in shown], styles=[row.source for row in shown]),
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
    measured = ["" if isinstance(row, StackRow) else measurement_text(row) for row in shown]
    columns += [
        *([Column("measured", "left", measured, below=True)] if any(measured) else []),
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


def _source_text(row: "Row") -> str:
    if isinstance(row, StackRow):
        return row.source
    return source_text(row) + (": may be faster" if getattr(row, "may_be_faster", False) else "")


def _at_default(row: "Row") -> bool:
    """Whether a row holds at the card's default power limit with the clock not locked."""
    default_w = row.gpu.tdp_w if hasattr(row, "gpu") else row.point.power_limit_w
    return row.point.clock_hz is None and row.point.power_limit_w in (None, default_w)


def _saving_text(saving: "Saving", compared: str) -> str:
    """The saving of the first choice's config at a lower limit, as a sentence."""
    clock = saving.point.clock_hz
    point = f"locked to {human(clock, 'Hz')}" if clock else f"at a power limit of {human(saving.power_limit_w, 'W')}"
    slower = f"{saving.slowdown * 100:.1f} % longer" if saving.slowdown >= 0.0005 else "as long"
    saved = f"{saving.energy_saved * 100:.0f} % less energy"
    return f"{point[0].upper()}{point[1:]}, the first config takes {slower} and {saved} than at {compared}."
