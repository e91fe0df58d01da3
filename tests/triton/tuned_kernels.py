"""Functions that the tests of `kernrec.triton` tune, in a separate file because worker processes load it."""

import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=4) for block in (64, 256, 1024)]


@triton.jit
def scale(x, y, n, factor, BLOCK: tl.constexpr):
    """y = factor x"""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place, mask=place < n) * factor, mask=place < n)


@triton.jit
def add_rows(x, y, n, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Compute row sums. Compiling fails if BLOCK is not a power of 2."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place, mask=place < n) + WIDTH, mask=place < n)


@triton.jit
def square(a, b, c, BLOCK: tl.constexpr):
    """Compute c = a b for matrices of BLOCK x BLOCK. The shared memory grows with num_stages."""
    rows, columns = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    sums = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(4):
        x = tl.load(a + step * BLOCK * BLOCK + rows * BLOCK + columns)
        sums = tl.dot(x, tl.load(b + step * BLOCK * BLOCK + rows * BLOCK + columns), sums)
    tl.store(c + rows * BLOCK + columns, sums)


def grid(meta):
    """Return a grid with a block for each BLOCK elements."""
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)
