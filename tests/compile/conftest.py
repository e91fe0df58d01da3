"""Fixtures for compiler tests: two sources and an empty cache."""

import pytest

from kernrec.compile import CompileCache

SAXPY = """
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = SCALE * a * x[i] + y[i];
}
"""

# Twenty entries, each with a loop whose unrolling keeps the compiler busy for about a second.
SLOW = "".join(
    f"""
extern "C" __global__ void slow{i}(float* a) {{
    float x = a[{i}];
    #pragma unroll
    for (int i = 0; i < 1000; i++) {{ x = x * a[i] + a[i * 7 % 1000]; a[(i * 13) % 1024] = x; }}
    a[0] = x;
}}
"""
    for i in range(20)
)


@pytest.fixture
def cache(tmp_path):
    return CompileCache(tmp_path / "compile")


@pytest.fixture
def saxpy():
    return SAXPY


@pytest.fixture
def slow():
    return SLOW
