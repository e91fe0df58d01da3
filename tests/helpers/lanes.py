"""Strategies for random operands of a warp's lanes. Each strategy draws a seed, because drawing 32 numbers is slow."""

import random
import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
_EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.0, 3.0, float("inf"), float("-inf"), float("nan"), 2.0**-126, 2.0**-149)


def columns(make: Callable[[random.Random], T], count: int, lanes: int = 32) -> st.SearchStrategy[list[list[T]]]:
    """Return a strategy for `count` columns, each with one number per lane."""

    def made(seed: int) -> list[list[T]]:
        chance = random.Random(seed)
        return [[make(chance) for _ in range(lanes)] for _ in range(count)]

    return st.integers(0, 2**64 - 1).map(made)


def column(make: Callable[[random.Random], T], lanes: int = 32) -> st.SearchStrategy[list[T]]:
    return columns(make, 1, lanes).map(lambda made: made[0])


def integer(bits: int, edges: Sequence[int] = (), signed: bool = False) -> Callable[[random.Random], int]:
    """Return a function that draws integers. Half of them are from `edges`, if given."""

    def make(chance: random.Random) -> int:
        number = chance.choice(edges) if edges and chance.random() < 0.5 else chance.getrandbits(bits)
        return number - (number >> (bits - 1) << bits) if signed else number

    return make


def single(chance: random.Random) -> float:
    """Draw an f32 number: random bits, a moderate number or an edge case."""
    kind = chance.random()
    if kind < 0.2:
        return chance.choice(_EDGES)
    if kind < 0.5:
        return modest(chance)
    return float(struct.unpack("f", chance.randbytes(4))[0])


def modest(chance: random.Random) -> float:
    """Draw an f32 number between -2**40 and 2**40: a small integer, or a number of any magnitude."""
    if chance.random() < 0.3:
        return float(chance.randrange(-9, 10))
    return float(struct.unpack("f", struct.pack("f", chance.uniform(-1, 1) * 2.0 ** chance.randrange(-60, 41)))[0])


def double(chance: random.Random) -> float:
    if chance.random() < 0.2:
        return float(chance.randrange(-9, 10))
    return chance.uniform(-1, 1) * 10.0 ** chance.randrange(-100, 101)
