"""The tables of choices that `recommend` and `analyze` print."""

from typing import TYPE_CHECKING

from kernrec.cli.format import config_text, interval_text, measurement_text, print_notes, source_text
from kernrec.cli.quantity import percent
from kernrec.cli.table import print_table
from kernrec.util.human import human

if TYPE_CHECKING:
    from kernrec.recommender import Choice, LayerAnswer, Recommendation
    from kernrec.recommender.result import Saving

Column = tuple[str, str]
"""Heading and alignment."""


def print_choices(answer: "Recommendation") -> None:
    """The choices for one problem, and the notes; of a kernel beside what the occupancy heuristic picks."""
    about = answer.about_kernel
    title = f"{answer.problem.key} on {answer.gpu.title}, objective {answer.objective}"
    swept = any(choice.point != answer.point for choice in answer.choices)
    if about is None:
        title += f", {'default ' if swept else ''}power limit {human(answer.power_limit_w, 'W')}"
    elif answer.problem.op != about.kernel.name:
        title = f"{about.kernel.name} {title}"
    shown = [*answer.choices, *([about.heuristic] if about else [])]
    measured = any(choice.measurement for choice in shown)
    locked = any(choice.point.clock_hz != answer.point.clock_hz for choice in shown)
    cells = [
        {
            **(_point(choice, locked) if about or swept else {}),
            **_costs(choice),
            **(_of_kernel(choice) if about else _of_op(choice)),
            **_tail(choice, measured),
        }
        for choice in shown
    ]
    if about:
        cells[-1]["config", "left"] += "  <- occupancy heuristic"
    order = _KERNEL_ORDER if about else _OP_ORDER
    columns = [column for column in order if column in cells[0]]
    print_table(title, columns, [[row[column] for column in columns] for row in cells])
    if answer.saving is not None:
        print(_saving_text(answer.saving, human(answer.power_limit_w, "W")))
    print_notes(answer.notes)


def print_layers(title: str, layers: "list[LayerAnswer]") -> None:
    """The first choice of each layer, and the notes."""
    first = layers[0].answer
    measured = any(layer.answer.best.measurement for layer in layers)
    cells: list[dict[Column, str]] = []
    for layer in layers:
        best = layer.answer.best
        row = {
            ("layer", "left"): layer.name,
            ("count", "right"): str(layer.count),
            ("kernel", "left"): best.kernel.name,
        }
        row |= {column: text for column, text in _costs(best).items() if column != _GRID}
        cells.append(row | {_ENERGY_VS_OCCUPANCY: percent(-best.versus_occupancy.energy_saved)} | _tail(best, measured))
    columns = list(cells[0])
    title = f"{title} on {first.gpu.title}, objective {first.objective}: the first choice of each layer"
    print_table(title, columns, [[row[column] for column in columns] for row in cells])
    print_notes(note for layer in layers for note in layer.answer.notes)


def _saving_text(saving: "Saving", compared: str) -> str:
    """What the first choice's config saves at a lower limit, as a sentence."""
    clock = saving.point.clock_hz
    where = f"locked to {human(clock, 'Hz')}" if clock else f"at a power limit of {human(saving.power_limit_w, 'W')}"
    slower = f"{saving.slowdown * 100:.1f} % longer" if saving.slowdown >= 0.0005 else "as long"
    saved = f"{saving.energy_saved * 100:.0f} % less energy"
    return f"{where[0].upper()}{where[1:]}, the first config takes {slower} and {saved} than at {compared}."


_GRID = ("grid x block", "right")
_POWER_LIMIT = ("power limit", "right")
_LOCKED_CLOCK = ("locked clock", "right")
_ENERGY_VS_OCCUPANCY = ("energy vs occupancy", "right")
_TIME_VS_OCCUPANCY = ("time vs occupancy", "right")


def _point(choice: "Choice", locked: bool) -> dict[Column, str]:
    cells = {_POWER_LIMIT: human(choice.power_limit_w, "W")}
    if locked:
        cells[_LOCKED_CLOCK] = human(choice.point.clock_hz, "Hz") if choice.point.clock_hz else "-"
    return cells


def _costs(choice: "Choice") -> dict[Column, str]:
    first = choice.launches[0]
    return {
        _GRID: f"{first.blocks} x {first.threads}",
        ("latency (90 %)", "right"): interval_text(choice.latency_s, "s"),
        ("energy (90 %)", "right"): interval_text(choice.energy_j, "J"),
        ("power", "right"): human(choice.power_w, "W"),
        ("source", "left"): source_text(choice),
        ("bottleneck", "left"): choice.bottleneck,
    }


def _of_op(choice: "Choice") -> dict[Column, str]:
    return {
        ("rank", "right"): str(choice.place),
        ("kernel", "left"): choice.kernel.name,
        ("energy vs fastest", "right"): percent(-choice.versus_fastest.energy_saved),
        ("time vs fastest", "right"): percent(choice.versus_fastest.slowdown),
        _ENERGY_VS_OCCUPANCY: percent(-choice.versus_occupancy.energy_saved),
        _TIME_VS_OCCUPANCY: percent(choice.versus_occupancy.slowdown),
    }


def _of_kernel(choice: "Choice") -> dict[Column, str]:
    return {
        ("occupancy", "right"): f"{choice.occupancy * 100:.0f} %",
        _ENERGY_VS_OCCUPANCY: percent(-choice.versus_occupancy.energy_saved),
        _TIME_VS_OCCUPANCY: percent(choice.versus_occupancy.slowdown),
    }


def _tail(choice: "Choice", measured: bool) -> dict[Column, str]:
    shown = {("measured", "left"): measurement_text(choice)} if measured else {}
    return shown | {("config", "left"): config_text(choice.config)}


_COSTS: tuple[Column, ...] = (
    _GRID,
    ("latency (90 %)", "right"),
    ("energy (90 %)", "right"),
    ("power", "right"),
    ("source", "left"),
    ("bottleneck", "left"),
)
_VERSUS_OCCUPANCY: tuple[Column, ...] = (
    _ENERGY_VS_OCCUPANCY,
    _TIME_VS_OCCUPANCY,
    ("measured", "left"),
    ("config", "left"),
)
_OP_ORDER: tuple[Column, ...] = (
    ("rank", "right"),
    ("kernel", "left"),
    _POWER_LIMIT,
    _LOCKED_CLOCK,
    *_COSTS,
    ("energy vs fastest", "right"),
    ("time vs fastest", "right"),
    *_VERSUS_OCCUPANCY,
)
_KERNEL_ORDER: tuple[Column, ...] = (
    _POWER_LIMIT,
    _LOCKED_CLOCK,
    *_COSTS,
    ("occupancy", "right"),
    *_VERSUS_OCCUPANCY,
)
