"""Provide the database tests with rows to store, and with files that are not databases of kernrec."""

from collections.abc import Callable

import pytest

from kernrec.op import find_op
from kernrec.store import ProfileRow
from tests.helpers.sharing import USUAL, profile_row


@pytest.fixture
def problem():
    return find_op("matmul").problem(m=64, n=32, k=16)


@pytest.fixture
def row() -> Callable[..., dict]:

    def make(**arguments) -> dict:
        return USUAL | {"config": {"block_m": 64, "split_k": 1}} | arguments

    return make


@pytest.fixture
def profile() -> Callable[..., ProfileRow]:
    """Return a function that creates a profile row with the given columns changed."""
    return profile_row
