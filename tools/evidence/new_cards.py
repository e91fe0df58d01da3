"""How fast the best config of Triton's matrix product is predicted on cards of which nothing was recorded in training.

Predicted time of the best config of `matmul_triton` over the recorded time of the best one, of 122 Triton tilings on an
RTX 3090 (f16, 21 shapes) and of TorchInductor's on an RTX 5090 at 400 W (bf16, 4 shapes). The recorded layouts are
not stated: `nn` is taken. The best of many predicted times is what a query shows first, and what a correction makes too
fast where it errs on some of many configs.

    prior          predicted, nothing trained
    differences    corrected by the trees for new cards of the model that ships
    bounded        the same, not below what arithmetic, compulsory bytes and the launch take: as it ships
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from front import DATA, ROOT, Data, Table

from evidence.recordings.files import csv_dicts
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

from .scores import geometric_mean

KERNEL = find_kernel("matmul_triton")
COLUMNS = ("prior", "differences", "bounded")


def run(
    data: Data = DATA,
    models: Path = ROOT / "db" / "prebuilt" / "models",
    list_all: Annotated[bool, typer.Option("--list")] = False,
) -> None:
    """Print a line for each card; with `list_all` one for each product, too."""
    model, _ = load(models / f"{KERNEL.name}.json")
    context, ratios = Context([]), dict[str, list[np.ndarray]]()
    for gpu, problem, point, seconds in recorded_products(data / "anchors"):
        ratios.setdefault(gpu, []).append(best_predicted(context, model, gpu, problem, point) / seconds)
        if list_all:
            print(f"{gpu} {problem.key}: " + " ".join(f"{value:.2f}" for value in ratios[gpu][-1]))
    table = Table("predicted over recorded: geometric mean (least to greatest)")
    for gpu, rows in ratios.items():
        columns = zip(COLUMNS, np.array(rows).T, strict=True)
        means = {name: f"{geometric_mean(c):.3f} ({c.min():.2f} to {c.max():.2f})" for name, c in columns}
        table.row({"card": gpu, "products": len(rows), **means})


def recorded_products(folder: Path) -> Iterator[tuple[str, Problem, OperatingPoint, float]]:
    """Card, problem, limits and seconds of the best of Triton on cards that the model was not trained on."""
    for card, dtype, point in (("rtx3090", "f16", DEFAULT_POINT), ("rtx5090", "bf16", OperatingPoint(400.0))):
        for row in csv_dicts(folder / f"matmul_{dtype}_{card}.csv"):
            problem = KERNEL.definition.problem(dtype, "nn", **{name: int(row[name]) for name in "mnk"})
            if card == "rtx3090":
                yield card, problem, point, float(row["best_triton_latency_s"])
            else:
                yield card, problem, point, problem.flops / (float(row["inductor_triton_tflops"]) * 1e12)


def best_predicted(context: Context, model: Model, gpu: str, problem: Problem, point: OperatingPoint) -> np.ndarray:
    """The least predicted time of all configs, seconds, by `COLUMNS`."""
    table = context.kernel_table(KERNEL, problem, find_gpu(gpu))
    on_problem = table.space.at(problem)
    rows = np.sort(table.runnable(on_problem))
    prediction = predict(table, on_problem, rows)
    limited = prediction.limited(point)
    inputs = inputs_of(prediction, limited, np.arange(len(rows)))
    features = model.rows(inputs)
    differences = model.log_ratio(features, gpu_known=False)[0]["latency"]
    bounded = model.log_ratio(features, gpu_known=False, least=least_log_ratio(inputs))[0]["latency"]
    logs = (np.zeros(len(rows)), differences, bounded)
    return np.array([float((limited.latency_s * np.exp(log)).min()) for log in logs])
