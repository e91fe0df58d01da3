"""A database of measurements without a GPU: what the prior predicts, as a device would have left it."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from kernrec.recommender import Objective, Query, Recommender
from kernrec.store import Database
from kernrec.store.measurement import Measurement


def store_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """Add measurements by their columns to a database, which is made where there is none; return its path."""
    with Database.open(path, read_only=False, create=True) as database:
        database.add_measurements(map(Measurement.from_columns, rows))
    return path


def make_measured_database(path: Path, problems: int = 12, configs: int = 12, factor: float = 1.3) -> None:
    """Matmul on an RTX 4090: `configs` configs of each of `problems` shapes, `factor` times the prior, 2 % of noise."""
    draw = np.random.default_rng(0)
    query = Query(Objective.LATENCY, top=configs)
    recommender = Recommender([], triton=False)  # Triton's estimates are not the prior's
    rows = []
    for number in range(problems):
        shape = {"m": 256 * (number + 1), "n": 512, "k": 256}
        answer = recommender.recommend("matmul", "rtx4090", shape, query=query)
        for choice in answer.choices:
            latency_s = choice.latency_s.value * factor * float(np.exp(draw.normal(0, 0.02)))
            rows.append(
                {
                    "gpu": answer.gpu.name, "device": answer.gpu.title, "kernel": choice.kernel.name,
                    "kernel_hash": choice.kernel.hash, "config": dict(choice.config), "problem": answer.problem,
                    "protocol_version": 1, "tier": "final", "session": "simulated",
                    "measured_at": "2026-03-01T12:00:00", "latency_s": latency_s,
                    "energy_j": latency_s * choice.power_w, "outcome": "ok",
                }
            )  # fmt: skip
    store_rows(path, rows)
