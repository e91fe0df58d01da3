"""The clocks at which recordings were made, from the recordings themselves.

A sixth of the recorded A100 convolution ran at a raised clock. Nsight's counters tell the clock of a launch:
instructions over the share of clocks that issue one, and over the duration. And a kernel that its SMs bound takes as
many clocks for as much work on each of two cards with SMs alike.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from front import DATA, Data

from evidence.recordings.clock import FILE, ClockRecording, at_step, raised, read
from evidence.recordings.files import parquet_columns, parquet_dicts
from kernrec.gpu import find_gpu

from .recorded_spaces import read_space

_SCHEDULERS = 4  # of an SM
_COUNTED = "rtx2080ti"  # the card of all recorded counters
_NAMES = {"padding": "use_padding"}  # tunables of the counters by their names in the spaces


def run(data: Data = DATA) -> None:
    """Print the figures that `tools/evidence/recordings/clock.py` states."""
    recording = read(data / "spaces" / FILE)
    marked, up = raised(recording), np.flatnonzero(recording.step > 1.25)
    before = [float(recording.launches_s[i, : at_step(recording.launches_s[i])].sum()) for i in up]
    print(f"{len(marked)} valid configs, {marked.mean():.1%} of them perhaps at a raised clock")
    print(f"launches became faster within {len(up)} configs, at the earliest after {min(before) * 1e3:.0f} ms")
    print(f"  by at most {recording.step.max():.3f}; boost over base clock: {1410 / 765:.3f}")
    fastest = np.argsort(recording.launches_s.mean(axis=1))[:40]
    print(f"of the 40 fastest configs {int(marked[fastest].sum())} ran at a raised clock")
    ratio = twins(recording)
    after = np.array([i + 1 for i in up if i + 1 < len(ratio) and np.isfinite(ratio[i + 1])])
    for low, high in ((0.0, 1.5), (1.5, 2.0), (2.0, np.inf)):
        some = after[(recording.idle_s[after] >= low) & (recording.idle_s[after] < high)]
        faster = int((ratio[some] < 0.85).sum())
        print(f"measured {low:g} to {high:g} s after such a config: {faster} of {len(some)} faster than their twin")

    _by_counters(data)
    _by_another_card(data / "spaces")


def _by_counters(folder: Path) -> None:
    """Print the clocks of the recordings with counters, and of others of their kernels."""
    clock_hz = {kernel: _counted_hz(folder, kernel) for kernel in ("convolution", "pnpoly", "coulomb")}
    for kernel, clocks in clock_hz.items():
        quantiles = np.quantile(clocks, (0.05, 0.5, 0.95)) / 1e6
        text = " to ".join(f"{value:.0f}" for value in quantiles)
        print(f"{kernel} with counters, {_COUNTED}: {text} MHz (5, 50, 95 % of {len(clocks)} configs)")
    profiled, again = _counted_times(folder, "convolution"), _times(folder / "spaces", "convolution-rtx2080ti")
    ratio = np.array([again[config] / seconds for config, seconds in profiled.items() if config in again])
    low, high = np.quantile(ratio, (0.5, 0.75))
    clock = np.median(clock_hz["convolution"]) / high / 1e6
    print(f"convolution again: {low:.3f} to {high:.3f} times as long (50, 75 % of {len(ratio)}), so at {clock:.0f} MHz")
    times, card, counted = _times(folder / "spaces", "pnpoly-rtx3090"), find_gpu("rtx3090"), find_gpu(_COUNTED)
    work_clk = np.median(clock_hz["pnpoly"]) * counted.sms / card.sms
    both = [(config, seconds) for config, seconds in _counted_times(folder, "pnpoly").items() if config in times]
    clocks = np.array([work_clk * seconds / times[c] for c, seconds in both if ("tile_size", 1) in c])
    text = " to ".join(f"{value / 1e6:.0f}" for value in np.quantile(clocks, (0.25, 0.5, 0.75)))
    print(f"pnpoly, RTX 3090, one point a thread: {text} MHz (quartiles of {len(clocks)} configs)")


def _by_another_card(folder: Path) -> None:
    """Print the clock of the RTX 3090's convolution, from the RTX A4000's at 1,560 MHz."""
    fixed, times = _times(folder, "convolution-a4000", {"use_shmem": 1}), _times(folder, "convolution-rtx3090")
    card, other = find_gpu("rtx3090"), find_gpu("rtx-a4000")
    both = sorted(times.keys() & fixed.keys(), key=times.__getitem__)[:200]
    clocks = [other.boost_clock_hz * other.sms / card.sms * fixed[config] / times[config] for config in both]
    text = " to ".join(f"{value / 1e6:.0f}" for value in np.quantile(clocks, (0.25, 0.5, 0.75)))
    print(f"convolution, RTX 3090: {text} MHz (quartiles of the {len(both)} fastest configs that both cards have)")


_Times = Mapping[frozenset[tuple[str, int]], float]
"""Seconds by tunables."""


def _times(folder: Path, name: str, chosen: Mapping[str, int] | None = None) -> _Times:
    """The times of a recorded space, of configs with `chosen` tunables, which are left out of the key."""
    path = next(iter(sorted(folder.glob(f"{name}.*"))), folder / f"{name}.parquet")
    space, fixed = read_space(path), chosen or {}
    seconds = space.measured["latency_s"].tolist()
    rows = [dict(zip(space.names, map(int, row), strict=True)) for row in space.tunables.tolist()]
    return {
        frozenset((k.lower(), v) for k, v in row.items() if k not in fixed): time
        for row, time in zip(rows, seconds, strict=True)
        if all(row[key] == value for key, value in fixed.items())
    }


def _counted_times(folder: Path, kernel: str) -> _Times:
    rows = parquet_dicts(folder / "counters" / f"{kernel}-{_COUNTED}.parquet", "outcome = 'Ok'")
    first = list(rows[0]).index("outcome")
    varied = [name for name in list(rows[0])[:first] if len({row[name] for row in rows}) > 1]
    return {
        frozenset((_NAMES.get(n.lower(), n.lower()), int(row[n])) for n in varied): float(row["duration_us"]) * 1e-6
        for row in rows
    }


def _counted_hz(folder: Path, kernel: str) -> np.ndarray:
    """The clock of each config with counters, (N,)."""
    columns = parquet_columns(folder / "counters" / f"{kernel}-{_COUNTED}.parquet", "outcome = 'Ok'")
    issuing = columns["smsp__issue_active.avg.pct_of_peak_sustained_active"] / 100.0
    active = columns["smsp__cycles_active.avg.pct_of_peak_sustained_elapsed"] / 100.0
    slots = _SCHEDULERS * find_gpu(_COUNTED).sms
    clock_hz = columns["smsp__inst_executed.sum"] / (slots * issuing * active * columns["duration_us"] * 1e-6)
    return np.asarray(clock_hz[np.isfinite(clock_hz)])


def twins(recording: ClockRecording) -> np.ndarray:
    """Median time of each config with shared memory over that of the same config with the other `read_only`, (N,);
    NaN where there is none."""
    median = np.median(recording.launches_s, axis=1)
    place = {tuple(config.items()): i for i, config in enumerate(recording.configs)}
    ratios = np.full(len(median), np.nan)
    for i, config in enumerate(recording.configs):
        twin = place.get(tuple({**config, "read_only": 1 - config["read_only"]}.items()))
        if config["use_shmem"] and twin is not None:
            ratios[i] = median[i] / median[twin]
    return ratios
