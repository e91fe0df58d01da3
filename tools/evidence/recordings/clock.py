"""Find the configs of the recorded A100 convolution that ran at a raised clock, from time stamps and launch times.

The clock rose from 765 to 1,410 MHz after launches had kept the GPU busy for 100 ms, and fell if the next config took
more than two seconds to compile. No model of kernels can predict such times.
"""

import gzip
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from evidence.recordings.files import present

FILE = "convolution-a100.t4.json.gz"

BUSY_S = 0.09
"""Seconds of launches after which the clock rises: 100 ms in the recording, minus some work that was not recorded."""
HOLD_S = 2.0
"""Maximum time in seconds for which an idle GPU keeps a raised clock."""
STEP = 1.1
"""Ratio between times of a config's first and last launches above which the clock must have changed."""


def raised_configs(path: Path) -> set[frozenset[tuple[str, int]]]:
    """Return the keys (`config_key`) of the configs in a T4 file that may have run at a raised clock. The times in the
    file are in milliseconds, and the measurements are in the order of measuring."""
    with gzip.open(present(path)) as file:
        valid = [row for row in json.load(file)["results"] if row["invalidity"] == "correct"]
    launches_s = np.array([row["times"]["runtimes"] for row in valid]) / 1e3
    busy_s = launches_s.sum(axis=1)
    # Skip the first launch, which also warms up the GPU.
    step = np.median(launches_s[:, 1:4], axis=1) / np.median(launches_s[:, -3:], axis=1)
    stepped = np.maximum(step, 1.0 / step) > STEP
    raised, until = set(), -np.inf
    for row, seconds, is_marked in zip(valid, busy_s.tolist(), stepped.tolist(), strict=True):
        end_s = datetime.fromisoformat(row["timestamp"]).timestamp()
        if is_marked or end_s - seconds < until:
            raised.add(config_key(row["configuration"]))
        if seconds > BUSY_S:
            until = end_s + HOLD_S
    return raised


def config_key(config: Mapping[str, Any]) -> frozenset[tuple[str, int]]:
    """Return a hashable key of a config, as used by `raised_configs`."""
    return frozenset((name.lower(), int(value)) for name, value in config.items())
