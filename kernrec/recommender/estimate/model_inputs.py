"""What the learner is told of candidates, from what is known of them and from what the prior says."""

from dataclasses import dataclass
from itertools import compress
from operator import not_
from weakref import WeakKeyDictionary

import numpy as np

from kernrec.kernel import SpaceAt
from kernrec.model.learn.features import ModelInputs, matrix
from kernrec.model.prior.demand import PIPES
from kernrec.model.prior.power import LimitedCosts
from kernrec.op import Problem
from kernrec.recommender.estimate.candidates import Candidates, Prediction

Array = np.ndarray


def inputs_of(
    candidates: Candidates, problem: Problem, at: SpaceAt, prediction: Prediction, limited: LimitedCosts, where: Array
) -> ModelInputs:
    """The inputs of the candidates at positions `where` of a prediction and its costs."""
    rows = prediction.rows.take(where)
    threads, blocks, resident, registers, shared = candidates.shape(at, rows)
    pipe_s, busy_s, wait_s, l2_s = _times(prediction, where)
    return ModelInputs(
        gpu=candidates.gpu,
        flops=float(problem.flops),
        bytes=float(problem.bytes),
        tunables={t.name: candidates.space.columns[t.name].take(rows) for t in candidates.kernel.tunables},
        latency_s=limited.latency_s.take(where),
        power_w=limited.power_w.take(where),
        threads=threads,
        blocks=blocks,
        resident=resident,
        registers=registers,
        shared_bytes=shared,
        pipe_s=pipe_s,
        busy_s=busy_s,
        wait_s=wait_s,
        l2_s=l2_s,
        dram_s=prediction.dram_s.take(where),
        core_s=prediction.core_s.take(where),
        fixed_s=prediction.fixed_s.take(where),
        core_j=prediction.core_j.take(where),
        dram_j=prediction.dram_j.take(where),
    )


@dataclass(frozen=True)
class _Tunables:
    """The features of a space's configs that follow from a tunable alone.

    places, others: which of a model's columns are such and which are not, with the names of the latter. values: of all
    rows, (rows, places).
    """

    places: Array
    others: Array
    other_columns: tuple[str, ...]
    values: Array


_TUNABLES: WeakKeyDictionary[Candidates, dict[tuple[str, ...], _Tunables]] = WeakKeyDictionary()


def features_of(candidates: Candidates, columns: tuple[str, ...], inputs: ModelInputs, rows: Array) -> Array:
    """The columns named of `features.matrix` (C, F) of inputs about these rows of the candidates' space.

    What is said of a tunable alone, whose column has a dot in its name, is worked out once for a space.
    """
    of_space = _TUNABLES.setdefault(candidates, {})
    if (kept := of_space.get(columns)) is None:
        kept = of_space[columns] = _of_tunables(candidates, columns)
    found = np.empty((len(rows), len(columns)), dtype=np.float32)
    found[:, kept.places] = kept.values.take(rows, axis=0)
    found[:, kept.others] = matrix(inputs, kept.other_columns)
    return found


def _of_tunables(candidates: Candidates, columns: tuple[str, ...]) -> _Tunables:
    ours = ["." in name for name in columns]
    nothing = np.ones(len(candidates))
    inputs = ModelInputs(candidates.gpu, 1.0, 1.0, candidates.space.columns, nothing, nothing)
    return _Tunables(
        np.flatnonzero(ours),
        np.flatnonzero(~np.array(ours)),
        tuple(compress(columns, map(not_, ours))),
        matrix(inputs, tuple(compress(columns, ours))),
    )


def _times(prediction: Prediction, where: Array) -> tuple[Array, Array, Array, Array]:
    """(of each pipe (P, C), of the pipes, of latency, of L2); launches run one after the other, so times add up."""
    found = np.zeros((len(PIPES) + 3, len(where)))
    times = prediction.times
    for start, performed in prediction.launches:
        place = np.searchsorted(performed, where)
        np.minimum(place, len(performed) - 1, out=place)
        mine = performed.take(place) == where
        if not mine.any():
            continue
        # Of those that do without this launch nothing is added: quicker than leaving them out.
        place += start
        found[: len(PIPES)] += times.pipe_s(place) * mine
        for row, values in zip((-3, -2, -1), (times.busy_s, times.latency_s, times.l2_s), strict=True):
            found[row] += values.take(place) * mine
    return found[: len(PIPES)], found[-3], found[-2], found[-1]
