"""Fixtures for kernel tests: a kernel with a spec like the library's, and a source that is never compiled."""

from pathlib import Path

import pytest

from kernrec.gpu import limits
from kernrec.kernel import load_kernel

SPEC = Path(__file__).parent / "tiled" / "kernel.toml"


@pytest.fixture(scope="session")
def tiled():
    return load_kernel(SPEC)


@pytest.fixture(scope="session")
def ada():
    return limits(89)
