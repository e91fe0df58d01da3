"""Test a kernel's shipped model combined with a model of the whole op, trained on the user's rows."""

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.op import Problem
from kernrec.recommender.candidates import candidate_set
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.correction import ModelScope
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.store import Database, Evidence
from kernrec.training.load_measurements import MeasurementRequest
from kernrec.training.train_op_models import train_op_models
from tests.helpers.sharing import measurement

KERNEL = find_kernel("matmul_triton")
RECORDED, MEASURED, ALIKE, OTHER = "a100-sxm4-80gb", "rtx4090", "l40s", "rtx3090"
"""A GPU that the shipped model learned from, two GPUs with user measurements, and a GPU with neither."""
SLOWER = 1.5
NEW = KERNEL.definition.problem("f16", "nn", m=1536, n=1024, k=768)


def predicted(context: Context, gpu: str, problem: Problem = NEW) -> tuple[np.ndarray, ModelScope | None]:
    """Return the times of all configs, (C,), and the scope of the model that predicted them."""
    table = context.kernel_table(KERNEL, problem, find_gpu(gpu))
    candidates = candidate_set([table], problem, [DEFAULT_POINT], Evidence(), context.models, whole_space=True)
    (of_kernel,) = candidates.kernels
    return candidates.latency_s[0], of_kernel.scope


def names(scope: ModelScope | None) -> list[str]:
    """Return the names of the models behind an answer, the last one first."""
    return [] if scope is None else [scope.trained.name, *names(scope.beneath)]


def warnings_of(context: Context) -> list[str]:
    return [line for line in context.models.warnings() if "less accurate" in line or "corrects another" in line]


def trained_on(folder: Path, *cards: str) -> Path:
    """Train on rows that are slower than the shipped model by a constant factor; return the database."""
    path, shipped = folder / "all.duckdb", Context([])
    rows = []
    for size, gpu in product(range(256, 256 + 10 * 256, 256), cards):
        problem = KERNEL.definition.problem("f16", "nn", m=size, n=1024, k=768)
        table = shipped.kernel_table(KERNEL, problem, find_gpu(gpu))
        latency_s, _ = predicted(shipped, gpu, problem)
        runnable = table.runnable(table.space.at(problem))
        same: Mapping[str, object] = {"gpu": gpu, "kernel": KERNEL.name, "kernel_hash": KERNEL.hash}
        rows += [
            measurement(
                **same, problem=problem, config=table.space.config(int(runnable[place])), block=None,
                latency_s=SLOWER * float(latency_s[place]),
            )
            for place in range(size % 3, len(runnable), 3)
        ]  # fmt: skip
    with Database.open(path, read_only=False, create=True) as database:
        database.add_measurements(rows)
    (stored,), _ = train_op_models(MeasurementRequest((path,)))
    assert stored.name == "matmul"
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return trained_on(tmp_path_factory.mktemp("contributed"), MEASURED)


def test_both_models_apply_on_the_measured_gpu(trained):
    before, shipped = predicted(Context([]), MEASURED)
    context = Context([trained])
    after, both = predicted(context, MEASURED)
    assert (names(shipped), names(both)) == (["matmul_triton"], ["matmul", "matmul_triton"])
    assert both is not None
    assert both.gpu_known
    assert "It corrects the analytical model after model matmul_triton" in both.note.why
    np.testing.assert_allclose(after / before, SLOWER, rtol=0.05)
    assert not warnings_of(context)


def test_only_the_shipped_model_applies_on_its_recorded_gpus(trained):
    before, shipped = predicted(Context([]), RECORDED)
    after, there = predicted(Context([trained]), RECORDED)
    assert names(shipped) == names(there) == ["matmul_triton"]
    np.testing.assert_array_equal(after, before)


def test_model_of_a_single_gpu_does_not_apply_elsewhere(trained):
    """One GPU's deviation gives no evidence about other GPUs."""
    before, shipped = predicted(Context([]), OTHER)
    after, there = predicted(Context([trained]), OTHER)
    assert names(shipped) == names(there) == ["matmul_triton"]
    np.testing.assert_array_equal(after, before)


def test_both_models_apply_to_other_gpus_if_held_out_gpus_improved(tmp_path):
    path = trained_on(tmp_path, MEASURED, ALIKE)
    _, both = predicted(Context([path]), OTHER)
    assert names(both) == ["matmul", "matmul_triton"]
    assert both is not None
    assert both.beneath is not None
    assert (both.gpu_known, both.beneath.gpu_known) == (False, False)
    assert f"trained without {OTHER}" in both.note


def test_model_that_corrects_a_missing_model_is_reported_and_ignored(trained, tmp_path):
    """After an update of kernrec with a new model of the kernel, the user's model corrects a missing model."""
    (tmp_path / "models").mkdir()
    for file in [trained, *(trained.parent / "models").iterdir()]:
        (tmp_path / file.relative_to(trained.parent)).write_bytes(file.read_bytes())
    card = tmp_path / "models" / "matmul.json"
    about = json.loads(card.read_text())
    assert about["training"]["beneath"].keys() == {"matmul_triton"}
    about["training"]["beneath"]["matmul_triton"] = "0" * 64
    card.write_text(json.dumps(about))
    before, _ = predicted(Context([]), MEASURED)
    context = Context([tmp_path / trained.name])
    after, scope = predicted(context, MEASURED)
    assert names(scope) == ["matmul_triton"]
    np.testing.assert_array_equal(after, before)
    assert warnings_of(context) == [
        "model matmul corrects another model of matmul_triton than the present one; not used"
    ]
