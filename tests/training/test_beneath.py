"""Test that an op's model corrects the kernel's model if there is one, and otherwise the analytical model."""

from dataclasses import replace

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.kernel import Space, find_kernel
from kernrec.store import Database
from kernrec.training.dataset import Dataset
from kernrec.training.load_measurements import MeasurementRequest, load_measurements
from tests.helpers.sharing import measurement
from tests.helpers.simulated_groups import simulated_groups


def test_second_model_learns_residuals_of_the_first_model():
    groups = simulated_groups(3, rows=12)
    plain = Dataset(tuple(groups))
    beneath = np.linspace(-0.3, 0.3, len(groups[0]))
    above = Dataset((replace(groups[0], beneath={"latency": beneath}), *groups[1:]))
    added = np.concatenate([beneath, np.zeros(len(plain) - len(beneath))])
    np.testing.assert_allclose(above.residual["latency"], plain.residual["latency"] - added)
    np.testing.assert_allclose(above.least, plain.least - added)
    np.testing.assert_allclose(above.matrix, plain.matrix)


def test_user_model_is_trained_on_residuals_of_the_shipped_model(tmp_path):
    """The rows include a type and layout that no CUDA kernel supports."""
    kernel, gpu = find_kernel("matmul_triton"), find_gpu("h100-sxm-96gb")
    path = tmp_path / "own.duckdb"
    with Database.open(path, read_only=False, create=True) as database:
        for dtype, layout in (("f16", "nn"), ("f32", "tn")):
            problem = kernel.definition.problem(dtype, layout, m=1024, n=1024, k=1024)
            space = Space(kernel, gpu.sm, gpu.limits, dtype, layout)
            same = {"gpu": gpu.name, "kernel": kernel.name, "kernel_hash": kernel.hash, "problem": problem}
            same |= {"latency_s": 1e-3, "position": None, "block": None}
            database.add_measurements(measurement(**same, config=space.config(row)) for row in range(len(space)))
    read = load_measurements(MeasurementRequest((path,)))
    (stored,) = [group for group in read.groups if group.problem.endswith("f16,nn")]
    assert len(read.groups) == 2
    assert read.beneath.keys() == {kernel.name}
    assert np.abs(stored.beneath["latency"]).max() > 0.0
