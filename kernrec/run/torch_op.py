"""Register built kernels as custom ops, so that PyTorch's compiler and `torch.export` do not trace into the kernels.

An exported program works in any process that calls `kernrec.build` with the same arguments, which determine the op's
name. Each kernel has an op that returns a new tensor, and an op `..._out` that writes to an existing tensor.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

from kernrec.run.arrays import NAMES
from kernrec.run.shapes import Target

_registered: dict[str, "TorchOp"] = {}


class TorchOp:
    """Custom ops of PyTorch that call a built kernel."""

    def __init__(self, name: str, target: Target, kernel: Callable[..., Any]) -> None:
        import torch

        self.kernel = kernel
        """Kernel that was last built with this name."""
        shapes, library = target.shapes, torch.library
        self._shapes = shapes
        self._dtype = NAMES[shapes.output_dtype][0]
        parameters = ", ".join(f"Tensor {tensor}" for tensor in shapes.inputs)

        def run(*tensors: Any) -> Any:
            return self.kernel(*(tensor.detach() for tensor in tensors))

        def run_out(*tensors: Any) -> None:
            *inputs, out = tensors
            self.kernel(*(tensor.detach() for tensor in inputs), out=out)

        def fake(*tensors: Any) -> Any:
            return tensors[0].new_empty(self._output_shape(tensors), dtype=getattr(torch, self._dtype))

        made = library.custom_op(f"kernrec::{name}", run, mutates_args=(), schema=f"({parameters}) -> Tensor")
        made.register_fake(fake)
        schema = f"({parameters}, Tensor(a!) out) -> ()"
        made_out = library.custom_op(f"kernrec::{name}_out", run_out, mutates_args=("out",), schema=schema)
        made_out.register_fake(lambda *tensors: None)
        self.op = getattr(torch.ops.kernrec, name)
        self._op_out = getattr(torch.ops.kernrec, f"{name}_out")

    def traced(self, tensors: Sequence[Any], out: Any) -> Any:
        if out is None:
            return self.op(*tensors)
        self._op_out(*tensors, out)
        return out

    def _output_shape(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """Return the output's shape. Symbolic extents of the inputs remain symbolic."""
        shapes = self._shapes
        if (axes := shapes.output_axes) is None:
            problem = shapes.read([tuple(int(extent) for extent in tensor.shape) for tensor in tensors])
            return problem.tensors[shapes.output].shape
        return [axis if isinstance(axis, int) else tensors[axis[0]].shape[axis[1]] for axis in axes]


def torch_op(target: Target, kernel: Callable[..., Any]) -> TorchOp:
    """Return the custom op of a kernel. Register it if needed."""
    name = op_name(target)
    if name not in _registered:
        _registered[name] = TorchOp(name, target, kernel)
    _registered[name].kernel = kernel
    return _registered[name]


def op_name(target: Target) -> str:
    """Return the op's name, which ends in a hash of the shapes, GPU and query."""
    shapes, query = target.shapes, target.query
    dims = {**shapes.fixed, **shapes.ranged}
    parts = (target.gpu.name, query.objective, query.power_limit_w, *(f"{name}={dims[name]}" for name in sorted(dims)))
    digest = sha256("|".join(map(str, parts)).encode()).hexdigest()[:10]
    return f"{shapes.op.name}_{shapes.dtype}_{shapes.layout}_{digest}"
