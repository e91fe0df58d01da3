"""The prior on Triton's matrix product, nothing trained: predicted against recorded times of TorchInductor's template.

    python tools/evaluate_triton.py [--data ../shared/data] [--gpu a100-sxm4-80gb] [--dtype f16] [--problems 200]

The recording has 20 to 30 configs a problem, of a template that an older Triton compiled, on a card whose clocks nobody
stated. Each row is matched with the config of `matmul_triton` (`kernrec/kernel/library`) of the same tiles, stages and
warps; what has no profile is left out, and so are problems of which fewer than ten configs are left. A choice is
scored by its efficiency: the best recorded time of the problem over that of the choice.

    prior      predicted, nothing trained
    nearest    the order of the nearest recorded problem of the same layout, by logarithms of m, n and k
    fixed      the one config that is best in the mean of the other folds' problems
    random     the expectation of a random choice

`nearest` and `fixed` know the problems of four folds of five; `prior` knows no recording. Without the recording the
tool says so and exits 0.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.op import Problem
from kernrec.recommender.candidate_set import candidate_set
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.store import Database, Evidence
from kernrec.store.connection import parquet_rows
from kernrec.training import scores

DTYPES = {("float16", False): "f16", ("bfloat16", False): "bf16", ("float32", True): "tf32", ("float32", False): "f32"}
COLUMNS = ("block_m", "block_n", "block_k", "num_stages", "num_warps")
FEWEST = 10
FOLDS = 5

Config = tuple[int, ...]


@dataclass(frozen=True)
class Recorded:
    """A problem with its recorded configs that can be predicted."""

    problem: Problem
    configs: tuple[Config, ...]
    """By `COLUMNS`."""
    measured: np.ndarray
    """Seconds, (configs,)."""
    predicted: np.ndarray
    """Seconds, (configs,)."""


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--gpu", default="a100-sxm4-80gb")
    parser.add_argument("--file", default="inductor_mm_a100.parquet")
    parser.add_argument("--dtype", choices=sorted(set(DTYPES.values())), default="f16")
    parser.add_argument("--problems", type=int, default=200, help="problems that are drawn; 0: all")
    parser.add_argument("--worst", type=int, default=0, help="also print so many problems with the worst first choice")
    arguments = parser.parse_args()
    path = arguments.data / "triton" / arguments.file
    if not path.is_file():
        print(f"{path} is not there: nothing is evaluated")
        return 0
    problems = read_problems(path, arguments.dtype)
    drawn = np.random.default_rng(0).permutation(len(problems))[: arguments.problems or None]
    found = [
        predicted(problem, times, arguments.gpu) for problem, times in (problems[i] for i in sorted(drawn.tolist()))
    ]
    recorded = [one for one in found if one is not None]
    if not recorded:
        print(f"there are no profiles of matmul_triton for {arguments.dtype} on {arguments.gpu}: nothing is evaluated")
        return 0
    print(
        f"{arguments.file}, {arguments.dtype}: {len(recorded)} of {len(drawn)} problems drawn,"
        f" {sum(len(r.configs) for r in recorded)} configs, on {arguments.gpu}"
    )
    print_table(recorded)
    for one in sorted(recorded, key=lambda r: r.measured.min() / r.measured[r.predicted.argmin()])[: arguments.worst]:
        chosen, best = int(one.predicted.argmin()), int(one.measured.argmin())
        print(
            f"  {one.problem.key}: {one.measured.min() / one.measured[chosen]:.3f};"
            f" chosen {one.configs[chosen]} {one.measured[chosen] * 1e6:.1f} us, predicted"
            f" {one.predicted[chosen] * 1e6:.1f}; best {one.configs[best]} {one.measured[best] * 1e6:.1f} us, predicted"
            f" {one.predicted[best] * 1e6:.1f}"
        )
    return 0


def read_problems(path: Path, dtype: str) -> list[tuple[Problem, dict[Config, float]]]:
    """Each problem of a data type that the kernel can run, with the recorded seconds of its configs."""
    kernel = find_kernel("matmul_triton")
    op = kernel.definition
    times: dict[tuple[int, int, int, str], dict[Config, float]] = {}
    with parquet_rows(path) as (connection, source):
        result = connection.execute(f"SELECT * FROM {source} WHERE implementation = 'triton'")
        names = [column[0] for column in result.description or []]
        rows = [dict(zip(names, values, strict=True)) for values in result.fetchall()]
    for row in rows:
        if DTYPES[row["dtype"], bool(row["tf32"])] != dtype or row["failures"]:
            continue
        m, n, k = row["m"], row["n"], row["k"]
        a = _letter((row["a_stride_0"], row["a_stride_1"]), (m, k))
        b = _letter((row["b_stride_0"], row["b_stride_1"]), (k, n))
        if a + b in kernel.layouts and dtype in kernel.dtypes:
            config = tuple(row[name] for name in COLUMNS)
            times.setdefault((m, n, k, a + b), {})[config] = row["latency_s"]
    return [(op.problem(dtype, layout, m=m, n=n, k=k), found) for (m, n, k, layout), found in sorted(times.items())]


def _letter(strides: tuple[int, int], shape: tuple[int, int]) -> str:
    """`n` of a dense row-major matrix, `t` of a transposed one; empty for another."""
    if strides == (shape[1], 1):
        return "n"
    return "t" if strides == (1, shape[0]) else ""


_contexts: list[Context] = []


def predicted(problem: Problem, times: dict[Config, float], gpu_name: str) -> Recorded | None:
    """The recorded configs of a problem with their predicted times; None where there are too few."""
    gpu, kernel = find_gpu(gpu_name), find_kernel("matmul_triton")
    if not _contexts:
        empty = Path(tempfile.mkdtemp()) / "empty.duckdb"
        Database.open(empty, read_only=False, create=True).close()
        _contexts.append(Context([empty], calibrated=False))
    table = _contexts[0].kernel_table(kernel, problem, gpu)
    candidates = candidate_set([table], problem, [OperatingPoint(None, None)], Evidence(), None, whole_space=True)
    found: list[tuple[Config, float, float]] = []
    for place, row in enumerate(candidates.kernels[0].rows.tolist() if candidates.kernels else []):
        config = table.space.config(row)
        key = tuple(config[name] for name in COLUMNS)
        if key in times:
            found.append((key, times[key], float(candidates.latency_s[0, place])))
    if len(found) < FEWEST:
        return None
    configs, measured, expected = zip(*found, strict=True)
    return Recorded(problem, configs, np.array(measured), np.array(expected))


def print_table(recorded: Sequence[Recorded]) -> None:
    """First choice, best of three, within 5 %, and rank correlation, for the prior and its peers."""
    fold = np.random.default_rng(1).permutation(len(recorded)) % FOLDS
    orders: dict[str, list[np.ndarray]] = {"prior": [], "nearest": [], "fixed": []}
    known = [[one for one, f in zip(recorded, fold, strict=True) if f != number] for number in range(FOLDS)]
    means = [_mean_efficiency(others) for others in known]
    for one, number in zip(recorded, fold.tolist(), strict=True):
        orders["prior"].append(scores.order_of(one.predicted))
        orders["nearest"].append(_order(one, _mean_efficiency([_nearest(one, known[number])])))
        orders["fixed"].append(_order(one, means[number]))
    print(f"{'':9} {'first':>8} {'median':>8} {'best of 3':>11} {'within 5 %':>12}   rho (median)")
    for name, chosen in orders.items():
        pairs = list(zip(recorded, chosen, strict=True))
        first = np.array([scores.efficiency_at(one.measured, order, 1) for one, order in pairs])
        third = np.array([scores.efficiency_at(one.measured, order, 3) for one, order in pairs])
        rho = ""
        if name == "prior":
            rho = f"{np.median([scores.rank_correlation(one.predicted, one.measured) for one in recorded]):.3f}"
        near = (first >= 0.95).mean()
        print(f"{name:9} {first.mean():8.3f} {np.median(first):8.3f} {third.mean():11.3f} {near:12.3f}   {rho}")
    random = np.mean([scores.expected_random(one.measured, 1)[0] for one in recorded])
    ratios = np.concatenate([np.log(one.predicted / one.measured) for one in recorded])
    errors = np.concatenate([np.abs(one.predicted / one.measured - 1) for one in recorded])
    print(f"{'random':9} {random:8.3f}")
    mean = math.exp(ratios.mean())
    print(f"predicted over recorded: {mean:.2f} in the geometric mean; median error {np.median(errors):.1%}")


def _nearest(one: Recorded, others: Sequence[Recorded]) -> Recorded:
    """The most similar problem; one of the same layout, if there is any."""
    alike = [other for other in others if other.problem.layout == one.problem.layout] or list(others)
    own = np.log([one.problem.dim[name] for name in "mnk"])
    return min(alike, key=lambda other: float(np.abs(np.log([other.problem.dim[d] for d in "mnk"]) - own).sum()))


def _mean_efficiency(known: Sequence[Recorded]) -> dict[Config, float]:
    """Of each config that half of these problems have: its mean efficiency."""
    found: dict[Config, list[float]] = {}
    for one in known:
        for config, efficiency in zip(one.configs, (one.measured.min() / one.measured).tolist(), strict=True):
            found.setdefault(config, []).append(efficiency)
    return {config: float(np.mean(values)) for config, values in found.items() if len(values) * 2 >= len(known)}


def _order(one: Recorded, mean: dict[Config, float]) -> np.ndarray:
    """The configs of a problem by their mean efficiency elsewhere, best first; unknown ones last."""
    return np.argsort([-mean.get(config, 0.0) for config in one.configs], kind="stable")


if __name__ == "__main__":
    sys.exit(main())
