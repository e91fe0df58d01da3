"""At which clock the recorded A100 convolutions ran, from the order and the course of the recording itself.

    python tools/recorded_clock.py [--data ../shared/data]

The recording holds, for each config, when it was measured and how long each of its 32 launches took. Nobody had locked
the card's clock. It stood at the base clock of 765 MHz, went up once launches had kept it busy for 100 ms, by as much
as boost over base (1,410 / 765), and came down again when the next config took more than two seconds to compile. So
a config's time depends on which config happened to be measured before it: after a slow one (`read_only` without shared
memory, mostly) the next ran up to 1.8 times faster than its twins. No model of kernels can know that, and none should.

`raised` finds the configs concerned from time stamps and launches alone, with no look at any prediction. What is left
ran at one clock. The RTX A4000 was at boost all along; its power limit lets times drift, but in no such steps.
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
"""Launches that keep the card busy for longer raise its clock: 100 ms in the recording, less what it did unrecorded."""
HOLD_S = 2.0
"""How long an idle card keeps a raised clock, at the most."""
STEP = 1.1
"""A config whose last launches differ from its first by more than this saw the clock change."""


@dataclass(frozen=True)
class Course:
    """The measurements of a T4 recording that were valid, in the order they were made; arrays (N,).

    configs: their tunables. at_s: when each had ended. launches_s: (N, 32).
    """

    configs: Sequence[Mapping[str, int]]
    at_s: Array
    launches_s: Array

    @property
    def busy_s(self) -> Array:
        """How long the launches of each took together."""
        return self.launches_s.sum(axis=1)

    @property
    def idle_s(self) -> Array:
        """From the end of one measurement to the first launch of the next; infinite before the first."""
        return np.concatenate([[np.inf], np.diff(self.at_s)]) - self.busy_s

    @property
    def step(self) -> Array:
        """Time of the first launches (the very first left out) over that of the last."""
        return np.median(self.launches_s[:, 1:4], axis=1) / np.median(self.launches_s[:, -3:], axis=1)


def read(path: Path) -> Course:
    """The course of a T4 file whose times are in milliseconds."""
    with gzip.open(path) as file:
        valid = [row for row in json.load(file)["results"] if row["invalidity"] == "correct"]
    at = [datetime.fromisoformat(row["timestamp"]).timestamp() for row in valid]
    launches = [row["times"]["runtimes"] for row in valid]
    return Course([row["configuration"] for row in valid], np.array(at), np.array(launches) / 1e3)


def raised(course: Course) -> Array:
    """Whether each measurement may have run at a raised clock, wholly or in part; (N,)."""
    began = course.at_s - course.busy_s
    found = np.maximum(course.step, 1.0 / course.step) > STEP
    until = -np.inf
    for i, busy in enumerate(course.busy_s):
        found[i] |= began[i] < until
        if busy > BUSY_S:
            until = course.at_s[i] + HOLD_S
    return found


def main() -> int:
    """Prints what the docstring claims, from the recording."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    path = parser.parse_args().data / "spaces" / FILE
    if not path.is_file():
        print(f"no {path}: nothing read (--data names the folder of recorded data)")
        return 0
    course = read(path)
    marked, up = raised(course), np.flatnonzero(course.step > 1.25)
    before = [float(course.launches_s[i, : at_step(course.launches_s[i])].sum()) for i in up]
    print(f"{len(marked)} valid configs, {marked.mean():.1%} of them perhaps at a raised clock")
    print(f"launches became faster within {len(up)} configs, at the earliest after {min(before) * 1e3:.0f} ms")
    print(f"  by at most {course.step.max():.3f}; boost over base clock: {1410 / 765:.3f}")
    fastest = np.argsort(course.launches_s.mean(axis=1))[:40]
    print(f"of the 40 fastest configs {int(marked[fastest].sum())} ran at a raised clock")
    ratio = twins(course)
    after = np.array([i + 1 for i in up if i + 1 < len(ratio) and np.isfinite(ratio[i + 1])])
    for low, high in ((0.0, 1.5), (1.5, 2.0), (2.0, np.inf)):
        some = after[(course.idle_s[after] >= low) & (course.idle_s[after] < high)]
        faster = int((ratio[some] < 0.85).sum())
        print(f"measured {low:g} to {high:g} s after such a config: {faster} of {len(some)} faster than their twin")
    return 0


def at_step(launches: Array) -> int:
    """Which launch is the first after a clock's step."""
    between = np.sqrt(np.median(launches[1:4]) * np.median(launches[-3:]))
    return int(np.argmax(launches[1:] < between)) + 1


def twins(course: Course) -> Array:
    """Median time of each config with shared memory over that of its twin with the other `read_only`; NaN for none."""
    median = np.median(course.launches_s, axis=1)
    place = {tuple(config.items()): i for i, config in enumerate(course.configs)}
    found = np.full(len(median), np.nan)
    for i, config in enumerate(course.configs):
        twin = place.get(tuple((config | {"read_only": 1 - config["read_only"]}).items()))  # type: ignore[operator]
        if config["use_shmem"] and twin is not None:
            found[i] = median[i] / median[twin]
    return found


if __name__ == "__main__":
    sys.exit(main())
