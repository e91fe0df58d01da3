"""Values of tensors that a spec declares."""

import tracemalloc
from types import SimpleNamespace

import numpy as np

from kernrec.kernel.spec import TensorValues
from kernrec.profile.tensor_values import DRAWN_BYTES, sample_tensors


def test_random_values_take_at_most_twice_their_encoded_size():
    """An audit of a model draws tensors of `DRAWN_BYTES` in each of its processes."""
    tensor = SimpleNamespace(name="x", dtype="bf16", elements=DRAWN_BYTES // 2)
    kernel, problem = (
        SimpleNamespace(initial_values={"x": TensorValues("normal")}),
        SimpleNamespace(tensors={"x": tensor}),
    )
    tracemalloc.start()
    try:
        values = sample_tensors(kernel, problem)["x"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert values.nbytes == DRAWN_BYTES
    assert peak < 2 * DRAWN_BYTES
    floats = (values.astype(np.uint32) << 16).view(np.float32)
    assert abs(floats.mean()) < 1e-3
    assert abs(floats.std() - 1) < 1e-3
