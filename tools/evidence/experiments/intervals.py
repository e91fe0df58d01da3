"""90 % intervals of times and of ratios of two configs: how wide they have to be, and how much they cover.

    tools/evidence prior --sources FOLDER --json prior.json
    tools/evidence intervals --cases prior.json [--cases another.json]

Widths are quantiles of the errors of `tools/evidence prior` (`evidence.widths`). The clock is the one that a GPU is
assumed to hold if nobody states it; `--locked` takes the recorded one. Then each kernel is held out with all its GPUs,
and each GPU with all its kernels, and the widths of the others are compared with what was held out.
`kernrec.model.prior.spread.SPREADS` are widths printed here.
"""

import numpy as np
from front import Table

from evidence.cases import Files, read_cases
from evidence.splits import held_out
from evidence.widths import FEWEST, Errors
from kernrec.model.prior.spread import REGIMES, SPREADS


def run(cases: Files, locked: bool = False) -> None:
    """Print widths and coverage; locked: of predictions at the clock that a recording held."""
    rows = read_cases(cases)
    errors = Errors.of_cases(rows, rows.error if locked else np.log(rows.recorded / rows.more["free_s"]))
    shipped = [np.log([getattr(each, name) for each in SPREADS]) for name in ("time", "ratio")]
    table = Table("90 % intervals as factors: of a time, and of the ratio of two configs")
    widths = errors.by_regime(Errors.time), errors.by_regime(Errors.ratio)
    for number, name in enumerate(REGIMES):
        part, ships = errors.take(errors.regime == number), SPREADS[number]
        cells: dict[str, object] = {"regime": name, "kernels": part.kernels, "rows": len(part.error)}
        cells |= {"widths of": "all regimes" if part.kernels < FEWEST else name}
        cells |= {way: float(np.exp(width[number])) for way, width in zip(("time", "ratio"), widths, strict=True)}
        table.row(cells | {"ship": f"{ships.time:g}, {ships.ratio:g}"})
    table = Table("\nrecordings; share of their rows, and of their pairs, inside the widths that ship")
    for names, part_of_rows in rows.parts("kernel", "gpu"):
        part = errors.take((rows.kernel == names["kernel"]) & (rows.gpu == names["gpu"]))
        cells = names | {"rows": len(part_of_rows), "level": float(np.median(part.error))}
        inside = zip(("time", "ratio"), part.inside(*shipped), strict=True)
        table.row(cells | {way: f"{share:.0%}" for way, share in inside})
    table = Table("\nheld out; share of its rows inside the widths of the others, and inside those that ship")
    for column in ("kernel", "gpu"):
        shares, factors = [], []
        for _, mask in held_out(rows, column):
            others, own = errors.take(~mask), errors.take(mask)
            time, ratio = others.by_regime(Errors.time), others.by_regime(Errors.ratio)
            factors.append([np.mean(width[own.regime]) for width in (time, ratio)])
            shares.append([*own.inside(time, ratio), *own.inside(*shipped)])
        means, least = np.nanmean(shares, axis=0), np.nanmin(shares, axis=0)
        cells = {"held out": f"a {column}", "groups": len(shares)}
        cells |= dict(zip(("time x", "ratio x"), np.exp(np.mean(factors, axis=0)).tolist(), strict=True))
        names_of = ("time", "ratio", "time, shipped", "ratio, shipped")
        cells |= {name: f"{share:.1%}" for name, share in zip(names_of, means, strict=True)}
        table.row(cells | {"least time": f"{least[0]:.0%}", "least ratio": f"{least[1]:.0%}"})
