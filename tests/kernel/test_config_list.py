"""Test kernels with a list of configs: the space equals the list, and each config keeps its additional values."""

import copy

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import limits
from kernrec.kernel import Space
from kernrec.kernel.spec_reader import kernel_from

SPEC = {
    "name": "copy",
    "source": "copy.cu",
    "problem": {"tensors": {"x": {"shape": [4096], "role": "inout"}}},
    "tunables": {"width": {"values": [256, 64, 128]}, "vector": {"values": [1, 4]}},
    "configs": {"columns": ["vector", "width", "blocks"], "rows": [[1, 64, 7], [4, 128, 5], [1, 256, 9]]},
    "launch": [{"entry": "copy", "grid": ["blocks"], "block": ["width"], "arguments": ["x"]}],
}
SOURCE = "__global__ void copy(float* x) {} // WIDTH VECTOR"


def space_of(spec):
    kernel = kernel_from(copy.deepcopy(spec), "copy.toml", SOURCE)
    return kernel, Space(kernel, 80, limits(80), "f32", "any")


def test_space_equals_the_list_in_order_of_tunable_values():
    _, space = space_of(SPEC)
    assert [space.config(row) for row in range(len(space))] == [
        {"width": 256, "vector": 1}, {"width": 64, "vector": 1}, {"width": 128, "vector": 4},
    ]  # fmt: skip


@given(st.sets(st.tuples(st.sampled_from([64, 128, 256]), st.sampled_from([1, 4])), min_size=1))
def test_every_listed_config_is_found_in_its_row(pairs):
    rows = [[vector, width, 3] for width, vector in pairs]
    _, space = space_of(SPEC | {"configs": {"columns": ["vector", "width", "blocks"], "rows": rows}})
    assert len(space) == len(pairs)
    found_rows = space.find([space.config(row) for row in range(len(space))])
    assert np.array_equal(found_rows, np.arange(len(space)))


def test_inconsistent_list_is_refused_in_one_line(refuses):
    refuses(lambda configs: space_of(SPEC | {"configs": configs}), [
        {"columns": ["width", "blocks"], "rows": [[64, 1]]}, {"columns": ["width", "vector"], "rows": [[64]]},
        {"columns": ["width", "vector"], "rows": [[96, 1]]}, {"columns": ["width", "vector"], "rows": []},
        {"columns": ["width", "vector", "n"], "rows": [[64, 1, 2], [64, 1, 3]]},
        {"columns": ["width", "vector", "sm"], "rows": [[64, 1, 2]]},
    ])  # fmt: skip
