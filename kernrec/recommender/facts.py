"""What the learner is told of candidates, from what is known of them and from what the prior says."""

import numpy as np

from kernrec.kernel import SpaceAt
from kernrec.model.demand import PIPES
from kernrec.model.features import Facts
from kernrec.model.power import Settled
from kernrec.op import Problem
from kernrec.recommender.candidates import Candidates, Prediction

Array = np.ndarray


def facts_of(
    candidates: Candidates, problem: Problem, at: SpaceAt, prediction: Prediction, settled: Settled, where: Array
) -> Facts:
    """The facts of the candidates at positions `where` of a prediction and its costs."""
    rows = prediction.rows.take(where)
    threads, blocks, resident, registers, shared = candidates.shape(at, rows)
    pipe_s, busy_s, wait_s, l2_s = _times(prediction, where)
    return Facts(
        gpu=candidates.gpu,
        flops=float(problem.flops),
        bytes=float(problem.bytes),
        tunables={t.name: candidates.space.columns[t.name].take(rows) for t in candidates.kernel.tunables},
        latency_s=settled.latency_s.take(where),
        power_w=settled.power_w.take(where),
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


def _times(prediction: Prediction, where: Array) -> tuple[Array, Array, Array, Array]:
    """(of each pipe (P, C), of the pipes, of latency, of L2); launches run one after the other, so times add up."""
    found = np.zeros((len(PIPES) + 3, len(where)))
    times = prediction.times
    for start, performed in prediction.launches:
        place = np.searchsorted(performed, where)
        mine = performed.take(place, mode="clip") == where
        part = start + place[mine]
        found[: len(PIPES), mine] += times.pipe_s(part)
        for row, values in zip((-3, -2, -1), (times.busy_s, times.latency_s, times.l2_s), strict=True):
            found[row, mine] += values.take(part)
    return found[: len(PIPES)], found[-3], found[-2], found[-1]
