"""A recording to replay: 200 configs of a made-up kernel, of which every tenth cannot run."""

from pathlib import Path

import numpy as np

from kernrec.op import find_op
from kernrec.store import Database
from kernrec.store.measurement import Measurement

BEST = {"x": 77, "y": 1}


def make_recording(path: Path, configs: int = 200, gpu: str = "rtx3090", energy: bool = True, size: int = 1024) -> Path:
    """Write a database of noisy matmul measurements (m = n = k = `size`); x = 77 is the fastest config."""
    draw = np.random.default_rng(5)
    problem = find_op("matmul").problem(m=size, n=size, k=size)
    rows = []
    for x in range(configs):
        row = {
            "gpu": gpu, "kernel": "recorded", "kernel_hash": "0123456789abcdef", "config": {"x": x, "y": x % 4},
            "problem": problem, "protocol_version": 1, "tier": "final", "session": "then",
            "measured_at": "2026-01-01T00:00:00",
        }  # fmt: skip
        if x % 10 == 9:
            rows.append(row | {"outcome": "constraint", "error": "too many threads"})
            continue
        seconds = 1e-3 * (1.0 + abs(x - BEST["x"]) / 50.0)
        samples = seconds * (1.0 + 0.003 * np.abs(draw.standard_normal(32)))
        power_w = 200.0 + 0.5 * (x % 600)  # stay within the power that a board can draw
        row |= {"outcome": "ok", "latency_s": float(np.median(samples)), "latency_samples_s": samples.tolist()}
        if energy:
            row |= {"power_w": power_w, "energy_j": power_w * float(np.median(samples))}
        rows.append(row)
    with Database.open(path, read_only=False, create=True) as database:  # may already have other GPUs
        database.add_measurements(map(Measurement.from_columns, rows))
    return path
