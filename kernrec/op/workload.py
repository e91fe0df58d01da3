"""Define workloads: the layers of networks in execution order, with their counts.

A shipped workload is a TOML file in `datasets/workloads`. The FLOPs of its layers add up to a published total. A
workload file of a user only needs the key `layers`:

    layers             a list of { name, op, count, <dimensions of the op> }; equal layers are one entry. A linear layer
                       is a matmul, or a matvec for up to 16 rows. `name` and `count` are optional. `dtype` and `layout`
                       override the network's for one layer; `split = ["n"]` names the dimensions that tensor
                       parallelism divides; `quantized = true` marks a layer that a quantized network runs in 8 or 4
                       bits
    dtype              data type of the network; by default, the op's
    layouts            storage of tensors by op, such as { matmul = "nt" } for weights (output features, input
                       features); by default, `nt` for matmuls and the best layout for other ops
    batch              items of the layers, such as images or sequences; 1 by default
    embedding          parameters of the network that no layer multiplies, such as its token embedding; 0 by default
    tokens             tokens per item in a pass: 1 for a generated token, otherwise the length of the prompt
    one_network        false if the layers are from several networks; then memory is compared layer by layer
    name, title        name and title of the workload
    source             where the layers come from
    covers             layers that the published figure includes
    published_flops    published FLOPs of these layers; a multiply-add counts as two
    published_source   document with the published FLOPs, or with figures that determine them
    tolerance          maximum relative difference between the layers' sum and the published FLOPs; layers that the
                       published figure excludes have `compared = false`
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
from kernrec.util.files import read_input
from kernrec.util.human import short
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Layer:
    """Layer of a network, with the number of equal layers."""

    name: str
    problem: Problem
    count: int
    """Occurrences in one pass through the network."""
    layout_free: bool = False
    """Whether the workload states no layout, so that the problem has the op's default layout."""
    split: tuple[str, ...] = ()
    """Dimensions that tensor parallelism divides."""
    quantized: bool = False
    """Whether a quantized network runs the layer in 8 or 4 bits."""
    shared: tuple[int, int] = (0, 0)
    """(key/value heads, output features per head) of a matmul. Each tensor-parallel GPU computes at least one head."""
    items: str = ""
    """Dimension that counts independent items. An empty string means the op's `items_dimension`."""
    parts: int = 1
    """Number of passes into which each occurrence is split. `count` counts all passes, which share weights."""
    alone: bool = False
    """Whether the layer is an independent problem that shares no tensors and has no weights."""


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    source: str
    layers: tuple[Layer, ...]
    """Distinct layers in execution order."""
    batch: int = 1
    """Items, such as images or sequences, per pass."""
    tp: int = 1
    """Number of tensor-parallel GPUs. `layers` is what one of them runs."""
    unknown: tuple[str, ...] = ()
    """One line for each layer whose op kernrec does not support."""
    embedding: int = 0
    """Parameters on one GPU that no layer multiplies, such as the token embedding."""
    cache: int = 0
    """Elements of the key-value cache per item. If 0, the attention layers determine this number."""
    tokens: int = 0
    """Tokens per item in a pass, or 0 if the items are not sequences."""
    one_network: bool = False
    """Whether all layers belong to one network, so that each occurrence of a layer has its own weights."""
    notes: tuple[str, ...] = ()
    """Notes about the layers to add to each answer about the workload."""

    @property
    def ops(self) -> tuple[str, ...]:
        """Return the ops of the layers, in the order of their first execution."""
        return tuple(dict.fromkeys(layer.problem.op for layer in self.layers))

    def layers_of(self, op: str | Op, dtype: str | None = None, layout: str | None = None) -> tuple[Layer, ...]:
        """Return the layers of one op, by default in the network's data type and layout. Raise `UsageError` if the op,
        data type or layout is unknown."""
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
    """Return the names of the shipped workloads."""
    return tuple(sorted(path.stem for path in paths.shipped("datasets/workloads").glob("*.toml")))


def workload(name: str) -> Workload:
    """Return a shipped workload by name, ignoring case, blanks, `-` and `_`. Raise `UsageError` if there is none."""
    names = workloads()
    for shipped in names:
        if fold(shipped) == fold(name):
            return load_workload(paths.shipped("datasets/workloads") / f"{shipped}.toml")
    raise unknown("workload", name, names)


def default_workload(op: str | Op) -> Workload:
    """Return the workload to use if the user names an op without a shape. Raise `UsageError` if the op is unknown."""
    return workload((op if isinstance(op, Op) else find_op(op)).workload)


@lru_cache(maxsize=32)
def load_workload(path: Path) -> Workload:
    """Return the workload in a TOML file. Raise `UsageError` if the file is invalid."""
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
_KEYS = (
    "name", "title", "source", "layers", "dtype", "layouts", "batch", "embedding", "tokens", "one_network",
    "published_flops", "covers", "published_source", "tolerance",
)  # fmt: skip


def _workload(path: Path, content: dict[str, Any]) -> Workload:
    for key in content:
        if key not in _KEYS:
            raise unknown("key", key, _KEYS)
    if not isinstance(content["layers"], list) or not all(isinstance(layer, dict) for layer in content["layers"]):
        raise UsageError('layers: expected a list of tables, such as [{ op = "softmax", rows = 64, columns = 512 }]')
    layouts = {find_op(op).name: layout for op, layout in content.get("layouts", {}).items()}
    layers = tuple(layer_from(entry, content.get("dtype"), layouts) for entry in content["layers"])
    if not layers:
        raise UsageError("the workload has no layers")
    name = printable(str(content.get("name", path.stem)))
    title, source = (str(content.get(key, default)) for key, default in (("title", name), ("source", path.name)))
    counts = {}
    for key, default, least in (("batch", 1, 1), ("embedding", 0, 0), ("tokens", 0, 0)):
        counts[key] = value = content.get(key, default)
        if type(value) is not int or value < least:
            raise UsageError(f"{key} is {short(value)}; expected a whole number from {least}")
    one_network = content.get("one_network", True)
    if type(one_network) is not bool:
        raise UsageError(f"one_network is {short(one_network)}; expected true or false")
    return Workload(name, printable(title), source, layers, one_network=one_network, **counts)


def layer_from(entry: Mapping[str, Any], dtype: str | None = None, layouts: Mapping[str, str] | None = None) -> Layer:
    """Return the layer of an entry in a workload file's `layers`.

    Args:
        entry: `op` and its dimensions, and optionally `name`, `count`, `dtype`, `layout` and `compared`.
        dtype: data type of the network. Ops that do not support it get the most similar type.
        layouts: layouts of the network by op.

    Raises:
        UsageError: the entry is invalid.
    """
    dims = dict(entry)
    name, op, count = dims.pop("name", None), find_op(dims.pop("op")), dims.pop("count", 1)
    compared, quantized = dims.pop("compared", True), dims.pop("quantized", False)
    split = dims.pop("split", [])
    name = op.name if name is None else printable(str(name))
    for key, value in (("compared", compared), ("quantized", quantized)):
        if type(value) is not bool:
            raise UsageError(f"layer {name!r}: {key} is {short(value)}; expected true or false")
    sizes = [dim.name for dim in op.dims]
    if not isinstance(split, list) or any(dim not in sizes for dim in split):
        raise UsageError(f"layer {name!r} has split {short(split)}; expected a list of dimensions: {', '.join(sizes)}")
    if type(count) is not int or count < 1:
        raise UsageError(f"layer {name!r} has count {short(count)}; expected a whole number from 1")
    own, layout = dims.pop("dtype", None), dims.pop("layout", None) or (layouts or {}).get(op.name)
    if own is None and dtype is not None:
        own = dtype_of(op, dtype)
    try:
        problem = op.problem(own, layout, **dims)
        free = layout is None and len(op.layouts) > 1
        return Layer(name, problem, count, free, tuple(split), quantized)
    except UsageError as error:
        raise UsageError(f"layer {name!r}: {error}") from error


def printable(text: str) -> str:
    """Return a name from an untrusted file on one line, without control characters, shortened to 80 characters."""
    shown = " ".join("".join(letter if letter.isprintable() else " " for letter in text[:200]).split())
    return shown if len(shown) <= 80 else shown[:77] + "..."


def dtype_of(op: Op, dtype: str) -> str:
    """Return the data type most similar to `dtype` that an op supports. Return `dtype` if there is none."""
    wanted = canonical_dtype(dtype)
    return dtype if wanted in op.dtypes else next((d for d in INSTEAD.get(wanted, ()) if d in op.dtypes), dtype)
