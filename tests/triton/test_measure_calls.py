"""Test that configs for a missing file are measured and used afterwards, with an emulated driver."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from kernrec import paths
from kernrec.gpu import find_gpu
from kernrec.interop.model_config import read_model
from kernrec.model.analytical.spread import Estimate
from kernrec.recommender.serving.audit import AuditedFile, ServingAudit
from kernrec.recommender.serving.compared import Comparer, Comparison
from kernrec.recommender.serving.engines import Deployment, tuned_files
from kernrec.recommender.serving.tuned_files import shipped_of
from kernrec.triton.machine import Machine
from kernrec.triton.measure_audit import measure_audit
from tests.helpers.serving import SMALL, written
from tests.helpers.triton_kernels import Tensor, stand_in_driver

pytest.importorskip("triton", reason="needs the extra `triton`")

pytestmark = pytest.mark.usefixtures("compiled_here")

OWN = {
    "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2,
}  # fmt: skip
OTHER = {**OWN, "BLOCK_SIZE_N": 64}
_TYPES = {"bf16": "bfloat16", "f32": "float32"}


def tensor(described: Mapping[str, Any]) -> Tensor:
    return Tensor("int32", 1) if "values" in described else Tensor(_TYPES[described["dtype"]], *described["shape"])


@pytest.mark.every(3)
@pytest.mark.slow
def test_measured_configs_rank_before_predictions(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_DB", str(tmp_path / "own.duckdb"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    served = Deployment("sglang", find_gpu("a100"), triton="3.6.0")
    model = read_model(str(written(tmp_path / "model", SMALL)))
    (file,) = tuned_files(model, served)
    predicted, default = Estimate(1e-6, 5e-7, 2e-6, "predicted"), Estimate(2e-6, 1e-6, 4e-6, "predicted")
    made = Comparison(4, OWN, default, ((OTHER, predicted), (OWN, predicted)), (OWN, OTHER))
    audit = ServingAudit(
        model, served, shipped_of("sglang", "0.5.23"), (AuditedFile(file, "", False, "", (made,)),), ()
    )
    times = iter([0.030, 0.020, 0.050, 0.040])  # ms, for each matmul: default config, other config

    def benchmark(launch: Any) -> float:
        launch()
        return next(times)

    with stand_in_driver() as driver:
        assert measure_audit(audit, Machine(served.gpu, None, True), None, tensor, benchmark) == 4
    assert len(driver.launched) == 4
    costs = [cost for _, cost in Comparer(paths.user_database(), 2).costs(file, served, 4, [OWN, OTHER])]
    assert all(cost.source == "measured" for cost in costs)
    assert math.isclose(costs[0], 80e-6, rel_tol=1e-6)
    assert math.isclose(costs[1], 60e-6, rel_tol=1e-6)
