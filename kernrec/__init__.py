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
    op: str,
    gpu: str,
    *,
    dtype: str | None = None,
    layout: str | None = None,
    objective: str = "pareto",
    max_slowdown: float | None = None,
    max_power_w: float | None = None,
    power_limit_w: float | None = None,
    clock_hz: float | None = None,
    top: int = 5,
    **dims: int,
) -> "Recommendation":
    """The configs to run for an op on a GPU: the latency/energy Pareto front, or the best for `objective`.

    dims: the op's dimensions by name. max_slowdown: fraction above the fastest (0.03 is 3 %). Powers in watts, clock
    in hertz. Raises `kernrec.errors.UsageError` for what is unknown or impossible. One `Recommender` is kept for the
    process; make your own to use other databases than the user's and the shipped one.
    """
    from kernrec.recommender import Query, Recommender

    if not _shared:
        _shared.append(Recommender())
    query = Query(objective, max_slowdown, max_power_w, power_limit_w, clock_hz, top)
    return _shared[0].recommend(op, gpu, dims, dtype, layout, query)
