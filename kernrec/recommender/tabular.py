"""Convert answers to rows of plain values, and rows to text, HTML and Arrow, for programs and notebooks.

A row is a recommendation or a baseline, with the columns of `--format csv` in SI units. The answer classes import
this module to display themselves, so it cannot import them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kernrec.util.config_short import short_config
from kernrec.util.flat_rows import flat_rows
from kernrec.util.human import human
from kernrec.util.optional import import_optional

_COMMON = ("op", "problem", "dtype", "layout", "gpu", "objective")
"""Names of values that are equal in all rows."""


def plain_rows(answer: Any) -> list[dict[str, Any]]:
    """Return a row of nested plain values for each recommendation, then each baseline; only baselines have `stack`."""
    whole = answer.as_dict()
    common = {name: whole[name] for name in _COMMON}
    return [common | row for row in (*whole["choices"], *whole["lines"])]


def arrow_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a `pyarrow.Table` of rows, for pandas (`.to_pandas()`) and polars (`polars.from_arrow`).

    Raises:
        KernrecError: PyArrow is not installed.
    """
    arrow = import_optional("pyarrow", "a table of Arrow", "arrow")
    return arrow.Table.from_pylist(flat_rows(rows))


def title(answer: Any) -> str:
    """Return the question: problem, GPU and objective."""
    return f"{answer.problem.title} on {answer.gpu.title}, objective {answer.objective}"


def summary(answer: Any) -> str:
    """Return the answer in one line."""
    about = f"Recommendation {answer.problem.title} on {answer.gpu.name}, {answer.objective}"
    if not answer.choices:
        return f"<{about}: no choice, {len(answer.lines)} lines of stacks>"
    count = f"{len(answer.choices)} choice{'s' * (len(answer.choices) > 1)}"
    return f"<{about}: {count}, first {_words(answer.best)}>"


def choice_summary(choice: Any) -> str:
    """Return a recommendation in one line."""
    return f"<Choice {choice.place} of {choice.problem.title} on {choice.gpu.name}: {_words(choice)}>"


def _words(choice: Any) -> str:
    cost = f"{human(choice.latency_s.value, 's')}, {human(choice.energy_j.value, 'J')}"
    limit = "" if choice.power_limit_w >= choice.gpu.tdp_w else f" at {human(choice.power_limit_w, 'W')}"
    return f"{choice.kernel.name} {short_config(choice.config)}, {cost}{limit}, {choice.source}"


def text(answer: Any) -> str:
    """Return the table of an answer: recommendations, then baselines."""
    return "\n".join([title(answer), *_aligned(_cells(answer))])


def html(answer: Any) -> str:
    """Return the table of an answer as HTML for a notebook."""
    return _html(title(answer), _cells(answer)) + _list(answer.notes)


def network_text(answer: Any) -> str:
    """Return the totals of a network, then its layers."""
    return "\n".join([_network_title(answer), *_aligned(_totals(answer)), "", *_aligned(_layers(answer))])


def network_html(answer: Any) -> str:
    """Return the totals and the layers of a network as HTML for a notebook."""
    return _html(_network_title(answer), _totals(answer)) + _html("", _layers(answer)) + _list(answer.notes)


def _network_title(answer: Any) -> str:
    return f"{answer.workload.title} on {answer.gpu.title}, objective {answer.objective}"


def _totals(answer: Any) -> Iterator[tuple[str, ...]]:
    yield "total", "latency (90 %)", "energy (90 %)", "source"
    for total in answer.totals:
        yield total.name, _interval(total.latency_s, "s"), _interval(total.energy_j, "J"), total.source


def _layers(answer: Any) -> Iterator[tuple[str, ...]]:
    yield "layer", "count", "runs", "latency", "energy", "source", "config"
    for layer in answer.layers:
        latency, energy = layer.run_costs
        program, config = layer.program
        costs = human(latency.value, "s"), human(energy.value, "J")
        yield layer.name, str(layer.count), program, *costs, layer.source, config


def _aligned(rows: Iterable[tuple[str, ...]]) -> list[str]:
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(c.ljust(width) for c, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _html(caption: str, rows: Iterable[tuple[str, ...]]) -> str:
    from html import escape  # Only notebooks need it.

    heading, *others = (tuple(map(escape, row)) for row in rows)
    body = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in others)
    head = f"<thead><tr><th>{'</th><th>'.join(heading)}</th></tr></thead>"
    return f"<table><caption>{escape(caption)}</caption>{head}<tbody>{body}</tbody></table>"


def _list(notes: Iterable[str]) -> str:
    from html import escape

    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<ul>{items}</ul>" if items else ""


def _cells(answer: Any) -> Iterator[tuple[str, ...]]:
    """Yield the heading and the rows of the table for display."""
    yield "rank", "kernel", "latency (90 %)", "energy (90 %)", "power limit", "source", "config"
    for choice in answer.choices:
        costs = (_interval(choice.latency_s, "s"), _interval(choice.energy_j, "J"))
        config = short_config(choice.config)
        yield (
            str(choice.place),
            choice.kernel.name,
            *costs,
            human(choice.power_limit_w, "W"),
            str(choice.source),
            config,
        )
    for line in answer.lines:
        yield "", line.dated_name, *_line_costs(line), human(line.power_limit_w, "W"), line.source, ""


def _interval(estimate: Any, unit: str) -> str:
    low, high = human(estimate.low, unit), human(estimate.high, unit)
    if low.split(" ")[-1] == high.split(" ")[-1]:
        low = low.split(" ")[0]
    return f"{human(estimate.value, unit)} ({low} to {high})"


def _line_costs(line: Any) -> tuple[str, str]:
    energy = "" if line.energy_j is None else _interval(line.energy_j, "J")
    return _interval(line.latency_s, "s"), energy
