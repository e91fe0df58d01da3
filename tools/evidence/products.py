"""The predicted best matrix product of the library of kernels over what a vendor's library was recorded to take.

A seeded sample of bf16 shapes (layout nt) that take the vendor's library longer than `--least` seconds, in all, by
kernel and by rows: geometric mean of predicted over recorded latency, and the share outside of a factor of 1.5. No time
of these rows was fitted; the energy of an operation on Hopper was, for the recorded time, and so the clock at the power
limit.
"""

from pathlib import Path

import numpy as np
from front import DATA, Data, Table

import kernrec
from kernrec.errors import unknown

from .library_shapes import seeded_sample
from .scores import beyond

FILES = {"a100-sxm4-80gb": "gemm_a100", "l40s": "gemm_l40s", "h200-sxm": "gemm_h200_power"}
_MOST_ELEMENTS = 2**30


def run(data: Data = DATA, gpu: str = "h200-sxm", shapes: int = 1000, least: float = 20e-6) -> None:
    """Print the figures; shorter times than `least` are mostly launch."""
    if gpu not in FILES:
        raise unknown("GPU", gpu, FILES)
    m, n, k, latency_s = recorded(data / "library" / f"{FILES[gpu]}.parquet", least, shapes)
    answer = kernrec.recommend_many("matmul", gpu, dtype="bf16", layout="nt", objective="latency", m=m, n=n, k=k)
    ratio, kernels = answer.latency_s[:, 0] / latency_s, np.array(answer.kernels)
    groups = {"all": np.full(len(m), True)} | {name: kernels == name for name in dict.fromkeys(answer.kernels)}
    for name, low, high in (("m up to 128", 0, 128), ("m 129 to 2048", 128, 2048), ("m beyond 2048", 2048, 1 << 31)):
        groups[name] = (m > low) & (m <= high)
    show(f"{gpu}, bf16, nt: predicted best of ours over the library's", ratio, groups)


def recorded(path: Path, least_s: float, count: int, seed: str = "") -> list[np.ndarray]:
    """m, n, k and seconds of a sample of the rows that take longer than `least_s`."""
    fits = f"greatest(m * n::BIGINT, m * k::BIGINT, n * k::BIGINT) < {_MOST_ELEMENTS}"
    columns = "m, n, k, latency_s"
    rows = seeded_sample(path, f"latency_s > {least_s} AND {fits}", count, columns, seed)
    return [np.array([row[name] for row in rows]) for name in columns.split(", ")]


def show(title: str, ratio: np.ndarray, groups: dict[str, np.ndarray]) -> None:
    """A table of ratios, a row for each group of shapes that has any."""
    table = Table(title)
    for name, members in groups.items():
        if members.any():
            table.row({"shapes": name, **beyond(ratio[members])})
