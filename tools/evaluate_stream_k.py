"""How often an even share of the last tiles (Stream-K) is the predicted best matrix product, and by how much.

    python tools/evaluate_stream_k.py [--gpu h200-sxm] [--shapes 300] [--dtype bf16] [--data ../shared/data]

On a seeded sample of the shapes of a recorded library on an H200 (layout nt) that took it longer than `--least`
seconds: how often `matmul_wgmma` with `stream` is the first choice, and the predicted latency and energy of these over
those of the fastest of all configs without it, by how many waves of 128 x 256 tiles a shape has. All figures are the
model's: no GPU ran this kernel. Exits 2 without the data.
"""

import argparse
import random
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from evaluate_products import FILES, ROOT, recorded

from kernrec.gpu import GPU, find_gpu
from kernrec.op import Problem, find_op
from kernrec.recommender import Recommender
from kernrec.recommender.candidate_set import candidate_set
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.store import Evidence

KERNEL = "matmul_wgmma"
WAVES = (0.0, 1.0, 2.0, 4.0, 1e9)


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--gpu", default="h200-sxm", help="one of Hopper")
    parser.add_argument("--dtype", default="bf16", choices=("f16", "bf16", "f8e4m3"))
    parser.add_argument("--shapes", type=int, default=300)
    parser.add_argument("--least", type=float, default=20e-6, help="seconds; shorter ones are mostly launch")
    arguments = parser.parse_args()
    path = arguments.data / "library" / f"{FILES['h200-sxm']}.parquet"
    if not path.is_file():
        print(f"no {path}; name the shared data folder with --data", file=sys.stderr)
        return 2
    rows = recorded(path, arguments.least)
    rows = random.Random(f"stream {path.name}").sample(rows, min(arguments.shapes, len(rows)))
    gpu = find_gpu(arguments.gpu)
    recommender, product = Recommender([]), find_op("matmul")
    problems = [product.problem(arguments.dtype, "nt", m=m, n=n, k=k) for m, n, k, _ in rows]
    chosen = np.array([compared(recommender, problem, gpu) for problem in problems])
    waves = np.array([-(-m // 128) * -(-n // 256) / gpu.sms for m, n, _, _ in rows])
    print(f"{gpu.name}, {arguments.dtype}, nt: share of shapes with Stream-K first; of these, over the best without")
    print(f"{'waves':12} {'shapes':>6} {'share':>6} {'latency':>8} {'least':>6} {'energy':>7}")
    show("all", chosen)
    for low, high in pairwise(WAVES):
        show(f"{low:g} to {high:g}" if high < 1e9 else f"beyond {low:g}", chosen[(waves > low) & (waves <= high)])
    return 0


def compared(recommender: Recommender, problem: Problem, gpu: GPU) -> tuple[bool, float, float]:
    """Whether the fastest config shares the last tiles; its latency and energy over those of the fastest without."""
    tables = recommender.context.tables(problem, gpu)
    every = candidate_set(tables, problem, [DEFAULT_POINT], Evidence(), recommender.context.models, whole_space=True)
    shares = np.zeros(every.latency_s.shape[1], np.bool_)
    for start, kernel in zip(every.starts, every.kernels, strict=False):
        if kernel.table.kernel.name == KERNEL:
            shares[start : start + len(kernel.rows)] = kernel.table.space.columns["stream"][kernel.rows] > 0
    best = every.fastest
    without = int(np.where(shares, np.inf, every.latency_s[0]).argmin())
    latency, energy = (float(costs[0, best] / costs[0, without]) for costs in (every.latency_s, every.energy_j))
    return bool(shares[best]), latency, energy


def show(name: str, chosen: np.ndarray) -> None:
    """A line of figures, of rows as `compared` gives them."""
    if len(chosen):
        shared = chosen[chosen[:, 0] > 0]
        line = f"{name:12} {len(chosen):6} {100 * len(shared) / len(chosen):5.0f}%"
        if len(shared):
            latency, energy = np.exp(np.log(shared[:, 1:]).mean(axis=0))
            line += f" {latency:8.3f} {shared[:, 1].min():6.3f} {energy:7.3f}"
        print(line)


if __name__ == "__main__":
    sys.exit(main())
