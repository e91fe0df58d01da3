"""Find the configs of the recorded A100 convolution that ran at a raised clock, from time stamps and launch times.

The clock rose from 765 to 1,410 MHz after launches had kept the GPU busy for 100 ms, and fell if the next config took
more than two seconds to compile. No model of kernels can predict such times.
"""

import gzip
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from evidence.recordings.files import present

Array = np.ndarray
FILE = "convolution-a100.t4.json.gz"

BUSY_S = 0.09
"""Seconds of launches after which the clock rises: 100 ms in the recording, minus some work that was not recorded."""
HOLD_S = 2.0
"""Maximum time in seconds for which an idle GPU keeps a raised clock."""
STEP = 1.1
"""Ratio between times of a config's first and last launches above which the clock must have changed."""


@dataclass(frozen=True)
class ClockRecording:
    """Valid measurements of a recording in T4 format, in the order of measuring. Arrays are (N,)."""

    configs: Sequence[Mapping[str, int]]
    end_s: Array
    """End of each measurement, as seconds since the epoch."""
    launches_s: Array
    """Time of each launch in seconds, (N, 32)."""

    @property
    def busy_s(self) -> Array:
        """Sum of the launch times of each measurement in seconds, (N,)."""
        return np.asarray(self.launches_s.sum(axis=1))

    @property
    def step(self) -> Array:
        """Time of each measurement's first launches, except the very first, over that of its last launches, (N,)."""
        return np.asarray(np.median(self.launches_s[:, 1:4], axis=1) / np.median(self.launches_s[:, -3:], axis=1))


def read(path: Path) -> ClockRecording:
    """Read a T4 file whose times are in milliseconds."""
    with gzip.open(present(path)) as file:
        valid = [row for row in json.load(file)["results"] if row["invalidity"] == "correct"]
    end = [datetime.fromisoformat(row["timestamp"]).timestamp() for row in valid]
    launches = [row["times"]["runtimes"] for row in valid]
    return ClockRecording([row["configuration"] for row in valid], np.array(end), np.array(launches) / 1e3)


def raised(recording: ClockRecording) -> Array:
    """Return a mask (N,) of the measurements in which some launches may have run at a raised clock."""
    began = recording.end_s - recording.busy_s
    marked = np.maximum(recording.step, 1.0 / recording.step) > STEP
    until = -np.inf
    for i, busy in enumerate(recording.busy_s):
        marked[i] |= began[i] < until
        if busy > BUSY_S:
            until = recording.end_s[i] + HOLD_S
    return np.asarray(marked)


def raised_configs(path: Path, names: Collection[str] = ()) -> set[frozenset[tuple[str, int]]]:
    """Return the keys of the configs in a T4 file that may have run at a raised clock. A key (`config_key`) contains
    the tunables in `names`, which are in lower case, or all tunables if `names` is empty."""
    recording = read(path)
    configs = zip(recording.configs, raised(recording).tolist(), strict=True)
    return {config_key(config, names) for config, is_raised in configs if is_raised}


def config_key(config: Mapping[str, int], names: Collection[str] = ()) -> frozenset[tuple[str, int]]:
    """Return a hashable key of a config, as used by `raised_configs`."""
    lower = {name.lower(): int(value) for name, value in config.items()}
    return frozenset((name, value) for name, value in lower.items() if not names or name in names)
