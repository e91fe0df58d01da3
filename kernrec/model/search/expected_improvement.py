"""Which config to measure next, from those measured so far: a search that a budget of any size may end.

    first        each value of each tunable once, in the config that is predicted to be the fastest with it
    then, a few  a Gaussian process over what the prediction missed, log(measured / predicted); the next ones are those
    at a time    of greatest expected improvement (Jones et al., "Efficient global optimization", 1998), each chosen as
                 if those before it had come out as expected (Ginsbourger et al., "Kriging is well-suited to parallelize
                 optimization", 2010)

Two configs are the nearer the more their tunables and their predicted times agree; a flag that differs counts as much
as a tile that is eight times larger, for that is what a prediction from PTX does not see. A space that is too large to
be looked at whole is searched as arXiv 2411.18873 does, genetically: what is looked at are offspring of the fastest
configs, crossed and mutated, and the process stands for the trees that choose there which of them are measured.

Everything is seeded: the same measurements in the same order ask for the same configs.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

Array = np.ndarray

FIRST = 15
"""Measurements before the first fit."""
_STEP, _GROWTH = 5, 0.1
"""Configs between two fits: at least so many, and this share of those measured. Fewer found the best no sooner on the
recorded spaces (`tools/compare_kernel_tuner.py`), and compilers need to know what comes."""
_FITTED = 256
"""Measurements in a fit at most: the fastest, and of the others some drawn at random."""
SCORED = 20_000
"""Configs that are looked at for one choice; of a larger space offspring are bred."""
_PARENTS, _OFFSPRING, _MUTATIONS = 30, 2000, 1.5
"""Of a generation: parents, different offspring, and tunables of one that are drawn anew on average."""
_LENGTHS = (0.35, 0.7, 1.0, 1.8, 3.0)
_NOISES = (0.01, 0.03, 0.1, 0.3, 1.0)  # noise variance over signal variance
_SHRINK = 0.5  # measurements' worth of belief that there is no offset
_SPECIES = 1.0  # what configs that agree in no tunable are apart by that reason alone, squared

_erfc = np.frompyfunc(math.erfc, 1, 1)


class Guide:
    """The search of one space of C configs; it keeps nothing of what it is told.

    tunables: (C, T), NaN for one that a config does not have. predicted_s: (C,), NaN for a config of which nothing is
    known; None where nothing is known of any.
    """

    def __init__(self, tunables: Array, predicted_s: Array | None = None, seed: int = 0) -> None:
        self._seed = seed
        count = len(tunables)
        self._log_s = np.zeros(count)
        known = np.zeros(count, dtype=bool) if predicted_s is None else np.isfinite(predicted_s)
        if predicted_s is not None and known.any():
            self._log_s = np.log(np.where(known, predicted_s, np.max(predicted_s[known])))
        tie = np.where(known, np.arange(count), np.random.default_rng(seed).random(count))
        self._promising = np.lexsort((tie, self._log_s, ~known))
        columns = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in tunables.T]
        self._digits = np.stack(columns, axis=1) if columns else np.zeros((count, 0), dtype=np.int64)
        self._space = _coordinates(tunables, self._log_s, self._digits)
        self._first = self._covering()

    @staticmethod
    def step(measured: int) -> int:
        """How many configs to measure of an order before asking for another."""
        return FIRST - measured if measured < FIRST else max(_STEP, int(_GROWTH * measured))

    def order(self, tried: Array, latency_s: Array) -> Array:
        """All configs not tried, most worth measuring first. tried (M,): positions; latency_s (M,): NaN for a failure.

        The next `step(M)` of them are chosen together; the others follow by what they promise one by one.
        """
        left = np.ones(len(self._log_s), dtype=bool)
        left[tried] = False
        ran = np.isfinite(latency_s)
        if len(tried) < FIRST or ran.sum() < 2:
            return self._concatenated(self._first[left[self._first]][: self.step(len(tried))], left)
        rows, log_s = tried[ran], np.log(latency_s[ran])
        draw = np.random.default_rng([self._seed, len(tried)])
        looked_at = np.flatnonzero(left)
        if len(looked_at) > SCORED:
            looked_at = self._offspring(rows[np.argsort(log_s, kind="stable")[:_PARENTS]], left, draw)
        fitted = _thinned(log_s, draw)
        known = rows[fitted]
        process = _Process.fit(self._space[known], log_s[fitted] - self._log_s[known], self._space[looked_at])
        return self._concatenated(looked_at[self._chosen(process, looked_at, float(log_s.min()), len(tried))], left)

    def _chosen(self, process: "_Process", looked_at: Array, best: float, tried: int) -> Array:
        """Positions among those looked at, in order."""
        expected = self._log_s[looked_at] + process.mean
        chosen: list[int] = []
        free = np.ones(len(looked_at), dtype=bool)
        single = _improvement(expected, process.spread, best)
        for _ in range(min(self.step(tried), len(looked_at))):
            gain = np.where(free, _improvement(expected, process.spread, best), -1.0)
            # Where nothing promises anything the least expected time decides.
            at = int(np.lexsort((expected, -gain))[0]) if gain.max() <= 0.0 else int(gain.argmax())
            chosen.append(at)
            free[at] = False
            process.believe(at, self._space[looked_at])
        rest = np.lexsort((expected, -single))
        return np.concatenate((np.array(chosen, dtype=np.int64), rest[free[rest]]))

    def _concatenated(self, chosen: Array, left: Array) -> Array:
        rest = left.copy()
        rest[chosen] = False
        return np.concatenate((chosen, self._promising[rest[self._promising]])).astype(np.int64)

    def _covering(self) -> Array:
        """The most promising config, and then each that is the most promising with a value of a tunable."""
        found: dict[int, None] = {}
        for column in self._digits[self._promising].T:
            found |= dict.fromkeys(np.unique(column, return_index=True)[1].tolist())
        return self._promising[sorted(found)]

    def _offspring(self, parents: Array, left: Array, draw: np.random.Generator) -> Array:
        """Configs not tried, bred from `parents` (the fastest first, who breed more often)."""
        ranks = np.arange(len(parents), 0.0, -1.0)
        weights = ranks / ranks.sum()
        found = np.empty(0, dtype=np.int64)
        for _ in range(8):  # generations, where few of one are of the space
            pairs = self._digits[draw.choice(parents, (2, 2 * _OFFSPRING), p=weights)]
            children = np.where(draw.random(pairs.shape[1:]) < 0.5, pairs[0], pairs[1])
            values = self._digits.max(axis=0) + 1
            mutated = draw.random(children.shape) < _MUTATIONS / max(len(values), 1)
            children = np.where(mutated, (draw.random(children.shape) * values).astype(np.int64), children)
            rows = self._rows_of(children)
            found = np.union1d(found, rows[left[rows]])
            if len(found) >= _OFFSPRING:
                break
        return found

    def _rows_of(self, digits: Array) -> Array:
        """Where the configs with these digits are; those that the space does not have are left out."""
        order, places = self._lookup
        wanted = _place(digits, self._digits.max(axis=0) + 1)
        at = np.minimum(np.searchsorted(places, wanted), len(order) - 1)
        return order[at[places[at] == wanted]]

    @cached_property
    def _lookup(self) -> tuple[Array, Array]:
        place = _place(self._digits, self._digits.max(axis=0) + 1)
        order = np.argsort(place)
        return order, place[order]


def _place(digits: Array, values: Array) -> Array:
    """Where digits (N, T) stand in the product of all values, as floats: a product may be larger than an integer."""
    place = np.zeros(len(digits))
    for column, count in zip(digits.T, values, strict=True):
        place = place * count + column
    return place


def _coordinates(tunables: Array, log_s: Array, digits: Array) -> Array:
    """Points (C, D) whose distance says how unlike two configs are: about 1.4 for two drawn at random, and up to
    `_SPECIES` more, squared, for the tunables in which they differ at all."""
    columns = np.column_stack((np.log2(1.0 + np.maximum(tunables, 0.0)), log_s))
    middle = np.nanmean(columns, axis=0)
    columns = np.nan_to_num(columns - middle)  # what a config does not have lies in the middle
    spread = columns.std(axis=0)
    used = spread > 1e-6
    points = columns[:, used] / spread[used] / math.sqrt(max(used.sum(), 1))
    varied = [digits[:, i] for i in range(digits.shape[1]) if digits[:, i].max() > 0]
    share = math.sqrt(_SPECIES / (2.0 * max(len(varied), 1)))
    return np.concatenate([points, *[share * np.eye(column.max() + 1)[column] for column in varied]], axis=1)


def _thinned(log_s: Array, draw: np.random.Generator) -> Array:
    """Which measurements a fit looks at, ascending."""
    if len(log_s) <= _FITTED:
        return np.arange(len(log_s))
    order = np.argsort(log_s, kind="stable")
    return np.sort(np.concatenate((order[: _FITTED // 2], draw.permutation(order[_FITTED // 2 :])[: _FITTED // 2])))


def _improvement(expected: Array, spread: Array, best: float) -> Array:
    """By how much a log time is expected to fall below the best so far; arrays (C,)."""
    z = (best - expected) / spread
    below = 0.5 * _erfc(-z / math.sqrt(2.0)).astype(np.float64)
    return np.maximum(spread * (z * below + np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)), 0.0)


def _matern(a: Array, b: Array, length: float) -> Array:
    squared = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * a @ b.T
    distance = np.sqrt(np.maximum(5.0 * squared, 0.0)) / length
    return (1.0 + distance + distance * distance / 3.0) * np.exp(-distance)


@dataclass
class _Process:
    """A Gaussian process (Matern 5/2; Rasmussen and Williams, 2006, chapter 2) at C points, as M measurements leave it.

    mean (C,): expected residual. along (C, M): covariances with what is known, whitened. rest (C,): the variance that
    is left, over the signal's.
    """

    mean: Array
    along: Array
    rest: Array
    signal: float
    noise: float
    length: float

    @property
    def spread(self) -> Array:
        """Standard deviation of each point's residual."""
        return np.sqrt(self.signal * self.rest)

    @classmethod
    def fit(cls, rows: Array, residual: Array, points: Array) -> "_Process":
        """At `points` (C, D), from residuals (M,) at `rows` (M, D); length and noise of the greatest likelihood."""
        count = len(residual)
        offset = float(residual.sum() / (count + _SHRINK))
        error = residual - offset
        best: tuple[float, float, float, float, Array, Array] | None = None
        for length in _LENGTHS:
            values, vectors = np.linalg.eigh(_matern(rows, rows, length))
            along = vectors.T @ error
            for noise in _NOISES:
                variance = np.maximum(values, 0.0) + noise
                signal = max(float((along * along / variance).sum()) / count, 1e-12)
                likelihood = -0.5 * (count * math.log(signal) + float(np.log(variance).sum()))
                if best is None or likelihood > best[0]:
                    best = likelihood, length, noise, signal, vectors / np.sqrt(variance), along / np.sqrt(variance)
        assert best is not None
        _, length, noise, signal, whitened, coefficients = best
        across = _matern(points, rows, length) @ whitened
        rest = np.maximum(1.0 - (across * across).sum(axis=1), 1e-9)
        return cls(offset + across @ coefficients, across, rest, signal, noise, length)

    def believe(self, at: int, points: Array) -> None:
        """Go on as if the point at this position had been measured, and were what is expected of it."""
        covariance = _matern(points, points[at : at + 1], self.length)[:, 0] - self.along @ self.along[at]
        further = covariance / math.sqrt(self.rest[at] + self.noise)
        self.along = np.concatenate((self.along, further[:, None]), axis=1)
        self.rest = np.maximum(self.rest - further * further, 1e-9)
