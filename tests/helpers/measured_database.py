"""Creates databases of simulated measurements from the analytical model's predictions."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from kernrec.recommender import Objective, Query, Recommender
from kernrec.store import Database
from kernrec.store.measurement import Measurement


def store_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """Add measurements, given as columns, to a database, and return its path; create the database if necessary."""
    with Database.open(path, read_only=False, create=True) as database:
        database.add_measurements(map(Measurement.from_columns, rows))
    return path


def make_measured_database(path: Path, problems: int = 12, configs: int = 12, factor: float = 1.3) -> None:
    """Store `configs` matmul configs per shape on an RTX 4090: `factor` times the predicted latency, with 2 % noise."""
    draw = np.random.default_rng(0)
    query = Query(Objective.LATENCY, top=configs)
    recommender = Recommender([], triton=False)  # Triton is estimated differently
    rows = []
    for number in range(problems):
        shape = {"m": 256 * (number + 1), "n": 512, "k": 256}
        answer = recommender.recommend("matmul", "rtx4090", shape, query=query)
        for recommendation in answer.recommendations:
            latency_s = recommendation.latency_s.value * factor * float(np.exp(draw.normal(0, 0.02)))
            rows.append(
                {
                    "gpu": answer.gpu.name, "device": answer.gpu.title, "kernel": recommendation.kernel.name,
                    "kernel_hash": recommendation.kernel.hash, "config": dict(recommendation.config),
                    "problem": answer.problem, "protocol_version": 1, "tier": "final", "session": "simulated",
                    "measured_at": "2026-03-01T12:00:00", "latency_s": latency_s,
                    "energy_j": latency_s * recommendation.power_w, "outcome": "ok",
                }
            )  # fmt: skip
    store_rows(path, rows)
