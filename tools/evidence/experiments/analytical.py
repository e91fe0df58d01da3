"""Compare the analytical model with recorded times of kernels that it was not fitted to.

The sets are samples of recorded search spaces of public kernels in `--sources` (convolution, pnpoly, gemm,
dedispersion, hotspot, expdist), the kernels in datasets/kernels/textbook, and Triton's matmul in three kinds of
arithmetic. `no level` is the error without a common factor per recording. `--json` writes all rows for `intervals`.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from front import DATA, Data, Sources, Table
from train_triton_model import FILES, sampled_problems

from evidence.cases import Cases, agreement, heuristics, joined, recommendations, report, spread
from evidence.predicted import SETS, TEXTBOOK, Sample, profile, sampled_space
from evidence.recordings.files import recorded_dicts
from kernrec.errors import KernrecError, unknown
from kernrec.gpu import find_gpu
from kernrec.kernel import load_kernel
from kernrec.recommender.context import Context
from kernrec.training.scores import NEAR, rank_correlation

NAMES = (*SETS, "textbook", "triton")
KINDS = {"f16": "16 bits", "bf16": "16 bits", "tf32": "tf32", "f32": "f32"}
"""Kind of arithmetic of each data type. The kinds use different pipes, so each counts as a separate Triton kernel."""


def run(
    data: Data = DATA, sources: Sources = None, sets: str = ",".join(NAMES), configs: int = 30,
    processes: int = os.cpu_count() or 1, json: Path | None = None,
) -> None:  # fmt: skip
    if strange := [name for name in sets.split(",") if name not in NAMES]:
        raise unknown("set", strange[0], NAMES)
    parts = []
    for name in sets.split(","):
        recorded = {"textbook": textbook, "triton": triton}.get(name, spaces)
        parts.append(list(recorded(name, data, sources, configs, processes)))
        if parts[-1] and recorded is not triton:
            for columns in (("gpu",), ("kernel", "gpu"))[: 1 + (name == "textbook")]:
                report(f"\n{name}", joined(parts[-1]), columns, agreement, spread)
        if parts[-1] and recorded is spaces:
            report("\nefficiency of choices: 1 is perfect", joined(parts[-1]), ("gpu",), recommendations, heuristics)
            every = joined(parts[-1])
            if len(measured := every.take(np.isfinite(every["recorded_j"]))):
                report("\nenergies that were recorded", measured, ("gpu",), energies)
    if json is not None and any(parts):
        joined([each for part in parts for each in part]).write(json)


def spaces(name: str, data: Path, sources: Path | None, configs: int, processes: int) -> Iterator[Cases]:
    """Sample each recording of a public kernel, and yield the cases of each sample."""
    for recording in SETS[name].recordings:
        try:
            yield sampled_space(SETS[name], recording, (sources, data), configs, processes).cases(name)
        except KernrecError as error:
            print(f"skipped {name} on {recording.title}: {error}", file=sys.stderr)


def energies(cases: Cases) -> dict[str, object]:
    """Return table cells with the errors in power and energy. The power is predicted from the recorded time."""
    joules = cases["recorded_j"]
    power = cases["power_w"] / (joules / cases["recorded"])
    energy = cases["predicted_j"] / joules
    cells: dict[str, object] = {}
    for name, ratio in (("power", power), ("energy", energy)):
        cells |= {name: f"{np.median(np.abs(ratio - 1.0)):.1%}", f"{name} ratio": float(np.median(ratio))}
    return cells | {"rank of energy": rank_correlation(cases["predicted_j"], joules)}


def textbook(name: str, data: Path, sources: Path | None, configs: int, processes: int) -> Iterator[Cases]:
    """Yield the cases of textbook kernels, and print how good the block size is that kernrec chooses."""
    recorded: dict[tuple[str, str, int], dict[int, float]] = defaultdict(dict)
    for row in recorded_dicts(data / "anchors" / "textbook_rtx3060_rtx3070ti.csv"):
        recorded[row["kernel"], row["gpu"], row["size"]][row["block"]] = row["batch_s"]
    table, near = Table("\nsweeps over block sizes; efficiency of the block that is chosen"), []
    for (kernel_name, gpu_name, size), times in recorded.items():
        kernel, gpu = load_kernel(TEXTBOOK / f"{kernel_name}.toml"), find_gpu(gpu_name)
        problem, blocks = kernel.definition.problem(size=size), [{"block": block} for block in times]
        database = profile(kernel, problem, gpu, blocks, f"{kernel_name} {size}", processes)
        static = Context([database]).on(gpu).kernel_table(kernel, problem)
        cases = Sample(gpu.name, static, problem, blocks, np.array(list(times.values()))).cases()
        yield cases
        if len(cases) > 2:
            best = cases["recorded"].min() / cases["recorded"][int(cases["predicted"].argmin())]
            near.append(best >= 1.0 / (1.0 + NEAR))
            names = {"kernel": f"{kernel_name} {size}", "gpu": gpu.name, "sizes": len(cases)}
            table.row(names | {"kernrec": f"{best:.3f}"} | heuristics(cases))
    print(f"within {NEAR:.0%} of the best: {sum(near)} of {len(near)} sweeps")


def triton(name: str, data: Path, sources: Path | None, configs: int, processes: int) -> Iterator[Cases]:
    """Yield the cases of a sample of Triton's matmuls. `tools/evidence triton` scores the recommendations."""
    for gpu in FILES:
        try:
            for problem, table, chosen, seconds in sampled_problems(data, gpu, configs):
                yield Sample(gpu, table, problem, chosen, seconds).cases(f"Triton's matmul, {KINDS[problem.dtype]}")
        except KernrecError as error:
            print(f"skipped triton on {gpu}: {error}", file=sys.stderr)
