"""Triton functions and package-like wrappers whose launches the tests of `kernrec.triton.calls` capture."""

# ruff: noqa: N803 - constants of Triton's functions are in capitals

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

import kernrec.triton


@triton.jit
def scale(x, y, bias, n, factor, ROUND: tl.constexpr, BLOCK: tl.constexpr):
    """y = factor x + bias"""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < n) * factor
    if bias is not None:
        value += tl.load(bias + place, mask=place < n)
    tl.store(y + place, value.to(ROUND), mask=place < n)


@triton.jit
def gather(x, order, y, n, BLOCK: tl.constexpr):
    """y[i] = x[order[i]]"""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(order + place, mask=place < n, other=0)
    tl.store(y + place, tl.load(x + index, mask=place < n), mask=place < n)


@triton.autotune([triton.Config({"BLOCK": block}, num_warps=2) for block in (64, 256)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_add(x, y, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    """y += x"""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y + place, tl.load(x + place) + tl.load(y + place))
    else:
        tl.store(y + place, tl.load(x + place, mask=place < n) + tl.load(y + place, mask=place < n), mask=place < n)


@kernrec.triton.autotune([triton.Config({"BLOCK": block}) for block in (64, 256)], key=["n"])
@triton.jit
def dropped_in(x, y, n, BLOCK: tl.constexpr):
    """y = x"""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place, mask=place < n), mask=place < n)


@triton.jit(repr=lambda specialization: "add_with_another_name")
def add_tuples(inputs, extents, y, BLOCK: tl.constexpr):
    """y = inputs[0] + inputs[1]"""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < extents[0] * extents[1]
    tl.store(y + place, tl.load(inputs[0] + place, mask=inside) + tl.load(inputs[1] + place, mask=inside), mask=inside)


@triton.jit
def add_named(inputs, y, n, BLOCK: tl.constexpr):
    """Compute y = inputs.first + inputs.second."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(inputs.first + place, mask=place < n) + tl.load(inputs.second + place, mask=place < n)
    tl.store(y + place, total, mask=place < n)


@gluon.jit
def copy_in_layout(x, y, n, layout: gl.constexpr, BLOCK: gl.constexpr):
    """y = x"""
    place = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(y + place, gl.load(x + place, mask=place < n), mask=place < n)


@triton.jit
def copy_tiles(a, b, BLOCK: tl.constexpr):
    """Compute b = a with descriptors that the host created."""
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    b.store([row, column], a.load([row, column]))


@triton.jit
def copy_tiles_here(x, y, n, BLOCK: tl.constexpr):
    """Compute y = x with descriptors that the function creates in the launcher's scratch memory."""
    a = tl.make_tensor_descriptor(x, shape=[n, n], strides=[n, 1], block_shape=[BLOCK, BLOCK])
    b = tl.make_tensor_descriptor(y, shape=[n, n], strides=[n, 1], block_shape=[BLOCK, BLOCK])
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    b.store([row, column], a.load([row, column]))


def call_scale(x, y, bias=None, factor=2.0, block=128):
    """Launch `scale` as a package's wrapper does."""
    n = x.shape[0]
    scale[(triton.cdiv(n, block),)](x, y, bias, n, factor, ROUND=tl.float32, BLOCK=block, num_warps=2)


if __name__ == "__main__":
    import numpy as np

    call_scale(np.zeros(1000, np.float32), np.zeros(1000, np.float32))
