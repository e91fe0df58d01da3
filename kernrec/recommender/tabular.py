"""Convert answers to rows of plain values, and to text, HTML and Arrow tables, for programs and notebooks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

from kernrec.util.human import flat_rows, human, short_config
from kernrec.util.optional import import_optional

Rows = Iterable[tuple[str, ...]]
_COMMON = ("op", "problem", "dtype", "layout", "gpu", "objective")
"""Columns that have one value for the whole answer."""


def plain_rows(answer: Any) -> list[dict[str, Any]]:
    """Return a row for each recommendation, then for each baseline. Only rows of baselines have the key `backend`."""
    whole = answer.as_dict()
    common = {name: whole[name] for name in _COMMON}
    return [common | row for row in (*whole["recommendations"], *whole["baselines"])]


def arrow_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Convert rows to a `pyarrow.Table`. Raise `KernrecError` if PyArrow is not installed."""
    arrow = import_optional("pyarrow", "a table of Arrow", "arrow")
    return arrow.Table.from_pylist(flat_rows(rows))


def title(answer: Any, subject: Any) -> str:
    return f"{subject.title} on {answer.gpu.title}, objective {answer.objective}"


def summary(answer: Any) -> str:
    about = f"Recommendation {answer.problem.title} on {answer.gpu.name}, {answer.objective}"
    if not answer.recommendations:
        return f"<{about}: no recommendation, {len(answer.baselines)} baselines>"
    count = f"{len(answer.recommendations)} recommendation{'s' * (len(answer.recommendations) > 1)}"
    return f"<{about}: {count}, first {_words(answer.best)}>"


def recommendation_summary(recommendation: Any) -> str:
    subject = f"{recommendation.problem.title} on {recommendation.gpu.name}"
    return f"<Recommendation {recommendation.place} of {subject}: {_words(recommendation)}>"


def _words(recommendation: Any) -> str:
    cost = f"{human(recommendation.latency_s.value, 's')}, {human(recommendation.energy_j.value, 'J')}"
    limited = recommendation.power_limit_w < recommendation.gpu.tdp_w
    limit = f" at {human(recommendation.power_limit_w, 'W')}" if limited else ""
    return f"{recommendation.kernel.name} {short_config(recommendation.config)}, {cost}{limit}, {recommendation.source}"


def text(caption: str, *tables: Rows) -> str:
    """Return a caption and tables as text. The first row of each table is the heading."""
    return f"{caption}\n" + "\n\n".join(map(_aligned, tables))


def html(caption: str, notes: Iterable[str], *tables: Rows) -> str:
    """Return tables and notes as HTML for a notebook. The first row of each table is its heading."""
    from html import escape  # Import lazily, because only notebooks need HTML.

    parts = []
    for rows, above in zip(tables, chain((caption,), repeat(""))):  # noqa: B905 - captions are endless
        heading, *others = (tuple(map(escape, row)) for row in rows)
        body = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in others)
        head = f"<thead><tr><th>{'</th><th>'.join(heading)}</th></tr></thead>"
        parts.append(f"<table><caption>{escape(above)}</caption>{head}<tbody>{body}</tbody></table>")
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return "".join([*parts, f"<ul>{items}</ul>" if items else ""])


def totals(answer: Any) -> Iterator[tuple[str, ...]]:
    yield "total", "latency (90 %)", "energy (90 %)", "source"
    for total in answer.totals:
        yield total.label, interval_text(total.latency_s, "s"), interval_text(total.energy_j, "J"), total.source


def layers(answer: Any) -> Iterator[tuple[str, ...]]:
    yield "layer", "count", "runs", "latency", "energy", "source", "config"
    for layer in answer.layers:
        latency, energy = layer.run_costs
        program, config = layer.program
        costs = human(latency.value, "s"), human(energy.value, "J")
        yield layer.name, str(layer.count), program, *costs, layer.source, config


def _aligned(rows: Rows) -> str:
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


def cells(answer: Any) -> Iterator[tuple[str, ...]]:
    yield "rank", "kernel", "latency (90 %)", "energy (90 %)", "power limit", "source", "config"
    rows = [(row.place, row.kernel.name, row, short_config(row.config)) for row in answer.recommendations]
    rows += [("", baseline.dated_name, baseline, "") for baseline in answer.baselines]
    for rank, name, row, config in rows:
        energy = "" if row.energy_j is None else interval_text(row.energy_j, "J")
        costs = interval_text(row.latency_s, "s"), energy
        yield rank, name, *costs, human(row.power_limit_w, "W"), str(row.source), config


def interval_text(estimate: Any, unit: str) -> str:
    return f"{human(estimate.value, unit)} ({range_text(estimate.low, estimate.high, unit)})"


def range_text(low: float, high: float, unit: str) -> str:
    """Format the ends of a range. If both ends have the same unit, write the unit only once."""
    low_text, high_text = human(low, unit), human(high, unit)
    if low_text.split(" ")[-1] == high_text.split(" ")[-1]:
        low_text = low_text.split(" ")[0]
    return f"{low_text} to {high_text}"
