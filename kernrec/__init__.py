"""kernrec: an offline, database-backed recommender of GPU kernel configurations.

>>> import kernrec
>>> answer = kernrec.recommend(op="matmul", gpu="h200", m=4096, n=4096, k=4096)
>>> answer.best.config, answer.best.latency_s.value, answer.best.energy_j.value
"""

from typing import TYPE_CHECKING

from kernrec.version import __version__ as __version__

if TYPE_CHECKING:
    from kernrec.recommender import Recommendation, Recommender

_shared: "list[Recommender]" = []


def recommend(
    op: str | None = None,
    gpu: str = "",
    *,
    kernel: str | None = None,
    dtype: str | None = None,
    layout: str | None = None,
    objective: str = "pareto",
    max_slowdown: float | None = None,
    max_power_w: float | None = None,
    power_limit_w: float | None = None,
    clock_hz: float | None = None,
    clocks: bool = False,
    top: int = 5,
    **dims: int,
) -> "Recommendation":
    """The configs to run for an op on a GPU: the latency/energy Pareto front, or the best for an objective.

    One `Recommender` is kept for the process; make your own to use other databases than the user's and the shipped one.

    Args:
        op: the operator; leave it out to name a kernel.
        gpu: the GPU, as people call it.
        kernel: one kernel instead of an op, your own (after `kernrec analyze`) or one of the library.
        dtype: data type; the op's first one by default.
        layout: tensor layout; the op's first one by default.
        objective: `pareto`, `latency`, `energy` or `edp`.
        max_slowdown: fraction above the fastest config's latency that is accepted (0.03 is 3 %).
        max_power_w: mean power that a choice may draw, in watts.
        power_limit_w: the GPU's power limit in watts. If None, for latency its default one, else a range of limits:
            a choice is then a config and a power limit.
        clock_hz: a locked core clock in hertz; not locked if None.
        clocks: whether locked core clocks are tried, too.
        top: how many choices are returned at most.
        **dims: the op's dimensions by name.

    Raises:
        kernrec.errors.UsageError: a name is unknown, or a value impossible.
        kernrec.errors.KernrecError: nothing can run the problem.
    """
    from kernrec.recommender import Query, Recommender, Request
    from kernrec.recommender.request import objective_named

    if not _shared:
        _shared.append(Recommender())
    query = Query(objective_named(objective), max_slowdown, max_power_w, power_limit_w, clock_hz, top, clocks)
    return _shared[0].answer(Request(gpu, op, kernel, dims, dtype, layout, query))
