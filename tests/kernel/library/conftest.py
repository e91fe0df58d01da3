"""Fixture for the GPU on which tests marked `gpu` run the library."""

import pytest

from tests.helpers.on_gpu import gpu_in_use


@pytest.fixture(scope="module")
def gpu():
    with gpu_in_use() as gpu:
        yield gpu
