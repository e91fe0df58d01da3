"""The predicted best matrix product of the library of kernels over what a vendor's library was recorded to take.

    python tools/evaluate_products.py [--gpu h200-sxm] [--shapes 1000] [--least 20e-6] [--data ../shared/data]

A seeded sample of bf16 shapes (layout nt) that take the vendor's library longer than `--least`, in all, by kernel and
by rows: geometric mean of predicted over recorded latency, and the share outside of a factor of 1.5. No time of these
rows was fitted; the energy of an operation on Hopper was, given the time, and so the clock at the power limit. Exits 2
without the data.
"""

import argparse
import random
import sys
from pathlib import Path

import numpy as np

import kernrec
from kernrec.store.connection import parquet_rows

ROOT = Path(__file__).resolve().parents[1]
FILES = {"a100-sxm4-80gb": "gemm_a100", "l40s": "gemm_l40s", "h200-sxm": "gemm_h200_power"}
OUTSIDE = 1.5
_MOST_ELEMENTS = 2**30


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--gpu", choices=FILES, default="h200-sxm")
    parser.add_argument("--shapes", type=int, default=1000)
    parser.add_argument("--least", type=float, default=20e-6, help="seconds; shorter ones are mostly launch")
    arguments = parser.parse_args()
    path = arguments.data / "library" / f"{FILES[arguments.gpu]}.parquet"
    if not path.is_file():
        print(f"no {path}; name the shared data folder with --data", file=sys.stderr)
        return 2
    rows = recorded(path, arguments.least)
    rows = random.Random(path.name).sample(rows, min(arguments.shapes, len(rows)))
    m, n, k, latency_s = (np.array(column) for column in list(zip(*rows, strict=True))[:4])
    answer = kernrec.recommend_many(
        "matmul", arguments.gpu, dtype="bf16", layout="nt", objective="latency", m=m, n=n, k=k
    )
    ratio = answer.latency_s[:, 0] / latency_s
    kernels = np.array(answer.kernels)
    print(f"{arguments.gpu}, bf16, nt: predicted best of ours over the library's")
    print(f"{'shapes':28} {'count':>6} {'mean':>6} {'outside x1.5':>12}")
    show("all", ratio)
    for kernel in dict.fromkeys(kernels.tolist()):
        show(kernel, ratio[kernels == kernel])
    for name, low, high in (("m up to 128", 0, 128), ("m 129 to 2048", 128, 2048), ("m beyond 2048", 2048, 1 << 31)):
        show(name, ratio[(m > low) & (m <= high)])
    return 0


def recorded(path: Path, least_s: float) -> "list[tuple[int, int, int, float]]":
    """m, n, k and seconds of every row that takes longer than `least_s`, in one order."""
    fits = f"greatest(m * n::BIGINT, m * k::BIGINT, n * k::BIGINT) < {_MOST_ELEMENTS}"
    with parquet_rows(path) as (connection, source):
        chosen = f"SELECT m, n, k, latency_s FROM {source} WHERE latency_s > {least_s} AND {fits} ORDER BY ALL"
        return connection.execute(chosen).fetchall()


def show(name: str, ratio: np.ndarray) -> None:
    """A line of figures."""
    if len(ratio):
        apart = np.abs(np.log(ratio))
        outside = np.mean(apart > np.log(OUTSIDE))
        print(f"{name:28} {len(ratio):6} {np.exp(np.log(ratio).mean()):6.2f} {100 * outside:11.1f}%")


if __name__ == "__main__":
    sys.exit(main())
