"""Layer normalization of rows in Triton: a row is held in registers, or read twice with running mean and squares."""

import triton
import triton.language as tl


@triton.jit
def layernorm_triton(
    x, weight, bias, y, rows, columns,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, RESIDENT: tl.constexpr,
):  # fmt: skip
    """A block computes BLOCK_ROWS rows of y, BLOCK_COLUMNS columns at a time; RESIDENT: these are all columns."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    start = row.to(tl.int64) * columns
    place = tl.arange(0, BLOCK_COLUMNS)[None, :]
    share = 1 / columns.to(tl.float32)
    if RESIDENT:
        inside = (row < rows) & (place < columns)
        value = tl.load(x + start + place, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(value, 1)[:, None] * share
        apart = tl.where(place < columns, value - mean, 0.0)
        scale = tl.rsqrt(tl.sum(apart * apart, 1)[:, None] * share + 1e-5)
        w = tl.load(weight + place, mask=place < columns, other=0.0).to(tl.float32)
        b = tl.load(bias + place, mask=place < columns, other=0.0).to(tl.float32)
        tl.store(y + start + place, (apart * scale * w + b).to(y.dtype.element_ty), mask=inside)
    else:
        # Each place of a chunk keeps the mean of its values and their squared distances from it (Welford 1962).
        mine = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
        squares = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
        count = 0.0
        for first in range(0, columns, BLOCK_COLUMNS):
            here = first + place < columns
            value = tl.load(x + start + first + place, mask=(row < rows) & here, other=0.0).to(tl.float32)
            count += 1
            apart = tl.where(here, value - mine, 0.0)
            mine += apart * (1 / count)
            squares += tl.where(here, apart * (value - mine), 0.0)
        # the last chunk may be short
        number = tl.where(place < columns - (tl.cdiv(columns, BLOCK_COLUMNS) - 1) * BLOCK_COLUMNS, count, count - 1)
        mean = tl.sum(mine * number, 1)[:, None] * share
        apart = mine - mean
        scale = tl.rsqrt(tl.sum(squares + apart * apart * number, 1)[:, None] * share + 1e-5)
        for first in range(0, columns, BLOCK_COLUMNS):
            here = first + place < columns
            value = tl.load(x + start + first + place, mask=(row < rows) & here, other=0.0).to(tl.float32)
            w = tl.load(weight + first + place, mask=here, other=0.0).to(tl.float32)
            b = tl.load(bias + first + place, mask=here, other=0.0).to(tl.float32)
            result = ((value - mean) * scale * w + b).to(y.dtype.element_ty)
            tl.store(y + start + first + place, result, mask=(row < rows) & here)
