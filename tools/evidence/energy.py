"""Predicted energy beside the recorded energy of whole spaces: hotspot and expdist on an RTX A4000.

A sample of configs is compiled and emulated; nothing was fitted to these rows. Printed are the error of power for the
recorded time, of energy predicted with the predicted time, and the rank correlation of energy.
"""

import numpy as np
from front import DATA, Data, Sources, Table

from kernrec.training.scores import rank_correlation

from .profiled import profiled_sample
from .recorded_sets import SETS


def run(data: Data = DATA, sources: Sources = None, configs: int = 30) -> None:
    """Print a line for each space."""
    table = Table("median error and ratio of power for the recorded time; of energy with predicted time")
    for name in ("hotspot", "expdist"):
        recorded = SETS[name]
        (recording,) = recorded.recordings
        sample, rows, chosen = profiled_sample(recorded, recording, (sources, data), configs)
        recorded_j = rows.energy_j[chosen]
        predictions = sample.predictions()
        usable = (predictions.position >= 0) & np.isfinite(recorded_j)
        place, seconds, joules = predictions.position[usable], sample.latency_s[usable], recorded_j[usable]
        power = sample.table.power
        clock_hz = recording.clock_hz or power.running_hz
        core_w, dram_w = (part[place] / seconds for part in predictions.nominal_j)
        watts = power.power_at(clock_hz, {}) + core_w * power.voltage(clock_hz) ** 2 + dram_w
        off, predicted_j = watts / (joules / seconds) - 1.0, predictions.energy_j[place]
        low, high = (np.quantile(off, q) + 1 for q in (0.1, 0.9))
        table.row({
            "space": f"{name}, {sample.gpu.title}", "configs": len(seconds), "recorded": len(rows.configs),
            "power": f"{np.median(np.abs(off)):.1%}", "ratio": float(np.median(off) + 1),
            "80 % within": f"{low:.2f} to {high:.2f}", "energy": f"{np.median(np.abs(predicted_j / joules - 1)):.1%}",
            "rank": rank_correlation(predicted_j, joules),
        })  # fmt: skip
