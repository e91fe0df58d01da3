"""Read an ONNX model as a graph of nodes and tensor shapes. Weights in separate files are never read."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError
from kernrec.util.human import short
from kernrec.util.light_dataclass import dataclass
from kernrec.util.optional import import_optional

MOST_BYTES = 2 << 30
"""Maximum size of a file in bytes. Larger models keep their weights in separate files."""
_SMALL = 1024
"""Maximum number of elements of a constant to keep. Small constants may contain a shape."""
_DTYPES = {1: "f32", 10: "f16", 11: "f64", 16: "bf16"}
"""kernrec's data types, keyed by ONNX element type."""
_DOMAINS = ("", "ai.onnx", "com.microsoft")


@dataclass(frozen=True)
class Value:
    """Tensor of a graph."""

    shape: tuple[int, ...] | None
    dtype: str | None
    """Data type, or None if kernrec's ops do not support the type."""
    constant: bool = False


@dataclass(frozen=True)
class Node:
    """Node of a graph, which applies an ONNX operator."""

    name: str
    kind: str
    """ONNX operator type. The domain is included unless it is the standard one."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    """Attributes of the node (numbers, lists of numbers, and text), keyed by name."""


@dataclass(frozen=True)
class Graph:
    """Nodes of a model in execution order, and its tensors keyed by name."""

    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    outputs: tuple[str, ...]
    readers: Mapping[str, tuple[int, ...]]
    """Indices of the nodes that read each tensor, keyed by tensor name."""
    writers: Mapping[str, int]
    """Index of the node that writes each tensor, keyed by tensor name."""

    def value(self, node: Node, position: int) -> Value:
        """Return the input of a node at `position`. A missing input has an unknown shape and data type."""
        name = node.inputs[position] if position < len(node.inputs) else ""
        return self.values.get(name, Value(None, None))

    def result(self, node: Node) -> Value:
        return self.values.get(node.outputs[0] if node.outputs else "", Value(None, None))

    def writer(self, node: Node, position: int) -> Node | None:
        """Return the node that computes input number `position` of `node`, or None if no node does."""
        name = node.inputs[position] if position < len(node.inputs) else ""
        return self.nodes[self.writers[name]] if name in self.writers else None

    def only_reader(self, node: Node) -> Node | None:
        """Return the node that reads a node's first output, or None if the output has other uses."""
        name = node.outputs[0]
        readers = self.readers.get(name, ())
        return self.nodes[readers[0]] if len(readers) == 1 and name not in self.outputs else None


def load_graph(path: Path, fixed: Mapping[str, int]) -> Graph:
    """Read the graph of an ONNX model, and infer the shapes of its tensors.

    Args:
        fixed: Values of the model's symbolic dimensions, keyed by dimension name.

    Raises:
        UsageError: The file is invalid or too large, or a symbolic dimension has no value.
        KernrecError: The package `onnx` is not installed.
    """
    onnx = import_optional("onnx", "an .onnx workload", "onnx")
    if (size := path.stat().st_size) > MOST_BYTES:
        raise UsageError(f"{path} has {size >> 20} MiB; at most {MOST_BYTES >> 20} MiB are read")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception:  # protobuf's errors do not help users.
        raise UsageError(f"{path} is not an ONNX model") from None
    if not model.graph.node:
        raise UsageError(f"{path} has no nodes")
    _fix(path, model.graph, fixed)
    for tensor in model.graph.initializer:
        if prod(tensor.dims) > _SMALL:
            tensor.ClearField("raw_data")
            for values in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
                tensor.ClearField(values)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception as error:  # Shape inference raises various C++ errors, so catch all.
        reason = str(error).strip().splitlines() or ["no reason given"]
        raise UsageError(f"{path}: shapes cannot be inferred: {short(reason[0])}") from None
    return _graph(onnx, inferred)


def _fix(path: Path, graph: Any, fixed: Mapping[str, int]) -> None:
    """Set the symbolic dimensions of the model's inputs. Raise `UsageError` if one has no value in `fixed`."""
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    still: dict[str, str] = {}
    names: set[str] = set()
    for value in inputs:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                continue
            name = dim.dim_param or f"{value.name}.{axis}"
            names.add(name)
            if name in fixed:
                dim.dim_value = fixed[name]
            else:
                still.setdefault(name, value.name)
    if strange := next((name for name in fixed if name not in names), None):
        raise UsageError(
            f"--shape {short(strange)}: {path} has no such open dimension; it has "
            f"{', '.join(sorted(map(short, names))) or 'none'}"
        )
    if still:
        open_dims = ", ".join(f"{short(name)} of input {short(value)}" for name, value in list(still.items())[:4])
        example = ",".join(f"{name}=1" for name in still)
        raise UsageError(f"{path} has open dimensions: {open_dims}; set them, for example --shape {example:.120}")


def _graph(onnx: Any, graph: Any) -> Graph:
    values: dict[str, Value] = {}
    for value in (*graph.value_info, *graph.input, *graph.output):
        tensor = value.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
        stated = tensor.HasField("shape") and all(dim >= 0 for dim in dims)
        values[value.name] = Value(tuple(dims) if stated else None, _DTYPES.get(tensor.elem_type))
    for tensor in graph.initializer:
        values[tensor.name] = Value(tuple(tensor.dims), _DTYPES.get(tensor.data_type), True)
    nodes: list[Node] = []
    readers: dict[str, list[int]] = defaultdict(list)
    for node in graph.node:
        kind = node.op_type if node.domain in _DOMAINS else f"{node.domain}.{node.op_type}"
        attributes = {
            each.name: onnx.helper.get_attribute_value(each)
            for each in node.attribute
            if each.type in (1, 2, 3, 6, 7)  # Types FLOAT, INT, STRING, FLOATS and INTS
        }
        name = node.name or (node.output[0] if node.output else kind)
        made = Node(name, kind, tuple(node.input), tuple(node.output), attributes)
        whole = all(values.get(name, Value(None, None)).constant for name in made.inputs if name)
        if whole and (made.inputs or made.kind == "Constant"):
            # If all inputs are constant, runtimes compute the node once, at loading. So its outputs are constant.
            for name in made.outputs:
                before = values.get(name, Value(None, None))
                values[name] = Value(before.shape, before.dtype, True)
        for name in made.inputs:
            readers[name].append(len(nodes))
        nodes.append(made)
    return Graph(
        tuple(nodes),
        values,
        tuple(value.name for value in graph.output),
        {name: tuple(places) for name, places in readers.items()},
        {name: place for place, node in enumerate(nodes) for name in node.outputs},
    )


def tally(kinds: Counter[str]) -> list[str]:
    """Format the number of nodes of each type, one line per type and most frequent first."""
    return [f"{count} of {kind}" for kind, count in kinds.most_common()]
