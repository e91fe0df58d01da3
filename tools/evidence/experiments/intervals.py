"""Compute widths and coverage of 90 % intervals of times, energies, and their ratios between two configs.

    tools/evidence analytical --sources FOLDER --json cases.json
    tools/evidence power --json power.json
    tools/evidence intervals --cases cases.json [--power power.json]

Widths are quantiles of errors (`evidence.widths`) at the recorded clock or, with `--free`, the clock that a GPU should
hold. The error of an energy consists of two independent parts: the effect of the error in time, and the error of the
power for the recorded time, with coefficients that were fitted without the GPU. To test the widths, each kernel and
each GPU is held out. `kernrec.model.analytical.spread.SPREAD` contains widths that this tool printed.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from front import Table

from evidence.cases import Cases, Files, held_out, read_cases
from evidence.widths import Parts, covered, half_width
from kernrec.model.analytical.spread import SPREAD


def run(
    cases: Files, power: Annotated[Path | None, typer.Option(help="file that `power --json` wrote")] = None,
    free: bool = False,
) -> None:  # fmt: skip
    """Print widths and coverage. If `free`, use predictions at the default clock."""
    rows, clock = read_cases(cases), "free" if free else "predicted"
    time = rows if not free else _with_error(rows, np.log(rows["recorded"] / rows["free_s"]))
    quantities: dict[str, tuple[Parts, bool]] = {"time": ([time], False), "ratio": ([time], True)}
    loads = [] if power is None else [read_cases([power])]
    if loads:
        both = [_with_error(rows, rows[f"energy at {clock}"]), loads[0]]
        quantities |= {"energy": (both, False), "energy_ratio": (both, True)}
    shipped = {what: float(np.log(getattr(SPREAD, what))) for what in quantities}
    table = Table("half-widths of 90 % intervals as factors")
    for what, quantity in quantities.items():
        width = float(np.exp(half_width(*quantity)))
        table.row({"of": what, "rows": len(time), "width": width, "ships": f"{np.exp(shipped[what]):g}"})
    table = Table("\nrecordings; share of their rows, and of their pairs, inside the widths that ship")
    for names, part in time.parts("kernel", "gpu"):
        inside = {what: covered([part], pairs, shipped[what]) for what, pairs in (("time", False), ("ratio", True))}
        cells = names | {"rows": len(part), "level": float(np.median(part.error))}
        table.row(cells | {what: f"{share:.0%}" for what, share in inside.items()})
    table = Table("\nheld out; share inside the widths of the others, inside those that ship, and the least share")
    for what, quantity in quantities.items():
        sides = {"a kernel": ("kernel", [rows]), "a GPU": ("gpu", [rows])}
        if "energy" in what:
            sides = {"a kernel, by its times": ("kernel", [rows]), "a kernel, by its power": ("kernel", loads)}
            sides["a GPU"] = "gpu", [rows, *loads]
        for title, (column, some) in sides.items():
            table.row({"held out": title, "of": what} | _coverage(quantity, column, some, shipped[what]))
    recorded = rows.take(np.isfinite(rows["recorded_j"])) if loads else rows.take(np.zeros(0, dtype=int))
    for kernel, mask in held_out(recorded, "kernel"):
        own = recorded.take(mask)
        direct = _with_error(own, np.log(own["recorded_j"] / own["free_j" if free else "predicted_j"]))
        table = Table(f"\n{kernel}: its energy was recorded; inside the widths of other kernels")
        cells = {"rows": len(own), "level": float(np.exp(np.median(direct.error)))}
        for what in ("energy", "energy_ratio"):
            parts, pairs = quantities[what]
            width = half_width(_without(parts, "kernel", kernel), pairs)
            cells[what] = f"{covered([direct], pairs, width):.0%}"
        table.row(cells)


def _with_error(cases: Cases, error: np.ndarray) -> Cases:
    return Cases({**cases.columns, "error": error})


def _without(parts: Parts, column: str, name: str) -> Parts:
    return [part.take(_names(part, column) != name) for part in parts]


def _names(part: Cases, column: str) -> np.ndarray:
    """Return the kernel or the GPU of each row, (N,). Recordings of one GPU have different labels after its name."""
    names = part[column]
    return np.array([name.split()[0] for name in names]) if column == "gpu" else names


def _coverage(quantity: tuple[Parts, bool], column: str, sides: list[Cases], shipped: float) -> dict[str, object]:
    """Hold out each value of a column. Return table cells: the mean width that the others give, and its coverage."""
    parts, pairs = quantity
    names = dict.fromkeys(name for side in sides for name in _names(side, column).tolist())
    factors, shares = [], []
    for name in names:
        some = [(part, part.take(_names(part, column) == name)) for part in parts]
        own = [only if len(only) else part for part, only in some]
        width = half_width(_without(parts, column, name), pairs)
        factors.append(width)
        shares.append((covered(own, pairs, width), covered(own, pairs, shipped)))
    (mean, ships), least = np.nanmean(shares, axis=0), np.nanmin(shares, axis=0)[0]
    cells: dict[str, object] = {"groups": len(names), "factor": float(np.exp(np.mean(factors)))}
    return cells | {"inside": f"{mean:.1%}", "shipped": f"{ships:.1%}", "least": f"{least:.0%}"}
