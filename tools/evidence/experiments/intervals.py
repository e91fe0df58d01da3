"""Compute widths and coverage of 90 % intervals of times, energies, and their ratios between two configs.

    tools/evidence analytical --sources FOLDER --json cases.json
    tools/evidence power --json power.json
    tools/evidence intervals --cases cases.json [--power power.json]

Widths are quantiles of errors (`evidence.widths`) at the clock that a GPU should hold or, with `--locked`, the recorded
clock. The error of an energy consists of two independent parts: the effect of the error in time, and the error of the
power for the recorded time, with coefficients that were fitted without the GPU. To test the widths, each kernel and
each GPU is held out. `kernrec.model.analytical.spread.SPREADS` contains widths that this tool printed.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from front import Table

from evidence.cases import Cases, Files, held_out, read_cases
from evidence.widths import FEWEST, Parts, by_regime, covered, kernels, with_error
from kernrec.model.analytical.spread import REGIMES, SPREADS


def run(
    cases: Files, power: Annotated[Path | None, typer.Option(help="file that `power --json` wrote")] = None,
    locked: bool = False,
) -> None:  # fmt: skip
    """Print widths and coverage. If `locked`, use predictions at the recorded clock."""
    rows, clock = read_cases(cases), "predicted" if locked else "free"
    time = with_error(rows, rows.error if locked else np.log(rows.recorded / rows.more["free_s"]))
    quantities: dict[str, tuple[Parts, bool]] = {"time": ([time], False), "ratio": ([time], True)}
    loads = [] if power is None else [read_cases([power])]
    if loads:
        both = [with_error(rows, rows.more[f"energy at {clock}"]), with_error(loads[0], loads[0].error)]
        quantities |= {"energy": (both, False), "energy_ratio": (both, True)}
    shipped = {what: np.log([getattr(each, what) for each in SPREADS]) for what in quantities}
    table = Table("half-widths of 90 % intervals as factors")
    widths = {what: by_regime(*quantity) for what, quantity in quantities.items()}
    for number, name in enumerate(REGIMES):
        part = time.take(time.more["regime"] == name)
        cells: dict[str, object] = {"regime": name, "kernels": kernels(part), "rows": len(part)}
        cells |= {"widths of": "all" if kernels(part) < FEWEST else name}
        cells |= {what: float(np.exp(width[number])) for what, width in widths.items()}
        table.row(cells | {f"{what} ships": f"{np.exp(width[number]):g}" for what, width in shipped.items()})
    table = Table("\nrecordings; share of their rows, and of their pairs, inside the widths that ship")
    for names, own in rows.parts("kernel", "gpu"):
        part = time.take((rows.kernel == names["kernel"]) & (rows.gpu == names["gpu"]))
        inside = {what: covered([part], pairs, shipped[what]) for what, pairs in (("time", False), ("ratio", True))}
        cells = names | {"rows": len(own), "level": float(np.median(part.more["log_error"]))}
        table.row(cells | {what: f"{share:.0%}" for what, share in inside.items()})
    table = Table("\nheld out; share inside the widths of the others, inside those that ship, and the least share")
    for what, quantity in quantities.items():
        sides = {"a kernel": ("kernel", [rows]), "a GPU": ("gpu", [rows])}
        if "energy" in what:
            sides = {"a kernel, by its times": ("kernel", [rows]), "a kernel, by its power": ("kernel", loads)}
            sides["a GPU"] = "gpu", [rows, *loads]
        for title, (column, some) in sides.items():
            table.row({"held out": title, "of": what} | _coverage(quantity, column, some, shipped[what]))
    recorded = rows.take(np.isfinite(rows.more["recorded_j"])) if loads else rows.take(np.zeros(0, dtype=int))
    for kernel, mask in held_out(recorded, "kernel"):
        own = recorded.take(mask)
        direct = with_error(own, np.log(own.more["recorded_j"] / own.more["predicted_j" if locked else "free_j"]))
        table = Table(f"\n{kernel}: its energy was recorded; inside the widths of other kernels")
        cells = {"rows": len(own), "level": float(np.exp(np.median(direct.more["log_error"])))}
        for what in ("energy", "energy_ratio"):
            parts, pairs = quantities[what]
            width = by_regime(_without(parts, "kernel", kernel), pairs)
            cells[what] = f"{covered([direct], pairs, width):.0%}"
        table.row(cells)


def _without(parts: Parts, column: str, name: str) -> Parts:
    return [part.take(getattr(part, column) != name) for part in parts]


def _coverage(quantity: tuple[Parts, bool], column: str, sides: list[Cases], shipped: np.ndarray) -> dict[str, object]:
    """Hold out each value of a column. Return table cells: the mean width that the others give, and its coverage."""
    parts, pairs = quantity
    names = dict.fromkeys(name for side in sides for name in side.column(column).tolist())
    factors, shares = [], []
    for name in names:
        some = [(part, part.take(getattr(part, column) == name)) for part in parts]
        own = [only if len(only) else part for part, only in some]
        width = by_regime(_without(parts, column, name), pairs)
        regimes = [REGIMES.index(str(regime)) for regime in own[0].more["regime"]]
        factors.append(float(width[regimes].mean()))
        shares.append((covered(own, pairs, width), covered(own, pairs, shipped)))
    (mean, ships), least = np.nanmean(shares, axis=0), np.nanmin(shares, axis=0)[0]
    cells: dict[str, object] = {"groups": len(names), "factor": float(np.exp(np.mean(factors)))}
    return cells | {"inside": f"{mean:.1%}", "shipped": f"{ships:.1%}", "least": f"{least:.0%}"}
