"""How fast the best config of Triton's matrix product is predicted on cards of which nothing was recorded in training.

    python tools/evaluate_new_cards.py [--data ../shared/data] [--models db/prebuilt/models] [--list]

Predicted time of the best config of `matmul_triton` over the recorded time of the best one, of 122 Triton tilings on an
RTX 3090 (f16, 21 shapes) and of TorchInductor's on an RTX 5090 at 400 W (bf16, 4 shapes). The recorded layouts are
not stated: `nn` is taken. The best of many predicted times is what a query shows first, and what a correction makes too
fast where it errs on some of many configs.

    prior          predicted, nothing trained
    differences    corrected by the trees for new cards of the model that ships
    bounded        the same, not below what arithmetic, compulsory bytes and the launch take: as it ships

Takes a quarter of a minute. Exits with status 2 where there is no data.
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.model.learn.lower_bound import least_log_ratio
from kernrec.model.learn.model import Model
from kernrec.model.learn.model_file import load
from kernrec.op import Problem
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.model_inputs import inputs_of
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.prediction import predict

ROOT = Path(__file__).resolve().parents[1]
KERNEL = find_kernel("matmul_triton")
COLUMNS = ("prior", "differences", "bounded")


@dataclass(frozen=True)
class Recorded:
    """The best recorded time of a product."""

    gpu: str
    problem: Problem
    point: OperatingPoint
    latency_s: float


def main() -> int:
    """Print a line for each card."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--models", type=Path, default=ROOT / "db" / "prebuilt" / "models")
    parser.add_argument("--list", action="store_true", help="a line for each product, too")
    arguments = parser.parse_args()
    folder = arguments.data / "anchors"
    if not folder.is_dir():
        print(f"no {folder}: give the folder of recorded data with --data", file=sys.stderr)
        return 2
    model, _ = load(arguments.models / f"{KERNEL.name}.json")
    context = Context([])
    ratios: dict[str, list[np.ndarray]] = {}
    for recorded in recorded_products(folder):
        ratio = best_predicted(context, model, recorded) / recorded.latency_s
        ratios.setdefault(recorded.gpu, []).append(ratio)
        if arguments.list:
            print(f"{recorded.gpu} {recorded.problem.key}: " + " ".join(f"{value:.2f}" for value in ratio))
    print(f"predicted over recorded: {', '.join(COLUMNS)}; geometric mean (least to greatest)")
    for gpu, rows in ratios.items():
        columns = np.array(rows).T
        means = (f"{np.exp(np.log(c).mean()):.3f} ({c.min():.2f} to {c.max():.2f})" for c in columns)
        print(f"{gpu}, {len(rows)} products: {', '.join(means)}")
    return 0


def recorded_products(folder: Path) -> Iterator[Recorded]:
    """The best of Triton that others recorded on cards that the model was not trained on."""
    for row in rows_of(folder / "matmul_f16_rtx3090.csv"):
        yield Recorded("rtx3090", product_of(row, "f16"), DEFAULT_POINT, float(row["best_triton_latency_s"]))
    for row in rows_of(folder / "matmul_bf16_rtx5090.csv"):
        problem = product_of(row, "bf16")
        seconds = problem.flops / (float(row["inductor_triton_tflops"]) * 1e12)
        yield Recorded("rtx5090", problem, OperatingPoint(400.0), seconds)


def product_of(row: Mapping[str, str], dtype: str) -> Problem:
    """The matrix product of a row."""
    return KERNEL.definition.problem(dtype, "nn", **{name: int(row[name]) for name in "mnk"})


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a table, by column."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def best_predicted(context: Context, model: Model, recorded: Recorded) -> np.ndarray:
    """The least predicted time of all configs, seconds, by `COLUMNS`."""
    table = context.kernel_table(KERNEL, recorded.problem, find_gpu(recorded.gpu))
    on_problem = table.space.at(recorded.problem)
    rows = np.sort(table.runnable(on_problem))
    prediction = predict(table, on_problem, rows)
    limited = prediction.limited(recorded.point)
    inputs = inputs_of(prediction, limited, np.arange(len(rows)))
    features = model.rows(inputs)
    differences = model.log_ratio(features, gpu_known=False)[0]["latency"]
    bounded = model.log_ratio(features, gpu_known=False, least=least_log_ratio(inputs))[0]["latency"]
    logs = (np.zeros(len(rows)), differences, bounded)
    return np.array([float((limited.latency_s * np.exp(log)).min()) for log in logs])


if __name__ == "__main__":
    sys.exit(main())
