"""Find the configs of the recorded A100 convolution that ran at a raised clock, from the recording itself.

    python tools/recorded_clock.py [--data ../shared/data]

The recording has, for each config, when it was measured and how long each of its 32 launches took. The GPU's clock was
not locked. It was at the base clock of 765 MHz, rose by boost over base (1,410 / 765) once launches had kept the GPU
busy for 100 ms, and fell again when the next config took more than two seconds to compile. So a config's time depends
on which config was measured before it: after a slow one (mostly `read_only` without shared memory) the next ran up to
1.8 times faster than configs like it. No model of kernels can know that, and none should.

`raised` finds these configs from time stamps and launch times, without any prediction. All others ran at one clock. The
RTX A4000 was at its boost clock throughout; under its power limit times drift, but without such steps.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

Array = np.ndarray
FILE = "convolution-a100.t4.json.gz"

BUSY_S = 0.09
"""Launches that keep the GPU busy for longer raise its clock: 100 ms in the recording, minus unrecorded work."""
HOLD_S = 2.0
"""The longest time that an idle GPU keeps a raised clock."""
STEP = 1.1
"""The clock changed during a config whose first and last launches differ by more than this factor."""


@dataclass(frozen=True)
class ClockRecording:
    """The valid measurements of a T4 recording, in the order in which they were made; arrays (N,)."""

    configs: Sequence[Mapping[str, int]]
    """The tunables of each."""
    end_s: Array
    """When each ended."""
    launches_s: Array
    """Time of each launch, (N, 32)."""

    @property
    def busy_s(self) -> Array:
        """Total time of the launches of each measurement."""
        return self.launches_s.sum(axis=1)

    @property
    def idle_s(self) -> Array:
        """Time from the end of the previous measurement to the first launch; infinite for the first measurement."""
        return np.concatenate([[np.inf], np.diff(self.end_s)]) - self.busy_s

    @property
    def step(self) -> Array:
        """Time of the first launches (without the very first) over that of the last."""
        return np.median(self.launches_s[:, 1:4], axis=1) / np.median(self.launches_s[:, -3:], axis=1)


def read(path: Path) -> ClockRecording:
    """Read a T4 file whose times are in milliseconds."""
    with gzip.open(path) as file:
        valid = [row for row in json.load(file)["results"] if row["invalidity"] == "correct"]
    end = [datetime.fromisoformat(row["timestamp"]).timestamp() for row in valid]
    launches = [row["times"]["runtimes"] for row in valid]
    return ClockRecording([row["configuration"] for row in valid], np.array(end), np.array(launches) / 1e3)


def raised(recording: ClockRecording) -> Array:
    """Whether each measurement may have run at a raised clock, wholly or in part, (N,)."""
    began = recording.end_s - recording.busy_s
    marked = np.maximum(recording.step, 1.0 / recording.step) > STEP
    until = -np.inf
    for i, busy in enumerate(recording.busy_s):
        marked[i] |= began[i] < until
        if busy > BUSY_S:
            until = recording.end_s[i] + HOLD_S
    return marked


def main() -> int:
    """Print the figures of the module's docstring, from the recording."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    path = parser.parse_args().data / "spaces" / FILE
    if not path.is_file():
        print(f"no {path}: nothing read (--data names the folder of recorded data)")
        return 0
    recording = read(path)
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
    return 0


def at_step(launches: Array) -> int:
    """The number of the first launch after the clock changed."""
    between = np.sqrt(np.median(launches[1:4]) * np.median(launches[-3:]))
    return int(np.argmax(launches[1:] < between)) + 1


def twins(recording: ClockRecording) -> Array:
    """Median time of each config with shared memory over that of the same config with the other `read_only`, (N,);
    NaN where there is none."""
    median = np.median(recording.launches_s, axis=1)
    place = {tuple(config.items()): i for i, config in enumerate(recording.configs)}
    ratios = np.full(len(median), np.nan)
    for i, config in enumerate(recording.configs):
        twin = place.get(tuple((config | {"read_only": 1 - config["read_only"]}).items()))  # type: ignore[operator]
        if config["use_shmem"] and twin is not None:
            ratios[i] = median[i] / median[twin]
    return ratios


if __name__ == "__main__":
    sys.exit(main())
