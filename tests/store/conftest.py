"""Provide the database tests with rows to store, and with files that are not databases of kernrec."""

from collections.abc import Callable

import numpy as np
import pytest

from kernrec.op import find_op
from kernrec.store import Database, ProfileRow
from tests.helpers.reading import reading_here
from tests.helpers.sharing import USUAL


@pytest.fixture
def read_here():
    with reading_here():
        yield


@pytest.fixture
def problem():
    return find_op("matmul").problem(m=64, n=32, k=16)


@pytest.fixture
def database():
    with Database.memory() as database:
        yield database


@pytest.fixture
def row() -> Callable[..., dict]:

    def make(**arguments) -> dict:
        return USUAL | {"config": {"block_m": 64, "split_k": 1}} | arguments

    return make


@pytest.fixture
def profile() -> Callable[..., ProfileRow]:
    """Return a function that creates a profile row with the given columns changed."""

    def make(**arguments) -> ProfileRow:
        usual = {
            "kernel": "matmul_simt",
            "kernel_hash": "0123456789abcdef",
            "variant_key": "c0",
            "sm": 89,
            "launch": 0,
            "entry": "matmul_simt",
            "variant": {"block_m": 64, "dtype": "f32"},
            "registers": 64,
            "spill_bytes": 0,
            "stack_bytes": 0,
            "static_smem_bytes": 4096,
            "ptx_hash": "p0",
            "compiler": "nvrtc 13.5",
            "metrics": ("issue.fma32", "issue.ld_shared"),
            "terms": ("block", "k_tiles"),
            "counts": np.array([[1.0, 2.0], [3.0, 4.5]]),
        }
        return ProfileRow(**usual | arguments)

    return make
