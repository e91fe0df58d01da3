"""Softmax of rows in Triton: a row is held in registers, or read twice with a running largest value and sum."""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234663852886e38)  # finite, so that a place without values has differences, not NaN


@triton.jit
def softmax_triton(
    x, y, rows, columns,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, RESIDENT: tl.constexpr,
):  # fmt: skip
    """A block computes BLOCK_ROWS rows of y, BLOCK_COLUMNS columns at a time; RESIDENT: these are all columns."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    start = row.to(tl.int64) * columns
    place = tl.arange(0, BLOCK_COLUMNS)[None, :]
    if RESIDENT:
        inside = (row < rows) & (place < columns)
        value = tl.load(x + start + place, mask=inside, other=float("-inf")).to(tl.float32)
        highest = tl.maximum(tl.max(value, 1), LOWEST)[:, None]
        power = tl.exp(value - highest)
        share = 1 / tl.sum(power, 1)[:, None]
        tl.store(y + start + place, (power * share).to(y.dtype.element_ty), mask=inside)
    else:
        # Each place of a chunk keeps its own largest value and sum relative to it, so that a chunk costs no exchange.
        most = tl.full((BLOCK_ROWS, BLOCK_COLUMNS), LOWEST, tl.float32)
        total = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
        for first in range(0, columns, BLOCK_COLUMNS):
            inside = (row < rows) & (first + place < columns)
            value = tl.load(x + start + first + place, mask=inside, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(most, value)
            total = total * tl.exp(most - higher) + tl.exp(value - higher)
            most = higher
        highest = tl.max(most, 1)[:, None]
        share = 1 / tl.sum(total * tl.exp(most - highest), 1)[:, None]
        for first in range(0, columns, BLOCK_COLUMNS):
            inside = (row < rows) & (first + place < columns)
            value = tl.load(x + start + first + place, mask=inside, other=float("-inf")).to(tl.float32)
            tl.store(y + start + first + place, (tl.exp(value - highest) * share).to(y.dtype.element_ty), mask=inside)
