"""Find the database rows that apply to one kernel on one problem, and the configs that were measured or failed.

Rows about another version of the kernel's source, another power limit or another clock do not apply.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from kernrec.gpu import GPU
from kernrec.kernel import ProblemSpace, Space
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.physics import impossible
from kernrec.store import Evidence, FailedConfig, MeasuredAnswer
from kernrec.util.light_dataclass import dataclass

_SAME_W = 0.5
"""Difference in watts up to which two power limits count as equal. Limits are set in whole watts."""
_SAME_HZ = 7.5e6
"""Difference in Hz up to which two clocks count as equal. It is half of the 15 MHz step of NVIDIA's core clocks."""


@dataclass(frozen=True)
class MeasuredRows:
    """Measurements and failures of one kernel on one problem and GPU, at one operating point."""

    rows: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Indices of the measured configs in the kernel's config space, ascending."""
    measured: tuple[MeasuredAnswer, ...] = ()
    failed: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Indices of the configs that failed and must not be recommended, ascending."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Number of failed configs, keyed by outcome, such as a timeout."""
    stale: int = 0
    """Number of configs whose rows belong to another version of the kernel's source."""
    elsewhere: int = 0
    """Number of configs that were measured only at other operating points."""
    impossible: int = 0
    """Number of configs whose measurements violate a law of physics."""

    def at(self, rows: np.ndarray) -> tuple[np.ndarray, list[MeasuredAnswer]]:
        """Return the indices of the measured configs in the ascending array `rows`, and their measurements."""
        if not len(self.rows):
            return _NONE, []
        positions = np.flatnonzero(np.isin(rows, self.rows))
        return positions, [self.measured[i] for i in np.searchsorted(self.rows, rows[positions])]


NOTHING = MeasuredRows()
_NONE = np.empty(0, dtype=np.int64)


def measured_rows(
    space: Space, on_problem: ProblemSpace, gpu: GPU, evidence: Evidence, points: Sequence[OperatingPoint]
) -> tuple[MeasuredRows, ...]:
    """Return the measurements and failures of a kernel on a problem, for each operating point.

    `MeasuredRows.elsewhere` counts the measured configs that have no measurement at any of the `points`.
    """
    kernel = space.kernel
    measured = [row for row in evidence.measured if row.kernel == kernel.name]
    failed = [row for row in evidence.failed if row.kernel == kernel.name]
    if not measured and not failed:
        return (NOTHING,) * len(points)
    each = [_at_point(on_problem, gpu, point, measured, failed) for point in points]
    if len(each) == 1:
        return (each[0],)
    everywhere = np.unique(np.concatenate([here.rows for here in each]))
    return tuple(replace(here, elsewhere=here.elsewhere - len(np.setdiff1d(everywhere, here.rows))) for here in each)


def _at_point(
    on_problem: ProblemSpace,
    gpu: GPU,
    point: OperatingPoint,
    measured: Sequence[MeasuredAnswer],
    failed: Sequence[FailedConfig],
) -> MeasuredRows:
    space, kernel = on_problem.space, on_problem.space.kernel
    every = [row for row in measured if row.kernel_hash == kernel.hash]
    ours = [row for row in every if not impossible(row, on_problem.problem, gpu)]
    failed_ours = [row for row in failed if row.kernel_hash == kernel.hash]
    here = [row for row in ours if applies(row, gpu, point)]
    failed_rows = space.find([row.config for row in failed_ours])
    outcomes = {int(row): failure.outcome for row, failure in zip(failed_rows, failed_ours, strict=True) if row >= 0}
    rows = space.find([row.config for row in here])
    # Use the latest measurement of each config. A row at the default limit may contain the limit in watts or None.
    latest: dict[int, MeasuredAnswer] = {}
    for row, answer in sorted(zip(rows.tolist(), here, strict=True), key=lambda pair: pair[1].measured_at):
        if row >= 0 and on_problem.valid[row] and row not in outcomes:
            latest[row] = answer
    chosen = sorted(latest)
    return MeasuredRows(
        rows=np.array(chosen, dtype=np.int64),
        measured=tuple(latest[row] for row in chosen),
        failed=np.array(sorted(outcomes), dtype=np.int64),
        failures=Counter(outcomes.values()),
        stale=len(_configs(measured, kernel.hash) | _configs(failed, kernel.hash)),
        elsewhere=len(_configs(ours) - _configs(here)) if len(here) < len(ours) else 0,
        impossible=len(_configs(every) - _configs(ours)) if len(ours) < len(every) else 0,
    )


def applies(row: MeasuredAnswer, gpu: GPU, point: OperatingPoint) -> bool:
    """Return whether a row was measured at the power limit and core clock of an operating point."""
    limit = gpu.tdp_w if row.power_limit_w is None else row.power_limit_w
    if abs(point.limit_w(gpu) - limit) > _SAME_W or row.locked_memory_clock_hz is not None:
        return False
    if point.clock_hz is None or row.locked_sm_clock_hz is None:
        return point.clock_hz is None and row.locked_sm_clock_hz is None
    return abs(point.clock_hz - row.locked_sm_clock_hz) <= _SAME_HZ


def _configs(rows: Iterable[MeasuredAnswer | FailedConfig], without: str | None = None) -> set[tuple[object, ...]]:
    return {(row.kernel_hash, *sorted(row.config.items())) for row in rows if row.kernel_hash != without}
