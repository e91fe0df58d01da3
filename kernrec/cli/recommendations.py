"""Print tables for one problem: recommended configs, and the baselines of backends."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernrec.cli.output import (
    ALWAYS,
    SELDOM,
    USUALLY,
    Column,
    NotePrinter,
    measurement_text,
    print_columns,
    print_line,
    quantities,
    source_text,
)
from kernrec.cli.quantity import percent
from kernrec.util.human import human, short_config

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from kernrec.gpu import GPU
    from kernrec.recommender import Answer, Recommendation
    from kernrec.recommender.baselines import Baseline
    from kernrec.recommender.result import Foreign, Saving

    Row = Recommendation | Foreign | Baseline


def print_recommendations(answer: "Answer", notes: NotePrinter | None = None) -> None:
    """Print the recommendations for one problem on one GPU."""
    notes = notes or NotePrinter()
    if answer.no_kernel is not None:
        _print_baselines(answer, answer.no_kernel, notes)
        return
    kernel, heuristic = answer.kernel, answer.occupancy_heuristic
    title = f"{answer.problem.title} on {answer.gpu.title}, objective {answer.objective}"
    ranked: list[Recommendation | Foreign] = [*answer.recommendations, *answer.foreign]
    if answer.foreign:
        ranked.sort(key=lambda row: _value(answer, row))
    shown = _with_baseline(answer, [*ranked, *answer.beside])
    if answer.layout_chosen:
        title += f", layout {answer.problem.layout} chosen"
    if kernel is None:
        title += f", {_operating_point(answer)}"
    elif answer.problem.op != kernel.name:
        title = f"{kernel.name} {title}"
    if heuristic is not None:
        marks = [*[""] * len(shown), "<- occupancy heuristic"]
        rows: list[Row] = [*shown, heuristic]
        columns = recommendation_columns(rows, [answer.gpu] * len(rows), of_op=False)
        columns.append(Column("", "left", marks, below=True))
    else:
        ranks = [row.place if row in answer.recommendations else "" for row in shown]
        columns = [Column("rank", "right", ranks), *recommendation_columns(shown, [answer.gpu] * len(shown))]
    print_columns(title, columns)
    if (faster := _may_be_faster(answer)) is not None:
        print_line(_measure_text(answer, faster))
    if answer.saving is not None:
        print_line(_saving_text(answer.saving, human(answer.power_limit_w, "W")))
    for text in baseline_texts(answer.baselines, answer.gpu):
        print_line(text)
    notes.print(answer.notes)


def print_gpus(answers: "Sequence[Answer]", notes: NotePrinter) -> None:
    """Print the best config and the best baseline for one problem on several GPUs."""
    first = answers[0]
    gpus: list[GPU] = []
    shown: list[Row] = []
    for answer in answers:
        rows: list[Row] = [answer.ranked_baselines[0]] if answer.baselines else []
        if answer.no_kernel is None:
            rows.insert(0 if answer.leading_baseline is None else 1, answer.best)
        shown += rows
        gpus += [answer.gpu] * len(rows)
    title = f"{first.problem.title}, objective {first.objective}: the best config and the best baseline of each GPU"
    print_columns(title, [Column("GPU", "left", [gpu.name for gpu in gpus]), *recommendation_columns(shown, gpus)])
    fastest = min(range(len(shown)), key=lambda number: shown[number].latency_s.value)
    print_line(f"The fastest is expected to be {gpus[fastest].name} with {_name(shown[fastest])}.")
    notes.print(note for answer in answers for note in answer.notes)
    notes.print(f"{answer.gpu.name}: {answer.no_kernel}" for answer in answers if answer.no_kernel)


def _print_baselines(answer: "Answer", reason: str, notes: NotePrinter) -> None:
    limit = human(answer.power_limit_w, "W")
    clock = "" if answer.point.clock_hz is None else f", locked to {human(answer.point.clock_hz, 'Hz')}"
    title = f"{answer.problem.key} on {answer.gpu.title}, power limit {limit}{clock}: baselines, fastest first"
    baselines = answer.baselines
    versus = ["-", *(percent(each.latency_s / baselines[0].latency_s - 1) for each in baselines[1:])]
    columns = [
        Column("backend", "left", [each.dated_name for each in baselines]),
        quantities("latency", "s", [each.latency_s for each in baselines]),
        Column("vs first", "right", versus),
        quantities("energy", "J", [each.energy_j for each in baselines], USUALLY),
        quantities("power", "W", [each.power_w for each in baselines], importance=USUALLY),
        Column("source", "left", [each.source for each in baselines]),
        Column(
            "recorded on",
            "left",
            [re.sub(f"^({each.source} )?(on )?(from )?", "", each.basis) for each in baselines],
            SELDOM,
        ),
    ]
    print_columns(title, columns)
    print_line(f"There are only baselines: {reason}.")
    notes.print(answer.notes)


def _operating_point(answer: "Answer") -> str:
    limits = {recommendation.power_limit_w for recommendation in (*answer.recommendations, *answer.beside)}
    clocks = {recommendation.point.clock_hz for recommendation in (*answer.recommendations, *answer.beside)}
    text = "each row at its own power limit"
    if len(limits) == 1:
        (limit_w,) = limits
        text = f"{'default ' * (limit_w == answer.gpu.tdp_w)}power limit {human(limit_w, 'W')}"
    if clocks != {None}:
        (*_, clock_hz) = clocks
        text += ", clock of each row" if len(clocks) > 1 else f", clock locked at {human(clock_hz or 0.0, 'Hz')}"
    return text


def _with_baseline(answer: "Answer", shown: "list[Recommendation | Foreign]") -> "list[Row]":
    """Insert the best baseline by its cost. Only `leading_baseline` may precede the top recommendation."""
    if not answer.baselines or answer.kernel is not None:
        return [*shown]
    leading = answer.leading_baseline
    baseline = leading or answer.ranked_baselines[0]
    place = 0
    if leading is None:
        cost = answer.value_of(baseline.latency_s, baseline.energy_j)
        later = (place for place, row in enumerate(shown) if _value(answer, row) > cost)
        place = max(next(later, len(shown)), 1)
    return [*shown[:place], baseline, *shown[place:]]


def _may_be_faster(answer: "Answer") -> "Recommendation | None":
    first_s = answer.best.latency_s.value if answer.leading_baseline is None else answer.leading_baseline.latency_s
    rows = [
        row for row in (*answer.recommendations, *answer.beside) if row.unsure > 1.0 and row.latency_s.value < first_s
    ]
    leads = [row for row in rows if row.may_be_faster or answer.leading_baseline is not None]
    return min(leads, key=lambda row: row.latency_s.value, default=None)


def _measure_text(answer: "Answer", faster: "Recommendation") -> str:
    problem, baseline = answer.problem, answer.leading_baseline
    name, first_s = (
        (baseline.backend, baseline.latency_s) if baseline else (answer.best.kernel.name, answer.best.latency_s.value)
    )
    dims = ",".join(f"{name}={value}" for name, value in problem.dims)
    command = f"kernrec collect --op {problem.op} --shape {dims} --dtype {problem.dtype} --layout {problem.layout}"
    return (
        f"{faster.kernel.name} may take {(1 - faster.latency_s.value / first_s) * 100:.1f} % less time than {name}:"
        f" within the model's error, and not measured yet. To check: `{command}`"
    )


def _value(answer: "Answer", row: "Recommendation | Foreign") -> float:
    return answer.value_of(row.latency_s.value, row.energy_j.value if row.energy_j else None)


def recommendation_columns(shown: "Sequence[Row]", gpus: "Sequence[GPU]", of_op: bool = True) -> list[Column]:
    """Return the columns of a table of recommendations and baselines, most important first.

    Args:
        of_op: Whether rows may belong to several kernels.
    """
    columns = [Column("kernel", "left", [_name(row) for row in shown], below=True)] if of_op else []
    alike = [getattr(row, "alike", 0) for row in shown]
    configs = [
        short_config(row.config) + f" (and {n} alike)" * (n > 0) if hasattr(row, "config") else ""
        for row, n in zip(shown, alike, strict=True)
    ]
    columns.append(Column("config", "left", configs, below=True))
    locked = [row.locked_clock_hz for row in shown]
    limits = [row.power_limit_w for row in shown]
    default = [limit in (None, gpu.tdp_w) for limit, gpu in zip(limits, gpus, strict=True)]
    if not (of_op and all(default) and not any(locked)):
        clocks = ["-" if clock is None else f"{clock / 1e6:.0f}" for clock in locked]
        columns.append(quantities("power limit", "W", limits))
        columns.append(Column("locked clock [MHz]", "right", clocks, ALWAYS if any(locked) else USUALLY))
    sources = [
        row.source + f", {row.warm} in L2" * bool(row.warm)
        if _is_baseline(row)
        else source_text(row) + ": may be faster" * getattr(row, "may_be_faster", False)
        for row in shown
    ]
    columns += [
        quantities("latency", "s", [row.latency_s for row in shown]),
        quantities("energy", "J", [row.energy_j for row in shown]),
        quantities("power", "W", [row.power_w for row in shown], importance=USUALLY),
        Column("source", "left", sources),
        Column("bottleneck", "left", [getattr(row, "bottleneck", "") for row in shown], USUALLY),
    ]
    if of_op:
        against = [getattr(row, "versus_fastest", None) for row in shown]
        time = ["" if versus is None else percent(versus.slowdown) for versus in against]
        energy = ["" if versus is None else percent(-versus.energy_saved) for versus in against]
        columns += [
            Column("time vs fastest", "right", time, SELDOM),
            Column("energy vs fastest", "right", energy, SELDOM),
        ]
    launches = [row.launches[0] if hasattr(row, "launches") else None for row in shown]
    grids = ["" if launch is None else f"{launch.blocks} x {launch.threads}" for launch in launches]
    measured = ["" if _is_baseline(row) else measurement_text(row) for row in shown]
    return [
        *columns,
        *([Column("measured", "left", measured, below=True)] if any(measured) else []),
        Column("grid x block", "right", grids, SELDOM),
    ]


def _is_baseline(row: "Row") -> "TypeIs[Baseline]":
    return not hasattr(row, "kernel")


def _name(row: "Row") -> str:
    if _is_baseline(row):
        return row.name
    return row.kernel if isinstance(row.kernel, str) else row.kernel.name


def _saving_text(saving: "Saving", compared: str) -> str:
    clock = saving.locked_clock_hz
    limit = human(saving.power_limit_w, "W")
    change = f"Locking the clock at {human(clock, 'Hz')}" if clock else f"Capping the GPU at {limit}"
    slower = f"{saving.slowdown * 100:.1f} % speed" if saving.slowdown >= 0.0005 else "no speed"
    return f"{change} instead of {compared} costs {slower} and saves {saving.energy_saved * 100:.0f} % energy."


def baseline_texts(baselines: "Sequence[Baseline]", gpu: "GPU") -> list[str]:
    """Return lines that compare the baselines with each other and with the best kernel."""
    if not baselines:
        return []
    from kernrec.recommender.tabular import interval_text

    first, *others = baselines
    text = f"{first.dated_name}: {interval_text(first.latency_s, 's')}"
    if first.energy_j is not None and first.power_w is not None:
        of_others = first.power_transferred and first.source == "learned"
        basis = " predicted" if first.power_predicted else " transferred" * of_others
        power = f"{human(first.power_w, 'W')}{basis}"
        text += f", {human(first.energy_j, 'J')} ({power})"
    limit = "" if first.power_limit_w == gpu.tdp_w else f" at {human(first.power_limit_w, 'W')}"
    clock = "" if first.locked_clock_hz is None else f" at {human(first.locked_clock_hz, 'Hz')}"
    text += f"{limit}{clock}, {first.basis}"
    against = ", ".join(f"{each.dated_name} {percent(each.latency_s / first.latency_s - 1)}" for each in others)
    texts = [f"{text}; {against}" if against else text]
    if first.slowdown is not None:
        from kernrec.recommender.baselines import NEARLY

        saved = "" if first.energy_saved is None else f" and {_more_or_less(-first.energy_saved)} energy"
        uncertain = first.faster or (first.slowdown > NEARLY and not first.beaten)
        advice = f"; run {first.backend}" if first.advised else ", within the estimates' error" if uncertain else ""
        time = f"{_more_or_less(first.slowdown)} time"
        text = f"{first.backend} is expected to take {time}{saved} than the best kernel{advice}."
        if uncertain and first.source in ("transferred", "predicted") and not first.advised:
            text += f" The estimate of {'the baseline' if first.less_sure else 'the kernel'} is the less certain one."
        texts.append(text)
    return texts


def _more_or_less(change: float) -> str:
    return f"{percent(abs(change)).removeprefix('+')} {'more' if change >= 0 else 'less'}"
