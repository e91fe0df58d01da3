"""Merge rows of a recording with the same config, either repeated measurements or rows of several kernels."""

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from kernrec.interop.results import ForeignResult
from kernrec.store.measurement import Outcome
from kernrec.util.human import counted


def as_runs(results: Iterable[ForeignResult]) -> list[ForeignResult]:
    """Return one result per config, with the median and all times, for files without timestamps.

    Failures of a config that also ran successfully are dropped.
    """
    alike: dict[Hashable, list[ForeignResult]] = defaultdict(list)
    for result in results:
        alike[result.kernel, result.problem, *sorted(result.config.items())].append(result)
    runs = []
    for rows in alike.values():
        times = tuple(row.latency_s for row in rows if row.latency_s is not None)
        ran = next((row for row in rows if row.latency_s is not None), rows[0])
        several = len(times) > 1
        runs.append(replace(ran, latency_s=statistics.median(times), samples_s=times) if several else ran)
    return runs


def without_repeats(results: Sequence[ForeignResult], ignored: Sequence[str]) -> tuple[list[ForeignResult], str | None]:
    """Return (median result of each config in file order, note on dropped results or empty).

    Results at different power limits or clocks stay separate. Failures of a config that also ran successfully are
    dropped. Of two middle results, the median is the lower one.

    Args:
        results: results of one kernel, on one problem and GPU.
        ignored: names removed from the configs; if empty, equal configs are repeated measurements and all stay.
    """
    if not ignored:
        return list(results), None
    by_config: dict[tuple[object, ...], list[ForeignResult]] = defaultdict(list)
    for result in results:
        limits = (result.power_limit_w, result.locked_sm_clock_hz, result.locked_memory_clock_hz)
        by_config[(*sorted(result.config.items()), *limits)].append(result)
    chosen: set[int] = set()
    several, apart = 0, 1.0
    for rows in by_config.values():
        ran = [row for row in rows if row.outcome == Outcome.OK and row.latency_s is not None]
        times = [row.latency_s for row in ran if row.latency_s is not None]
        if len(times) > 1:
            several += 1
            apart = max(apart, max(times) / min(times))
        middle = statistics.median_low(times) if times else None
        chosen.add(id(next((row for row in ran if row.latency_s == middle), rows[0])))
    left = [result for result in results if id(result) in chosen]
    if len(left) == len(results):
        return left, None
    return left, (
        f"{counted(several, 'config')} had several times, up to a factor of {apart:.2f} apart; the median of each "
        f"was kept, {counted(len(results) - len(left), 'row')} were skipped"
    )
