"""Workload sets: the layers of real networks, each with how often it occurs, and the published total they add up to.

A set is one file of `datasets/workloads`:

    name, title        how it is called
    source             where the layers come from
    covers             which of the network's layers the published figure counts
    published_flops    FLOPs that somebody else states for those layers, a multiply-add counted as two
    published_source   who does, or from which published figures it follows
    tolerance          how far the sum of those layers may be from it, as a fraction
    layers             a list of { name, op, count, <dimensions of the op> }; equal layers are one entry. Those that the
                       published figure does not count have `compared = false`. A linear layer is a matmul, on up to
                       16 rows a matvec.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernrec import paths
from kernrec.errors import UsageError, fold, unknown
from kernrec.op.problem import Op, Problem
from kernrec.op.registry import find_op
from kernrec.util.names import short


@dataclass(frozen=True)
class Layer:
    """One distinct layer: `problem` occurs `count` times in one pass through the network."""

    name: str
    problem: Problem
    count: int
    compared: bool = True
    """Whether the published figure of its set counts it."""

    @property
    def flops(self) -> int:
        """FLOPs of all its occurrences."""
        return self.count * self.problem.flops


@dataclass(frozen=True)
class Workload:
    """The layers of one network, in the order of the pass; dtype and layout are the defaults of each layer's op."""

    name: str
    title: str
    source: str
    covers: str
    published_flops: float
    published_source: str
    tolerance: float
    layers: tuple[Layer, ...]

    @property
    def flops(self) -> int:
        """FLOPs of all layers together."""
        return sum(layer.flops for layer in self.layers)

    @property
    def compared_flops(self) -> int:
        """FLOPs of the layers that the published figure counts."""
        return sum(layer.flops for layer in self.layers if layer.compared)

    def layers_of(self, op: str | Op, dtype: str | None = None, layout: str | None = None) -> tuple[Layer, ...]:
        """The layers of one op, in this dtype and layout (default: the op's). Raises `UsageError`."""
        op = op if isinstance(op, Op) else find_op(op)
        return tuple(
            replace(layer, problem=op.problem(dtype, layout, **layer.problem.dim))
            for layer in self.layers
            if layer.problem.op == op.name
        )


def workloads() -> tuple[str, ...]:
    """The names of all workload sets."""
    return tuple(sorted(path.stem for path in paths.shipped("datasets/workloads").glob("*.toml")))


def workload(name: str) -> Workload:
    """The workload set of this name; case, spaces, `-` and `_` do not matter. Raises `UsageError`."""
    names = workloads()
    for known in names:
        if fold(known) == fold(name):
            return load_workload(paths.shipped("datasets/workloads") / f"{known}.toml")
    raise unknown("workload", name, names)


def default_workload(op: str | Op) -> Workload:
    """The set that stands for an op when no shape is given; `layers_of` picks that op's layers. Raises `UsageError`."""
    return workload((op if isinstance(op, Op) else find_op(op)).workload)


@lru_cache(maxsize=32)
def load_workload(path: Path) -> Workload:
    """The workload set in a file. Raises `UsageError` when it is not one, naming the file and what is wrong."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        layers = tuple(_layer(entry) for entry in content.pop("layers"))
        return Workload(**content, layers=layers)
    except KeyError as error:
        raise UsageError(f"workload file {path}: {error.args[0]} is missing") from error
    except (OSError, UnicodeDecodeError, TypeError, AttributeError, tomllib.TOMLDecodeError, UsageError) as error:
        raise UsageError(f"workload file {path}: {error}") from error


def _layer(entry: Mapping[str, Any]) -> Layer:
    dims = dict(entry)
    name, op, count = dims.pop("name"), dims.pop("op"), dims.pop("count")
    compared = dims.pop("compared", True)
    if type(compared) is not bool:
        raise UsageError(f"layer {name!r} has compared {short(compared)}; true and false are accepted")
    if type(count) is not int or count < 1:
        raise UsageError(f"layer {name!r} has count {short(count)}; a whole number from 1 is accepted")
    try:
        return Layer(name, find_op(op).problem(**dims), count, compared)
    except UsageError as error:
        raise UsageError(f"layer {name!r}: {error}") from error
