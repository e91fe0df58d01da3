"""The kernel of these tests: a spec like those of the library, beside a source that nobody compiles."""

from pathlib import Path

import pytest

from kernrec.gpu import SmLimits, limits
from kernrec.kernel import Kernel, load_kernel

SPEC = Path(__file__).parent / "tiled" / "kernel.toml"


@pytest.fixture(scope="session")
def tiled() -> Kernel:
    return load_kernel(SPEC)


@pytest.fixture(scope="session")
def ada() -> SmLimits:
    return limits(89)
