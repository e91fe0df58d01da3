"""What the databases know of one kernel's candidates on a problem: which rows of its space ran, and how they did.

Not every row of the log applies. A config of another version of the source is another config; one that ran at another
power limit or clock than the query's has other costs; one that failed is not to be recommended at all.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from kernrec.gpu import GPU
from kernrec.kernel import Kernel, SpaceAt
from kernrec.kernel.space import Space
from kernrec.store import Evidence, FailedConfig, MeasuredAnswer

_SAME_W = 0.5
"""Power limits are set in whole watts."""
_SAME_HZ = 7.5e6
"""Half of the 15 MHz that NVIDIA's core clocks are apart."""


@dataclass(frozen=True)
class Known:
    """rows: of the space, ascending, that `measured`, in the same order, is about. failed: rows that may not be chosen.

    failures: how many of them by outcome. stale: configs measured or failed with another version of the source.
    elsewhere: configs measured at other power limits or clocks only.
    """

    rows: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    measured: tuple[MeasuredAnswer, ...] = ()
    failed: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    failures: Mapping[str, int] = field(default_factory=dict)
    stale: int = 0
    elsewhere: int = 0


NOTHING = Known()


def known(
    space: Space, at: SpaceAt, gpu: GPU, evidence: Evidence, power_limit_w: float | None, clock_hz: float | None
) -> Known:
    """What of `evidence` is about this space on this problem, at the query's power limit and clock."""
    kernel = space.kernel
    measured = [row for row in evidence.measured if row.kernel == kernel.name]
    failed = [row for row in evidence.failed if row.kernel == kernel.name]
    if not measured and not failed:
        return NOTHING
    ours = [row for row in measured if row.kernel_hash == kernel.hash]
    failed_ours = [row for row in failed if row.kernel_hash == kernel.hash]
    here = [row for row in ours if applies(row, gpu, power_limit_w, clock_hz)]
    failed_rows = space.find([row.config for row in failed_ours])
    outcomes = {int(row): one.outcome for row, one in zip(failed_rows, failed_ours, strict=True) if row >= 0}
    rows = space.find([row.config for row in here])
    # A limit equal to the default may be written in two ways: of two answers that apply the latest counts.
    latest: dict[int, MeasuredAnswer] = {}
    for row, one in sorted(zip(rows.tolist(), here, strict=True), key=lambda pair: pair[1].measured_at):
        if row >= 0 and at.valid[row] and row not in outcomes:
            latest[row] = one
    chosen = sorted(latest)
    return Known(
        np.array(chosen, dtype=np.int64),
        tuple(latest[row] for row in chosen),
        np.array(sorted(outcomes), dtype=np.int64),
        Counter(outcomes.values()),
        len(_stale(measured, kernel) | _stale(failed, kernel)),
        len(_configs(ours) - _configs(here)) if len(here) < len(ours) else 0,
    )


def applies(row: MeasuredAnswer, gpu: GPU, power_limit_w: float | None, clock_hz: float | None) -> bool:
    """Whether a row was measured at the query's power limit (None: the default) and core clock (None: not locked)."""
    default = gpu.tdp_w
    limit = default if power_limit_w is None else power_limit_w
    was = default if row.power_limit_w is None else row.power_limit_w
    if abs(limit - was) > _SAME_W or row.locked_memory_clock_hz is not None:
        return False
    if clock_hz is None or row.locked_sm_clock_hz is None:
        return clock_hz is None and row.locked_sm_clock_hz is None
    return abs(clock_hz - row.locked_sm_clock_hz) <= _SAME_HZ


def _stale(rows: Iterable[MeasuredAnswer | FailedConfig], kernel: Kernel) -> set[tuple[object, ...]]:
    return _configs(row for row in rows if row.kernel_hash != kernel.hash)


def _configs(rows: Iterable[MeasuredAnswer | FailedConfig]) -> set[tuple[object, ...]]:
    return {(row.kernel_hash, *sorted(row.config.items())) for row in rows}
