"""Route tokens to experts at random, in the form that kernels of experts read.

A choice is a pair of a token and an expert that the token selects.
"""

import numpy as np

from kernrec.util.light_dataclass import dataclass

_SEED = 20261126
_APART = 4
"""Minimum ratio of the number of experts to the number of choices at which vLLM gives each choice its own tile."""


@dataclass(frozen=True, eq=False)
class Routing:
    """Choices of experts by the tokens of a step, on one GPU."""

    order: np.ndarray
    """Indices of choices (i32), sorted by expert. The number `choices` pads each expert's list to whole tiles."""
    experts: np.ndarray
    """Index of the expert of each tile, i32."""
    choices: int
    """Number of choices of all tokens, including choices of experts on other GPUs."""
    apart: bool
    """Whether each choice has its own tile, even if several choices are of the same expert."""


def routed(tokens: int, experts: int, top: int, rows: int, *, ranks: int = 1, apart_allowed: bool = False) -> Routing:
    """Return the routing of tokens that select experts uniformly at random, with a fixed seed.

    Args:
        experts: number of experts on one GPU.
        top: number of different experts that each token selects.
        rows: number of rows of a tile.
        ranks: number of GPUs among which the experts are distributed. Choices of experts on other GPUs are left out.
        apart_allowed: whether each choice may get its own tile if there are few choices, as in vLLM.
    """
    total, choices = experts * ranks, tokens * top
    draw = np.random.default_rng(_SEED)
    if total == 1:
        chosen = np.zeros(choices, np.int64)
    else:
        chosen = np.argpartition(draw.random((tokens, total)), top - 1, axis=1)[:, :top].reshape(-1)
    own = np.flatnonzero(chosen < experts)
    if not len(own):  # Keep at least one choice. Without any work, configs cannot be compared.
        own, chosen = np.zeros(1, np.int64), np.zeros_like(chosen)
    apart = apart_allowed and ranks == 1 and choices * _APART <= experts
    if apart:
        alone = np.full((len(own), rows), choices, np.int32)
        alone[:, 0] = own
        return Routing(alone.reshape(-1), chosen[own].astype(np.int32), choices, apart)
    own = own[np.argsort(chosen[own], kind="stable")]
    counts = np.bincount(chosen[own], minlength=experts)
    tiles = -(-counts // rows)
    order = np.full(int(tiles.sum()) * rows, choices, np.int32)
    starts = np.cumsum(tiles * rows) - tiles * rows
    offsets = np.arange(len(own)) - np.repeat(np.cumsum(counts) - counts, counts)
    order[np.repeat(starts, counts) + offsets] = own
    return Routing(order, np.repeat(np.arange(experts), tiles).astype(np.int32), choices, apart)
