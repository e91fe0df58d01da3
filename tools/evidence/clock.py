"""That a sixth of the recorded A100 convolution ran at a raised clock: figures from the recording itself."""

import numpy as np
from front import DATA, Data

from tests.helpers.recorded_clock import FILE, ClockRecording, at_step, raised, read


def run(data: Data = DATA) -> None:
    """Print the figures that `tests/helpers/recorded_clock.py` states."""
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
