"""All figures that the prior is held against, on one page: today's, the aim, and what no fit has seen of them.

    tools/evidence prior --sources FOLDER --json prior.json
    tools/evidence power --json power.json
    tools/evidence prior-figures --errors prior.json [--errors another.json] --power power.json

Nothing is predicted anew; rows whose recordings are in no file are left out. `seen` are figures of recordings that
constants of the prior were fitted to, or chosen with in view; they are no test. `left out` are figures of a kernel, a
card or a shape that took no part in the fit that is tested. Recordings that are kept back for a last test are not read:
their rows say so.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from kernrec.training.scores import NEAR

from .energy_intervals import Power, TwoParts, power_rows
from .energy_intervals import coverage as energy_coverage
from .intervals import Errors, Rows, coverage, read_errors
from .library_shapes import FASTEST
from .profiled import TEXTBOOK
from .scores import within

NOT_RUN = "kept back, not run"
BEYOND = 1.5
KINDS = {"kernel": "88 to 93 %", "card": "at least 85 %"}
"""The kinds that are left out, and how much of one an interval is to cover."""
OF_SPACES = {"rank": ("rank correlation", "0.90"), "error": ("median error, no scale", "12 %"),
             "first": ("first choice", "0.95"), "of 5": ("best of five", "0.99")}  # fmt: skip
_Row = tuple[str, str, str, str]
"""Name, today's figure, the aim, and what has been seen of it."""
_Entries = Sequence[dict[str, Any]]


def run(errors: Errors, power: Power) -> None:
    """Print the table, as Markdown."""
    documents = {path: json.loads(path.read_text(encoding="utf-8")) for path in errors if path.is_file()}
    # Of the library's kernels there are figures, but no errors of launches.
    entries = read_errors([path for path in errors if documents.get(path, {}).get("errors") != []])
    of_power, figures = power_rows(power), json.loads(power.read_text(encoding="utf-8"))
    tables = {
        name: [row for document in documents.values() for row in document.get(name, [])]
        for name in ("sweeps", "spaces", "shapes")
    }
    parts = (
        _textbook(tables["sweeps"], entries), _spaces(tables["spaces"]), _intervals(entries, of_power),
        _power(figures), _energy(figures, entries), _products(tables["shapes"]),
    )  # fmt: skip
    for row in (("figure", "today", "aim", "seen or left out"), ("---",) * 4, *chain.from_iterable(parts)):
        print("|", re.sub(r"(?<=\d)%", " %", " | ".join(row)), "|", flush=True)


def _textbook(sweeps: _Entries, entries: _Entries) -> Iterator[_Row]:
    kernels = {path.stem for path in TEXTBOOK.glob("*.toml")}
    ratios = np.exp(-np.array([entry["error"] for entry in entries if entry["kernel"] in kernels]))
    if sweeps:
        near = f"{within([float(row['kernrec']) for row in sweeps])} of {len(sweeps)}"
        yield f"textbook sweeps within {100 * NEAR:.0f} % of the best", near, "28 of 35", "seen: two cards"
    yield "35 textbook sweeps, five cards", NOT_RUN, "28 of 35", "21 of 35 in a test before"
    if len(ratios):
        outside = np.mean(np.abs(np.log(ratios)) > np.log(BEYOND))
        today = f"{np.median(np.abs(ratios - 1)):.1%}; {outside:.0%} of {len(ratios)}"
        yield f"textbook times: median error; beyond {BEYOND:g}x", today, "9 %; 7 %", "seen: two cards"
    yield "210 textbook times, five cards", NOT_RUN, "9 %; 7 %", "15 %; 21 % in a test before"


def _spaces(spaces: _Entries) -> Iterator[_Row]:
    kernels = len({row["set"] for row in spaces})
    for key, (title, aim) in OF_SPACES.items() if spaces else ():
        values = [_number(row[key]) for row in spaces]
        percent = str(spaces[0][key]).endswith("%")
        middle = f"{np.median(values):.1%}" if percent else f"{np.median(values):.2f}"
        seen = f"causes were found on them: {len(spaces)} recordings of {kernels} kernels"
        yield f"spaces: {title}", f"{middle} ({_span(values, percent)})", aim, seen
    yield "nine spaces, other cards", NOT_RUN, "as above", "rank 0.58 to 0.97, error 10 to 34 % in a test before"


def _intervals(entries: list[dict[str, Any]], of_power: Rows) -> Iterator[_Row]:
    times, both = Rows.of(entries, "free"), TwoParts(Rows.of(entries, "energy by free"), of_power)
    for kind, aim in KINDS.items():
        cells = coverage(times, kind)
        seen = f"{cells['groups']} {kind}s, each left out of the widths, but seen by the prior"
        yield f"90 % interval of a time: {kind}s", _interval(cells, "time"), f"1.6; {aim}", seen
        yield f"90 % interval of a ratio: {kind}s", _interval(cells, "ratio"), f"1.4; {aim}", seen
    for kind, aim in KINDS.items():
        for cells in energy_coverage(both, kind):
            seen = f"{cells['groups']} left out of the widths; power is of fits without the card"
            yield f"90 % interval of an energy: {cells['left out']}", _interval(cells, "energy"), aim, seen


def _power(figures: dict[str, Any]) -> Iterator[_Row]:
    rows = [row for row in figures["recordings"].values() if "error left out" in row and not row["doubted"]]
    for key, title, seen in (("error left out", "cards left out", "left out of the fit"), ("error", "fitted", "seen")):
        errors = [_number(row[key]) for row in rows]
        if errors:
            today = f"{np.median(errors):.1%} ({_span(errors, True)})"
            yield f"power under load, {title}", today, "10 %", f"{len(errors)} recordings, {seen}"
    held = [row for row in figures["held"].values() if "left out" in row]
    for key, title, seen in (("left out", "cards left out", "left out of the fit"), ("fitted", "fitted", "seen")):
        if held:
            today = _span([row[key] for row in held])
            yield f"throughput at the limit, {title}", today, "0.9 to 1.1", f"{len(held)} large products, {seen}"
    if lasting := [row["fitted"] for row in figures["sustained"].values()]:
        title, seen = "the same of random numbers, in runs of a second", f"{len(lasting)} large products, in no fit"
        yield title, _span(lasting), "0.9 to 1.1", seen
    why = "0.61 to 1.56 in a test before, seen since"
    yield "throughput at 240 to 600 W, RTX PRO 6000", NOT_RUN, "0.9 to 1.1", why


def _energy(figures: dict[str, Any], entries: _Entries) -> Iterator[_Row]:
    sweeps = [sweep for each in figures["sweeps"].values() for sweep in each]
    if sweeps:
        steps, errors, _ = np.array(sweeps).T
        seen = f"{len(sweeps)} sweeps over clocks, cards left out of the fit; most of one RTX 8000"
        yield "energy for recorded times", f"{np.median(errors):.1%} ({_span(errors, True)})", "15 %", seen
        yield "clock of least energy within one step", f"{np.mean(steps <= 1):.0%}", "90 %", seen
    for kernel in dict.fromkeys(entry["kernel"] for entry in entries if "joules, error" in entry):
        joules = [entry["joules, error"] for entry in entries if entry["kernel"] == kernel]
        today = f"{np.median(np.abs(np.exp(-np.array(joules)) - 1)):.1%}"
        yield (
            f"energy with the predicted time: {kernel}",
            today,
            "15 %",
            f"{len(joules)} configs, nothing fitted to them",
        )
    off = f"{figures['least energy off W']:.0f} W off"
    yield "limit of least energy, RTX 3090", off, "one step", "TF32 product; two of its limits were fitted"


def _products(shapes: _Entries) -> Iterator[_Row]:
    every = [row for row in shapes if "product" in row["set"]]
    if products := [row for row in every if FASTEST not in row["set"]]:
        alone, answered = ([float(row[key]) for row in products] for key in ("prior alone", "ratio"))
        seen = f"seen: {len(products)} recordings, {sum(row['shapes'] for row in products)} shapes"
        yield "GEMM, own kernels over libraries: prior alone", _span(alone), "0.85 to 1.15", seen
        yield "GEMM as answered", _span(answered), "0.85 to 1.15", f"{seen}, by models of lines, too"
        yield "GEMM as answered: largest lead over a library", f"{max(0.0, 1.0 - min(answered)):.0%}", "5 %", "seen"
        best = {row["card"]: float(row["ratio"]) for row in (*products, *every)}  # the fastest where it was recorded
        why = "seen: cuBLAS, or a recorded kernel that is faster"
        yield (
            f"GEMM as answered: largest lead over the {FASTEST}",
            f"{max(0.0, 1.0 - min(best.values())):.0%}",
            "5 %",
            why,
        )
    yield "GEMM, other cards", NOT_RUN, "0.85 to 1.15", "0.76 to 2.26 in a test before"


def _interval(cells: dict[str, object], what: str) -> str:
    return f"{cells[f'{what} x']:.2f}; {cells[what]}"


def _span(values: Iterable[float], percent: bool = False) -> str:
    every = sorted(values)
    return f"{every[0]:.1%} to {every[-1]:.1%}" if percent else f"{every[0]:.2f} to {every[-1]:.2f}"


def _number(text: object) -> float:
    """Of a cell: a number, or a percentage as a fraction."""
    return float(str(text).rstrip("%")) / (100.0 if str(text).endswith("%") else 1.0)
