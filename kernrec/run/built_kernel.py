"""Build a callable kernel for a GPU. The kernel uses the recommended config for the shape of its arrays."""

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import product
from typing import TYPE_CHECKING, Any

from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.gpu import find_gpu
from kernrec.op import Problem
from kernrec.recommender import Query, Recommender
from kernrec.recommender.request import SCALAR_OBJECTIVES
from kernrec.run.arrays import ArrayFacts, Reader, check, loaded_readers, stream_address, view_of
from kernrec.run.driver import Driver
from kernrec.run.prepared_call import LoadedVariant, PreparedCall, Workspaces, by_name
from kernrec.run.shapes import Shapes, Target, Variant

if TYPE_CHECKING:
    import numpy as np

_MOST_CALLS = 4096
"""Maximum number of prepared calls to keep."""
_MOST_FLOPS = 4e9
"""Maximum number of floating-point operations to emulate."""


class BuiltKernel:
    """Function of arrays that runs an op. Create it with `kernrec.build`.

    kernrec compiles the best config for a shape at the first call, or earlier if you call `compile`. Compiled configs
    are cached on disk.
    """

    def __init__(self, target: Target, driver: Driver | None = None) -> None:
        """Create a kernel for the GPUs of `driver`, by default those of this machine."""
        self.target = target
        self._driver = driver
        self._readers: dict[type, Reader] = {}
        self._calls: dict[Any, PreparedCall] = {}
        """Prepared calls, keyed by the `Reader.key` of each array."""
        self._prepared: dict[tuple[int, Problem], PreparedCall] = {}
        self._loaded: dict[tuple[int, Variant], LoadedVariant] = {}
        self._workspaces: Workspaces | None = None
        self._is_compiling = _compiling_check()
        self._custom_op: Any = None
        self._register()

    def __repr__(self) -> str:
        shapes = self.target.shapes
        return f"<kernrec kernel {shapes.op.name} {shapes.dtype},{shapes.layout} for {self.target.gpu.name}>"

    def variant(self, **dims: int) -> Variant:
        """Return the kernel and config for a shape.

        Args:
            **dims: Value of each dimension that is not fixed.
        """
        return self.target.variant(self.target.shapes.problem(dims))

    def compile(self, **dims: Sequence[int]) -> None:
        """Compile the kernel for shapes now, instead of at the first call.

        Several processes compile in parallel, so a script needs the guard `if __name__ == "__main__":`.

        Args:
            **dims: Values of each dimension that is not fixed. Every combination is compiled.

        Raises:
            CompileError: A config does not compile.
            NoCompilerError: CuPy or NVRTC is missing, or a config is in Triton and Triton is missing.
        """
        from kernrec.compile import CompileError, compile_many

        target = self.target
        problems = [target.shapes.problem(dict(zip(dims, sizes, strict=True))) for sizes in product(*dims.values())]
        variants = {target.variant(problem): problem for problem in problems}
        jobs = [variant.compile_job(problem, target.gpu.sm) for variant, problem in variants.items()]
        for _, result in compile_many(jobs):
            if isinstance(result, CompileError):
                raise result

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None, **named: Any) -> Any:
        """Run the op on a GPU, and return its output. The call does not wait until the GPU has finished.

        Args:
            arrays: Inputs, in the order of the op's tensors: CuPy arrays, PyTorch tensors, or any objects with
                `__cuda_array_interface__`. All must be contiguous, aligned to 16 bytes, and on one GPU.
            out: Array for the output. By default, a new array of the first input's library.
            stream: CuPy stream, PyTorch stream, object with `__cuda_stream__`, or address of a stream. By default, the
                current stream of the first input's library.
            named: Inputs by name.

        Raises:
            UsageError: The number of arrays, or an array's shape, dtype, strides, device or alignment is wrong.
            KernrecError: There is no GPU, the GPU has another architecture, or no kernel can run the shape.
        """
        if self._is_compiling():
            return self._custom_op.traced(by_name(self.target.shapes.inputs, arrays, named), out)
        if named:
            arrays = by_name(self.target.shapes.inputs, arrays, named)
        readers, keys, addresses = self._readers, [], []
        try:
            for array in arrays if out is None else (*arrays, out):
                key, address = readers[type(array)].key(array)
                keys.append(key)
                addresses.append(address)
            call = self._calls[tuple(keys)]
        except KeyError:
            arrays, call, addresses = self._first_call(arrays, out)
            readers = self._readers
        first = readers[type(arrays[0])]
        device = call.device
        queue = first.stream(device) if stream is None else stream_address(stream)
        if out is None:
            with nullcontext() if stream is None else _working_on(arrays[0], queue):
                out = first.empty(call.output, device)
            _, target = readers[type(out)].key(out)
        else:
            target = addresses.pop()
            call.check_overlap(addresses, target)
        driver = self._driver
        assert driver is not None
        if driver.current_device() == device:
            call.run(addresses, target, queue)
        else:
            with driver.use(device):
                call.run(addresses, target, queue)
        return out

    def emulate(self, *arrays: Any, check_races: bool = True, **named: Any) -> "np.ndarray":
        """Run the op on the CPU with the config that a GPU would run. Use this to test small shapes.

        Args:
            arrays: Inputs as contiguous NumPy arrays. A bf16 input contains the raw bits as uint16.
            check_races: Whether to raise an error if the kernel has a data race in shared memory.
            named: Inputs by name.

        Returns:
            NumPy array of the output. A bf16 output contains the raw bits as uint16.

        Raises:
            UsageError: An array has the wrong shape or dtype, or the problem is too large to be emulated.
            KernrecError: No compiler is installed, or no kernel can run the shape.
        """
        from kernrec.profile.emulated_launch import emulate_config
        from kernrec.ptx import parse

        shapes, sm = self.target.shapes, self.target.gpu.sm
        problem, tensors = _host_tensors(shapes, by_name(shapes.inputs, arrays, named))
        variant = self.target.variant(problem)
        module = parse(variant.compiled(problem, sm).ptx)
        kernel, config = variant.kernel, variant.config
        emulate_config(kernel, config, problem, sm, module, tensors, count=False, check_races=check_races)
        return tensors[shapes.output]

    @property
    def torch_op(self) -> Any:
        """Custom op of PyTorch that runs this kernel, for use with `torch.compile` and `torch.export`.

        Raises `KernrecError` if PyTorch is not installed.
        """
        try:
            import torch  # noqa: F401
        except ImportError:
            raise KernrecError("a custom op of PyTorch needs PyTorch, which is not installed") from None
        self._register()
        return self._custom_op.op

    def _register(self) -> None:
        """Register the custom op if PyTorch is loaded. PyTorch cannot register it while tracing a program."""
        if self._custom_op is None and "torch" in sys.modules:
            from kernrec.run.torch_op import torch_op

            self._custom_op = torch_op(self.target, self)

    def _readable(self, array: Any, name: str) -> Any:
        """Return the array, or a view of it if no reader supports its type."""
        if type(array) in self._readers:
            return array
        self._readers = loaded_readers()  # The program may have imported another array library after the last call.
        self._is_compiling = _compiling_check()
        self._register()
        for library_type, reader in list(self._readers.items()):
            if isinstance(array, library_type):
                self._readers[type(array)] = reader
                return array
        return view_of(array, name, self._open())

    def _open(self) -> Driver:
        if self._driver is None:
            self._driver = Driver()
        if self._workspaces is None:
            self._workspaces = Workspaces(self._driver)
        return self._driver

    def _first_call(self, arrays: Sequence[Any], out: Any) -> tuple[tuple[Any, ...], PreparedCall, list[int]]:
        """Check arrays and prepare their call. Return (inputs, prepared call, addresses of inputs and `out`)."""
        driver = self._open()
        names = self.target.shapes.inputs
        readable = tuple(
            self._readable(array, names[i] if i < len(names) else "array") for i, array in enumerate(arrays)
        )
        problem = self.target.shapes.read([array.shape for array in readable])
        device = self._readers[type(readable[0])].device(readable[0])
        tensors = [tensor for tensor in problem.tensors.values() if tensor.role == "input"]
        for array, tensor in zip(readable, tensors, strict=True):
            check(self._readers[type(array)].facts(array), tensor, max(device, min(driver.current_device(), 0)))
        if (call := self._prepared.get((device, problem))) is None:
            with driver.use(device):
                call = self._prepared[device, problem] = self._prepare(driver, device, problem)
        everything = list(readable)
        if out is not None:
            everything.append(self._readable(out, "out"))
            check(self._readers[type(everything[-1])].facts(everything[-1]), call.out, device)
        keys, addresses = zip(*(self._readers[type(array)].key(array) for array in everything), strict=True)
        if len(self._calls) >= _MOST_CALLS:
            self._calls.clear()
            self._prepared = {(device, problem): call}
        self._calls[keys] = call
        return readable, call, list(addresses)

    def _prepare(self, driver: Driver, device: int, problem: Problem) -> PreparedCall:
        sm, gpu = driver.sm(device), self.target.gpu
        if sm != gpu.sm:
            raise KernrecError(
                f"GPU {device} is of architecture sm_{sm}, and the kernel was built for {gpu.title} (sm_{gpu.sm});"
                " build with gpu='auto' on this machine"
            )
        variant = self.target.variant(problem)
        if (device, variant) not in self._loaded:
            self._loaded[device, variant] = LoadedVariant(driver, variant.compiled(problem, gpu.sm))
        assert self._workspaces is not None
        place = device, self._workspaces
        return PreparedCall(driver, self._loaded[device, variant], variant, problem, place)


def _compiling_check() -> Callable[[], bool]:
    if "torch" not in sys.modules:
        return _is_compiling
    import torch

    check: Callable[[], bool] = torch.compiler.is_compiling
    return check


def _is_compiling() -> bool:
    return "torch" in sys.modules and _compiling_check()()


def _working_on(array: Any, stream: int) -> Any:
    """Return a context manager in which the array's library allocates memory for a stream."""
    if type(array).__module__.partition(".")[0] == "torch":
        import torch

        return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=array.device))
    import cupy

    return cupy.cuda.ExternalStream(stream)


def _host_tensors(shapes: Shapes, arrays: Sequence[Any]) -> "tuple[Problem, dict[str, np.ndarray]]":
    """Return (problem, tensors keyed by name) for NumPy inputs. The output is filled with zeros."""
    import numpy as np

    from kernrec.profile.tensor_values import ELEMENTS

    for name, array in zip(shapes.inputs, arrays, strict=True):
        if not isinstance(array, np.ndarray):
            raise UsageError(f"{name} is a {type(array).__name__}; emulate() takes NumPy arrays")
    problem = shapes.read([array.shape for array in arrays])
    if problem.flops > _MOST_FLOPS:
        raise UsageError(
            f"{problem.key} has {problem.flops:.2g} floating-point operations; at most {_MOST_FLOPS:.2g} are emulated:"
            " give smaller arrays"
        )
    tensors = {}
    for name, array in zip(shapes.inputs, arrays, strict=True):
        tensor = problem.tensors[name]
        strides = tuple(step // array.itemsize for step in array.strides)
        facts = ArrayFacts(array.shape, strides, array.dtype.name, -1, 0)
        check(facts, tensor, -1)
        tensors[name] = array.view(ELEMENTS[tensor.dtype])
    output = problem.tensors[shapes.output]
    tensors[shapes.output] = np.zeros(output.shape, ELEMENTS[output.dtype])
    return problem, tensors


def build_kernel(
    recommender: Recommender, shapes: Shapes, gpu: str, query: Query, driver: Driver | None = None
) -> BuiltKernel:
    """Return a kernel that can run every problem in `shapes`.

    Args:
        gpu: Name of the GPU, or `auto` for the current GPU of this machine.
        query: Objective (`latency`, `energy` or `edp`) and power limit.
        driver: Driver that launches the kernel. The default uses the GPUs of this machine.

    Raises:
        UsageError: The objective is a Pareto front, or the GPU is unknown.
        KernrecError: There is no GPU, or no kernel can run one of the shapes.
    """
    if query.objective not in SCALAR_OBJECTIVES:
        raise unknown("objective of a build, which needs one config per shape,", query.objective, SCALAR_OBJECTIVES)
    if gpu == "auto":
        driver = driver or Driver()
        gpu = driver.name(driver.current_device())
    return BuiltKernel(Target(recommender, shapes, find_gpu(gpu), query), driver)
