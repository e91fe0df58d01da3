"""Metrics: functions that compute the cells of a table row from cases."""

import numpy as np

from evidence.cases import Array, Cases
from kernrec.training import scores

FEWEST = 5
"""Minimum number of configs of a problem whose ranking is scored."""
THREADS = 256
"""Block size in threads that people commonly choose without tuning."""


def geometric_mean(ratio: Array) -> float:
    """Return the geometric mean of positive values."""
    return float(np.exp(np.log(ratio).mean()))


def agreement(cases: Cases) -> dict[str, object]:
    """Return rank correlation, median error, and mean predicted / recorded time. `no level` is the median error after a
    common factor is removed, which remains if a recording's clock is unknown."""
    recorded, predicted = cases["recorded"], cases["predicted"]
    level = float(np.exp(np.median(cases.error)))
    return {
        "rows": len(cases),
        "rank": scores.rank_correlation(predicted, recorded),
        "error": f"{scores.median_error(recorded, predicted):.1%}",
        "no level": f"{scores.median_error(recorded, level * predicted):.1%}",
        "ratio": geometric_mean(predicted / recorded),
    }


def spread(cases: Cases) -> dict[str, object]:
    """Return the 10 % and 90 % quantiles of predicted / recorded time, and the fraction outside a factor of 1.5."""
    ratio = cases["predicted"] / cases["recorded"]
    low, high = (float(np.quantile(ratio, q)) for q in (0.1, 0.9))
    return {"10 %": low, "90 %": high, "beyond x1.5": f"{np.mean(np.abs(np.log(ratio)) > np.log(1.5)):.1%}"}


def recommendations(cases: Cases) -> dict[str, object]:
    """Return ranking scores over problems with at least `FEWEST` configs: the mean efficiency (lowest recorded time
    over that of the chosen config) of the best of the top 1, 3 and 5 recommendations, and others."""
    rows = []
    for _, part in cases.parts("gpu", "problem"):
        if len(part) >= FEWEST:
            order, recorded = scores.order_of(part["predicted"]), part["recorded"]
            tops = [scores.efficiency_at(recorded, order, count) for count in (1, 3, 5)]
            near = scores.hit(recorded, order)
            rank = scores.rank_correlation(part["predicted"], recorded)
            rows.append([*tops, near, rank, scores.expected_random(recorded, 1)[0]])
    if not rows:
        return {}
    names = ("first", "of 3", "of 5", "within 5 %", "rank in a problem", "random")
    return {name: f"{value:.3f}" for name, value in zip(names, np.mean(rows, axis=0).tolist(), strict=True)}


def heuristics(cases: Cases) -> dict[str, object]:
    """Return the efficiency of two rules that need no model, for the configs of one problem. One rule chooses the
    config with the highest occupancy. The other chooses the block size nearest to 256 threads."""
    threads, occupancy = cases["threads"], cases["occupancy"]
    ways = {
        "occupancy": -(np.round(occupancy, 6) * 4096.0 + threads),
        str(THREADS): np.round(np.abs(np.log(threads / THREADS)), 6),
    }
    best = cases["recorded"].min()
    return {way: f"{(best / cases['recorded'][bad == bad.min()]).mean():.3f}" for way, bad in ways.items()}


def coverage(cases: Cases) -> dict[str, object]:
    """Return the fraction of recorded times inside the 90 % interval, and the mean ratio of the interval's ends."""
    low, high = cases["low_s"], cases["high_s"]
    if not np.isfinite(low).all():
        return {"inside": None, "width": None}
    share = scores.coverage(cases["recorded"], low, high)
    return {"inside": f"{share:.1%}", "width": scores.mean_width(low, high)}
