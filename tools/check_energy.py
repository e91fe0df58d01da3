"""Hold predicted energy against the recorded energy of whole spaces: hotspot and expdist on an RTX A4000.

Usage: python tools/check_energy.py --sources FOLDER [--data PATH] [--configs N]   (kernrec installed)

`--sources` names a folder with the public repositories of the kernels (`recorded_sets.py` says which). A sample of
configs is compiled and emulated; nothing was fitted to these rows. Prints the error of power given the recorded time,
of energy predicted with the predicted time, and the rank correlation of energy. Exits with status 2 when sources or
data are absent.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from evaluate_prior import Evaluator, profiles_file, sample
from fit_power import DEFAULT_DATA
from power_recordings import parquet
from prior_tables import Results
from recorded_sets import SETS, RecordedSet, load_recorded_kernel, read_rows

from kernrec.errors import KernrecError
from kernrec.gpu import find_gpu
from kernrec.recommender.candidate_set import candidate_set
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.store import Evidence
from kernrec.training.scores import rank_correlation


def check(recorded: RecordedSet, sources: Path, data: Path, configs: int) -> str:
    """A line about one space; profiles a sample of it."""
    kernel, recording = load_recorded_kernel(recorded, sources), recorded.recordings[0]
    rows, gpu = read_rows(recording, kernel, data / "spaces"), find_gpu(recording.card)
    ran = [row for row in parquet(data / "spaces" / recording.file) if row["outcome"] == "ok" and row["latency_s"]]
    energy_j = np.array([row["nvml_energy"] or np.nan for row in ran])
    chosen = sample(rows, min(configs, recorded.most), 0)
    problem = kernel.definition.problem()
    sampled = [rows.configs[i] for i in chosen]
    Evaluator(configs, 1, Results()).profile(kernel, problem, gpu, sampled, recorded.name)
    table = Context([profiles_file(kernel, gpu)]).kernel_table(kernel, problem, gpu)
    point = OperatingPoint(None, recording.clock_hz)
    candidates = candidate_set([table], problem, [point], Evidence(), whole_space=True)
    if not candidates.kernels:
        raise KernrecError("every config of the sample is refused")
    of_kernel = candidates.kernels[0]
    place = {int(row): i for i, row in enumerate(of_kernel.rows)}
    pairs = [(i, place[row]) for i in chosen if (row := int(table.space.find([rows.configs[i]])[0])) in place]
    mine, theirs = (np.array(side) for side in zip(*pairs, strict=True))
    keep = np.isfinite(energy_j[mine])
    mine, theirs = mine[keep], theirs[keep]
    nominal, power = of_kernel.prediction.nominal, table.power
    clock_hz = recording.clock_hz or power.running_hz
    seconds, joules = rows.latency_s[mine], energy_j[mine]
    parts = (nominal.core_j, nominal.dram_j)
    core_w, dram_w = (np.broadcast_to(part, len(of_kernel.rows))[theirs] / seconds for part in parts)
    watts = power.power_at(clock_hz, {}) + core_w * power.voltage(clock_hz) ** 2 + dram_w
    off = watts / (joules / seconds) - 1.0
    predicted_j = candidates.energy_j[0, theirs]
    energy_off = np.abs(predicted_j / joules - 1.0)
    return (
        f"{recorded.name:8} {gpu.title}, {len(mine)} of {len(rows.configs)} configs: power given the time: median error"
        f" {np.median(np.abs(off)):.1%}, ratio {np.median(off) + 1:.2f} ({np.quantile(off, 0.1) + 1:.2f} to"
        f" {np.quantile(off, 0.9) + 1:.2f}); energy with predicted time: median error {np.median(energy_off):.1%},"
        f" rank correlation {rank_correlation(predicted_j, joules):.2f}"
    )


def main() -> int:
    """Print a line for each space."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="the shared data folder")
    parser.add_argument("--sources", type=Path, required=True, help="folder with the kernels' repositories")
    parser.add_argument("--configs", type=int, default=30, help="configs of each space that are profiled")
    args = parser.parse_args()
    status = 0
    for recorded in SETS:
        if recorded.name in ("hotspot", "expdist"):
            try:
                print(check(recorded, args.sources, args.data, args.configs), flush=True)
            except KernrecError as error:
                print(f"skipped {recorded.name}: {error}", file=sys.stderr)
                status = 2
    return status


if __name__ == "__main__":
    sys.exit(main())
