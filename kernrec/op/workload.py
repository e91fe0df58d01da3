"""Workload sets: the layers of real networks with their counts, and the published total they should add up to.

A set is one file of `datasets/workloads`:

    name, title        its name and title
    source             where the layers come from
    covers             which of the network's layers the published figure counts
    published_flops    the published FLOPs of those layers, a multiply-add counted as two
    published_source   where it is published, or the published figures it follows from
    tolerance          the largest accepted relative difference of the layers' sum from it
    layers             a list of { name, op, count, <dimensions of the op> }; equal layers are one entry. Layers
                       that the published figure does not count have `compared = false`. A linear layer is a matmul,
                       or a matvec for up to 16 rows.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernrec import paths
from kernrec.errors import UsageError, fold, unknown
from kernrec.op.problem import Op, Problem
from kernrec.op.registry import find_op
from kernrec.util.light_dataclass import dataclass
from kernrec.util.names import short


@dataclass(frozen=True)
class Layer:
    """One distinct layer of a network."""

    name: str
    problem: Problem
    count: int
    """Occurrences in one pass through the network."""
    compared: bool = True
    """Whether the published FLOPs of the set include this layer."""

    @property
    def flops(self) -> int:
        """FLOPs of all occurrences together."""
        return self.count * self.problem.flops


@dataclass(frozen=True)
class Workload:
    """The layers of one network; their dtype and layout are the defaults of their ops."""

    name: str
    title: str
    source: str
    """The document that the layers were taken from."""
    covers: str
    """The layers that the published FLOPs include, in words."""
    published_flops: float
    """Published FLOPs of those layers; a multiply-add counts as two."""
    published_source: str
    """The document that states `published_flops`, or the figures it follows from."""
    tolerance: float
    """The largest accepted relative difference between `compared_flops` and `published_flops`."""
    layers: tuple[Layer, ...]
    """The distinct layers, in execution order."""

    @property
    def flops(self) -> int:
        """FLOPs of all layers together."""
        return sum(layer.flops for layer in self.layers)

    @property
    def compared_flops(self) -> int:
        """FLOPs of the layers that the published figure includes."""
        return sum(layer.flops for layer in self.layers if layer.compared)

    def layers_of(self, op: str | Op, dtype: str | None = None, layout: str | None = None) -> tuple[Layer, ...]:
        """The layers of one op, in this dtype and layout (None: the op's default). Raises `UsageError`."""
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
    """The set that is used for an op when no shape is given; `layers_of` selects its layers. Raises `UsageError`."""
    return workload((op if isinstance(op, Op) else find_op(op)).workload)


@lru_cache(maxsize=32)
def load_workload(path: Path) -> Workload:
    """The workload set in a file. Raises `UsageError` with the file and the reason if it cannot be read."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        layers = tuple(_layer(entry) for entry in content.pop("layers"))
        return Workload(**content, layers=layers)
    except KeyError as error:
        raise UsageError(f"workload file {path}: {error.args[0]} is missing") from error
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, UsageError) as error:
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
