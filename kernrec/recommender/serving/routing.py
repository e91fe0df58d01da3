"""Route tokens to experts at random, in the form that kernels of experts read.

A choice is a pair of a token and an expert that the token selects.
"""

import numpy as np

from kernrec.util.light_dataclass import dataclass

_SEED = 20261126
_APART = 4
"""Minimum ratio of experts to choices at which vLLM gives each choice a separate tile."""


@dataclass(frozen=True, eq=False)
class Routing:
    """Experts that the tokens of a step select, on one GPU."""

    order: np.ndarray
    """Indices of choices (i32), sorted by expert. The value `choices` fills the rest of an expert's last tile."""
    experts: np.ndarray
    """Index of the expert of each tile, i32."""
    choices: int
    """Number of choices of all tokens, on all GPUs."""
    apart: bool
    """Whether each choice has its own tile."""


def routed(tokens: int, experts: int, top: int, rows: int, *, ranks: int = 1, apart_allowed: bool = False) -> Routing:
    """Return the routing of tokens that select experts uniformly at random, with a fixed seed.

    Args:
        experts: Number of experts on one GPU.
        top: Number of different experts that each token selects.
        rows: Number of rows of a tile.
        ranks: Number of GPUs that share the experts.
        apart_allowed: Whether each choice of an expert gets its own tile if there are few choices, as in vLLM.
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
