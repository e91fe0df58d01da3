"""Whether the prior's intervals should widen with the distance of a case from what was recorded.

    tools/evidence prior --sources FOLDER --json prior.json
    tools/evidence distance --errors prior.json [--errors another.json]

Distances of a launch, with its kernel and its card left out of what was recorded:

    terms       to the nearest recorded launch: of the prior's terms over its time, occupancy, blocks, waves, threads
                and registers, each in its standard deviations
    kernels     of the medians of its kernel to those of the nearest other kernel, in the same figures
    size        by how much its predicted time lies outside of nine tenths of those recorded (logarithm)
    generation  1 where no other card of its generation was recorded, else 0

Printed are, for each, the rank correlation with |log(recorded / predicted)|, and how much of the times is covered in
the nearest, the middle and the farthest third (each kernel weighs the same in its third) by one width, and by a width
that grows with the place p of the distance among those of the others, `w (1 + b p)`; `b` is the one of `GROWTHS` that
makes coverage most even on the others. Of `generation` the thirds are the two cases. A kernel is left out with all its
cards.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from front import Table

from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.model.learn.conformal import LEVEL
from kernrec.training.scores import rank_correlation

from .intervals import Array, Errors, Rows, read_errors

GROWTHS = (0.0, 0.25, 0.5, 1.0, 2.0)
_NEAREST = 1e-6


def run(errors: Errors) -> None:
    """Print what a width that grows with each distance would cover, beside one width."""
    entries = read_errors(errors)
    if "shares" not in entries[0]:
        raise UsageError(f"{errors[0]} has no shares; run `tools/evidence prior --json` again")
    rows = Rows.of(entries, "free")
    table = Table("times covered by thirds of the distance, nearest first: by one width, and by one that grows")
    for name, distance in distances(rows, entries).items():
        parts = thirds(distance)
        fixed, grown, growths = _covered(rows, distance)
        cells: dict[str, object] = {"distance": name, "rank": rank_correlation(distance, np.abs(rows.error))}
        for title, inside in (("one width", fixed), ("grows", grown)):
            shares = [_share(rows.part(parts == part), inside[parts == part]) for part in range(parts.max() + 1)]
            cells |= {title: ", ".join(f"{share:.0%}" for share in shares)}
            cells |= {f"uneven, {title}": f"{100 * (max(shares) - min(shares)):.0f}"}
        table.row(cells | {"b": ", ".join(f"{b:g} x{growths.count(b)}" for b in sorted(set(growths)))})


def distances(rows: Rows, entries: Sequence[Mapping[str, object]]) -> dict[str, Array]:
    """The distances of N launches by name; each (N,)."""
    features = np.array([entry["shares"] for entry in entries], dtype=np.float64)
    features = features / np.maximum(features.std(axis=0), _NEAREST)
    size = np.log([float(str(entry["predicted_s"])) for entry in entries])
    generation = np.array([find_gpu(card).generation for card in rows.card.tolist()])
    terms, kernels, outside, alone = (np.zeros(len(size)) for _ in range(4))
    middles = {name: np.median(features[rows.kernel == name], axis=0) for name in set(rows.kernel.tolist())}
    for kernel, card in dict.fromkeys(zip(rows.kernel.tolist(), rows.card.tolist(), strict=True)):
        own = np.flatnonzero((rows.kernel == kernel) & (rows.card == card))
        others = np.flatnonzero((rows.kernel != kernel) & (rows.card != card))
        apart = features[own, np.newaxis] - features[np.newaxis, others]
        terms[own] = np.sqrt(np.square(apart).sum(axis=-1).min(axis=1))
        kernels[own] = min(float(np.linalg.norm(middles[kernel] - middles[o])) for o in middles if o != kernel)
        low, high = np.quantile(size[others], (0.05, 0.95))
        outside[own] = np.maximum(np.maximum(low - size[own], size[own] - high), 0.0)
        alone[own] = float(generation[own[0]] not in generation[rows.card != card])
    return {"terms": terms, "kernels": kernels, "size": outside, "generation": alone}


def thirds(distance: Array) -> Array:
    """Of each launch which third of the distances it is in; those that are equal are together."""
    limits = np.unique(np.quantile(distance, (1 / 3, 2 / 3)))
    part = np.searchsorted(limits, distance, side="left")
    return np.unique(part, return_inverse=True)[1]


def _covered(rows: Rows, distance: Array) -> tuple[Array, Array, list[float]]:
    """(whether each launch lies in one width of the other kernels, whether in one that grows; how fast these grow)."""
    fixed, grown, growths = np.zeros(len(distance), dtype=bool), np.zeros(len(distance), dtype=bool), []
    for kernel in dict.fromkeys(rows.kernel.tolist()):
        out = rows.kernel == kernel
        others, places = rows.part(~out), _places(distance[~out], distance)
        uneven = {growth: _unevenness(others, places[~out], growth) for growth in GROWTHS}
        growths.append(min(GROWTHS, key=uneven.__getitem__))
        for inside, growth in ((fixed, 0.0), (grown, growths[-1])):
            width = _width(others, places[~out], growth)
            inside[out] = np.abs(rows.error[out]) <= width * (1.0 + growth * places[out])
    return fixed, grown, growths


def _unevenness(rows: Rows, places: Array, growth: float) -> float:
    inside = np.abs(rows.error) <= _width(rows, places, growth) * (1.0 + growth * places)
    parts = thirds(places)
    shares = [_share(rows.part(parts == part), inside[parts == part]) for part in range(parts.max() + 1)]
    return max(shares) - min(shares)


def _width(rows: Rows, places: Array, growth: float) -> float:
    """The least `w` that covers the errors, as kernels weigh."""
    score, weight = np.abs(rows.error) / (1.0 + growth * places), rows.scores()[1]
    order = np.argsort(score, kind="stable")
    place = int(np.searchsorted(np.cumsum(weight[order]), LEVEL * weight.sum()))
    return float(score[order[min(place, len(order) - 1)]])


def _places(recorded: Array, distance: Array) -> Array:
    """Of each distance the share of the recorded ones that are less."""
    return np.searchsorted(np.sort(recorded), distance, side="left") / len(recorded)


def _share(rows: Rows, inside: Array) -> float:
    """How much of some launches lies inside, each kernel with the same weight."""
    weight = rows.scores()[1]
    return float(weight[inside].sum() / weight.sum())
