"""Test which pointer parameters each read and write of global memory derives from."""

import pytest

from kernrec.compile import compile_source
from kernrec.ptx import parse
from kernrec.ptx.analysis.pointers import global_pointers

BODIES = {
    "y[i] = x[i];": ({0}, {1}),
    "y[i] += x[i];": ({0, 1}, {1}),
    "atomicAdd(&y[i], x[i]);": ({0}, {1}),
    "atomicAdd(&y[x[i]], 1);": None,
    "if (atomicAdd(&y[0], 1) < n) x[i] = 3;": ({1}, {0, 1}),
    "__shared__ int own[64]; own[i] = x[i]; __syncthreads(); y[own[63 - i]] = n;": None,
    "(n > 3 ? x : y)[i] = 3;": (set(), {0, 1}),
    "((int*)*(long long*)x)[i] = n;": None,
}
"""Maps a body to the parameter numbers behind its reads and its writes, or to None if they are unknown."""


@pytest.mark.parametrize("body", BODIES)
def test_reads_and_writes_follow_from_parameters(nvrtc, body):
    source = f'extern "C" __global__ void k(int* x, int* y, int n) {{ int i = threadIdx.x; {body} }}'
    function = parse(compile_source(source, 80).ptx).functions["k"]
    numbers = {parameter.name: number for number, parameter in enumerate(function.parameters)}
    pointers = global_pointers(function)
    assert (pointers and tuple({numbers[name] for name in names} for names in pointers)) == BODIES[body]
