"""Test that the emulator's errors are cached."""

import pytest

from kernrec.kernel import Kernel, load_kernel
from kernrec.op import Problem
from kernrec.profile.emulation_cache import ErrorCache
from tests.helpers.paths import beside

SOURCE = 'extern "C" __global__ void twice(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] *= 2.0f; }'
SPEC = beside(__file__, "emulation_cache.toml")


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    (tmp_path / "twice.cu").write_text(SOURCE)
    (tmp_path / "twice.toml").write_text(SPEC)
    return load_kernel(tmp_path / "twice.toml")


def problem(kernel: Kernel) -> Problem:
    return kernel.definition.problem()


def test_error_is_cached_for_its_launch(kernel):
    cache = ErrorCache(kernel, problem(kernel), 1000)
    cache.put(("ptx", "launch"), "it never ends")
    assert cache.get(("ptx", "launch")) == "it never ends"
    assert cache.get(("ptx", "other")) is None
    assert ErrorCache(kernel, problem(kernel), 2000).get(("ptx", "launch")) is None


def test_damaged_file_is_treated_as_missing(kernel, tmp_path):
    cache = ErrorCache(kernel, problem(kernel), 1000)
    cache.put(("ptx",), "it never ends")
    (path,) = (tmp_path / "cache" / "emulated").rglob("*.txt")
    path.write_bytes(b"\xff")
    assert cache.get(("ptx",)) is None
