"""Workloads: the layers of networks in the order of the network, with their counts.

A workload that ships is a file of `datasets/workloads`, whose layers add up to a published total. One of a user's own
needs `layers` alone:

    layers             a list of { name, op, count, <dimensions of the op> }; equal layers are one entry. A linear layer
                       is a matmul, or a matvec for up to 16 rows. `name` and `count` may be left out; `dtype` and
                       `layout` say what is special about one layer; `split = ["n"]` the dimensions that tensor
                       parallelism divides; `quantized = true` that it runs in 8 or 4 bits where the network does
    dtype              the data type that the network runs in; without it, the default of each op
    layouts            by op, how its tensors are stored, such as { matmul = "nt" } for weights (features out, features
                       in); without it, `nt` for products and for other ops the layout that is best
    batch              the items, such as images or sequences, that the layers are of; 1 without it
    embedding          parameters of the network that no layer multiplies, such as its token embedding; 0 without it
    tokens             tokens that one pass gives each item: 1 for a generated token, else those of the prompt
    one_network        false if the layers are not those of one network: then memory is compared layer by layer
    name, title        its name and title
    source             where the layers come from
    covers             which of the network's layers the published figure counts
    published_flops    the published FLOPs of those layers, a multiply-add counted as two
    published_source   where it is published, or the published figures it follows from
    tolerance          the largest accepted relative difference of the layers' sum from it; layers that the published
                       figure does not count have `compared = false`
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernrec import paths
from kernrec.errors import UsageError, cannot_be, fold, unknown
from kernrec.op.dtype import INSTEAD, canonical_dtype
from kernrec.op.problem import Op, Problem
from kernrec.op.registry import find_op
from kernrec.util.cache import shipped_toml
from kernrec.util.human import short
from kernrec.util.input_file import read_input
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Layer:
    """One distinct layer of a network."""

    name: str
    problem: Problem
    count: int
    """Occurrences in one pass through the network."""
    compared: bool = True
    """Whether the published FLOPs of the set include this layer."""
    layout_free: bool = False
    """Whether nobody said how its tensors are stored: the layout of the problem is the op's default."""
    split: tuple[str, ...] = ()
    """The dimensions that tensor parallelism divides."""
    quantized: bool = False
    """Whether it is in 8 or 4 bits where the network is; other layers then keep the network's own data type."""
    shared: tuple[int, int] = (0, 0)
    """Heads of keys and values in a product, and its outputs for each: a GPU has at least one such head."""
    items: str = ""
    """The dimension that counts independent items, if it is not that of the op."""
    parts: int = 1
    """Passes over parts of the items in each occurrence, which `count` includes; they share the weights."""
    alone: bool = False
    """Whether it is a problem by itself: its tensors go to no other layer, and nobody calls one of them weights."""

    @property
    def flops(self) -> int:
        """Of all occurrences together."""
        return self.count * self.problem.flops


@dataclass(frozen=True)
class Published:
    """The published FLOPs that the layers of a workload add up to."""

    flops: float
    """A multiply-add counts as two."""
    covers: str
    """The layers that they include, in words."""
    source: str
    """The document that states them, or the figures they follow from."""
    tolerance: float
    """The largest accepted relative difference between `Workload.compared_flops` and `flops`."""


@dataclass(frozen=True)
class Workload:
    """The layers of one network, in the dtype and the layouts that it runs in."""

    name: str
    title: str
    source: str
    """The document or file that the layers were taken from."""
    layers: tuple[Layer, ...]
    """The distinct layers, in execution order."""
    published: Published | None = None
    batch: int = 1
    """The items, such as images or sequences, of one pass."""
    tp: int = 1
    """Of how many GPUs the layers are those of one, under tensor parallelism."""
    unknown: tuple[str, ...] = ()
    """Layers of ops that kernrec does not know, one line each."""
    embedding: int = 0
    """Parameters of one GPU that no layer multiplies, such as the token embedding."""
    cache: int = 0
    """Elements that the cache of keys and values holds for each item, if the attention layers do not show it."""
    tokens: int = 0
    """Tokens that one pass gives each item; 0 if the items are no sequences."""
    one_network: bool = False
    """Whether the layers are those of one network, each occurrence with weights of its own."""
    notes: tuple[str, ...] = ()
    """Lines that a reader of the layers has to know."""

    @property
    def flops(self) -> int:
        """FLOPs of all layers together."""
        return sum(layer.flops for layer in self.layers)

    @property
    def compared_flops(self) -> int:
        """FLOPs of the layers that the published figure includes."""
        return sum(layer.flops for layer in self.layers if layer.compared)

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops of the layers, in the order of the network."""
        return tuple(dict.fromkeys(layer.problem.op for layer in self.layers))

    def layers_of(self, op: str | Op, dtype: str | None = None, layout: str | None = None) -> tuple[Layer, ...]:
        """The layers of one op, in this dtype and layout (None: the network's). Raises `UsageError`."""
        op = op if isinstance(op, Op) else find_op(op)
        return tuple(
            replace(
                layer,
                problem=op.problem(dtype or layer.problem.dtype, layout or layer.problem.layout, **layer.problem.dim),
            )
            for layer in self.layers
            if layer.problem.op == op.name
        )


def workloads() -> tuple[str, ...]:
    """The names of the workloads that ship."""
    return tuple(sorted(path.stem for path in paths.shipped("datasets/workloads").glob("*.toml")))


def workload(name: str) -> Workload:
    """The workload of this name that ships; case, spaces, `-` and `_` do not matter. Raises `UsageError`."""
    names = workloads()
    for shipped in names:
        if fold(shipped) == fold(name):
            return load_workload(paths.shipped("datasets/workloads") / f"{shipped}.toml")
    raise unknown("workload", name, names)


def default_workload(op: str | Op) -> Workload:
    """The workload of an op for which no shape is given; `layers_of` selects its layers. Raises `UsageError`."""
    return workload((op if isinstance(op, Op) else find_op(op)).workload)


@lru_cache(maxsize=32)
def load_workload(path: Path) -> Workload:
    """The workload in a TOML file. Raises `UsageError` with the file and the reason if it cannot be read."""
    try:
        if path.parent == paths.shipped("datasets/workloads"):
            return _workload(path, shipped_toml(path))
        import tomllib

        return _workload(path, tomllib.loads(read_input(path, _MOST_BYTES, "it").decode()))
    except KeyError as error:
        raise UsageError(f"workload file {path}: {error.args[0]} is missing") from error
    except OSError as error:
        raise UsageError(cannot_be("read", f"workload file {path}", error)) from error
    except UnicodeDecodeError:
        raise UsageError(f"workload file {path}: not UTF-8 text") from None
    except (ValueError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise UsageError(f"workload file {path}: {error}") from error


_MOST_BYTES = 16 << 20
_PUBLISHED = ("published_flops", "covers", "published_source", "tolerance")
_KEYS = (
    "name", "title", "source", "layers", "dtype", "layouts", "batch", "embedding", "tokens", "one_network", *_PUBLISHED
)  # fmt: skip


def _workload(path: Path, content: dict[str, Any]) -> Workload:
    for key in content:
        if key not in _KEYS:
            raise unknown("key", key, _KEYS)
    layouts = {find_op(op).name: layout for op, layout in content.get("layouts", {}).items()}
    layers = tuple(layer_from(entry, content.get("dtype"), layouts) for entry in content["layers"])
    if not layers:
        raise UsageError("it has no layers")
    published = Published(*(content[key] for key in _PUBLISHED)) if content.keys() & set(_PUBLISHED) else None
    name = printable(str(content.get("name", path.stem)))
    title, source = (str(content.get(key, default)) for key, default in (("title", name), ("source", path.name)))
    counts = {}
    for key, default, least in (("batch", 1, 1), ("embedding", 0, 0), ("tokens", 0, 0)):
        counts[key] = value = content.get(key, default)
        if type(value) is not int or value < least:
            raise UsageError(f"{key} is {short(value)}; a whole number from {least} is accepted")
    one_network = content.get("one_network", True)
    if type(one_network) is not bool:
        raise UsageError(f"one_network is {short(one_network)}; true and false are accepted")
    return Workload(name, printable(title), source, layers, published, one_network=one_network, **counts)


def layer_from(entry: Mapping[str, Any], dtype: str | None = None, layouts: Mapping[str, str] | None = None) -> Layer:
    """The layer of an entry of a workload file.

    Args:
        entry: `op` and its dimensions; `name`, `count`, `dtype`, `layout` and `compared` where they are special.
        dtype: the network's; where an op has no such type, its tensors are stored in f32 as those of tf32 are.
        layouts: the network's, by op.

    Raises:
        UsageError: what is wrong with the entry.
    """
    dims = dict(entry)
    name, op, count = dims.pop("name", None), find_op(dims.pop("op")), dims.pop("count", 1)
    compared, quantized = dims.pop("compared", True), dims.pop("quantized", False)
    split = dims.pop("split", [])
    name = op.name if name is None else printable(str(name))
    for key, value in (("compared", compared), ("quantized", quantized)):
        if type(value) is not bool:
            raise UsageError(f"layer {name!r} has {key} {short(value)}; true and false are accepted")
    sizes = [dim.name for dim in op.dims]
    if not isinstance(split, list) or any(dim not in sizes for dim in split):
        raise UsageError(
            f"layer {name!r} has split {short(split)}; a list of dimensions is accepted: {', '.join(sizes)}"
        )
    if type(count) is not int or count < 1:
        raise UsageError(f"layer {name!r} has count {short(count)}; a whole number from 1 is accepted")
    own, layout = dims.pop("dtype", None), dims.pop("layout", None) or (layouts or {}).get(op.name)
    if own is None and dtype is not None:
        own = dtype_of(op, dtype)
    try:
        problem = op.problem(own, layout, **dims)
        free = layout is None and len(op.layouts) > 1
        return Layer(name, problem, count, compared, free, tuple(split), quantized)
    except UsageError as error:
        raise UsageError(f"layer {name!r}: {error}") from error


def printable(text: str) -> str:
    """A name from a file as it is printed: on one line, without control characters, at most 80 letters."""
    shown = " ".join("".join(letter if letter.isprintable() else " " for letter in text[:200]).split())
    return shown if len(shown) <= 80 else shown[:77] + "..."


def dtype_of(op: Op, dtype: str) -> str:
    """The dtype that an op runs in, in a network of this dtype: the nearest that it has."""
    wanted = canonical_dtype(dtype)
    return dtype if wanted in op.dtypes else next((d for d in INSTEAD.get(wanted, ()) if d in op.dtypes), dtype)
