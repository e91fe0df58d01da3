"""How measured rows are grouped for training."""

from dataclasses import replace

import numpy as np

from kernrec.training.dataset import Dataset
from tests.helpers.groups import simulated_groups


def test_problems_that_differ_in_dtype_or_layout_alone_are_held_out_together() -> None:
    names = ["m=1,n=2,k=3]f16,nn", "m=1,n=2,k=3]bf16,nt", "m=2,n=2,k=3]f16,nn", "m=4,n=1,k=1]f16,nn"]
    groups = [replace(g, problem=f"matmul[{name}") for g, name in zip(simulated_groups(4, 5), names, strict=True)]
    kind, numbers = Dataset(tuple(groups)).held_out
    assert kind == "problem"
    assert np.array_equal(numbers, np.repeat([0, 0, 1, 2], 5))
