"""Which tokens go to which experts, as the kernels get it: choices in the order of experts, in whole tiles of rows."""

import numpy as np

from kernrec.util.light_dataclass import dataclass

_SEED = 20261126
_APART = 4
"""vLLM gives each choice a tile of its own where there are fewer choices than a quarter of the experts."""


@dataclass(frozen=True, eq=False)
class Routing:
    """The choices of a step, on one GPU."""

    order: np.ndarray
    """Choices by expert, i32; each expert's are filled up to whole tiles with `choices`."""
    experts: np.ndarray
    """The expert of each tile, i32."""
    choices: int
    """How many choices the tokens have together, those of other GPUs included."""
    apart: bool
    """Whether each choice has a tile of its own, with no regard to the expert."""


def routed(tokens: int, experts: int, top: int, rows: int, *, ranks: int = 1, apart_allowed: bool = False) -> Routing:
    """Tokens that choose their experts at random, each as likely, the same at every call.

    Args:
        tokens: in a step.
        experts: of one GPU.
        top: experts of a token, all different.
        rows: of a tile.
        ranks: GPUs among which the experts are distributed; the choices of other GPUs are left out.
        apart_allowed: whether few choices get a tile each, as in vLLM.
    """
    total, choices = experts * ranks, tokens * top
    draw = np.random.default_rng(_SEED)
    if total == 1:
        chosen = np.zeros(choices, np.int64)
    else:
        chosen = np.argpartition(draw.random((tokens, total)), top - 1, axis=1)[:, :top].reshape(-1)
    own = np.flatnonzero(chosen < experts)
    if not len(own):  # one choice at least: a GPU without work has no config to compare
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
