"""A variant on one shape and one GPU, ready to be launched: code loaded, arguments packed but for the addresses."""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

from kernrec.compile import Compiled
from kernrec.errors import UsageError
from kernrec.kernel import bind_launches, workspaces
from kernrec.kernel.packed_arguments import PackedArguments
from kernrec.op import Problem
from kernrec.profile.kernel_code import dynamic_shared_bytes
from kernrec.profile.launch_profile import entry_name
from kernrec.run.arrays import Expected
from kernrec.run.driver import Driver
from kernrec.run.variant import Variant


class LoadedVariant:
    """Code on one GPU; its kernels are looked up once."""

    def __init__(self, driver: Driver, compiled: Compiled) -> None:
        self._driver, self.compiled = driver, compiled
        self._module = driver.load(compiled)
        self._functions: dict[tuple[str, int], int] = {}
        self._shared: dict[str, int] = {}

    def function(self, entry: str, shared_bytes: int) -> int:
        """A kernel of it that may take so much dynamic shared memory."""
        if (entry, shared_bytes) not in self._functions:
            # The limit is an attribute of the kernel, so it is never lowered.
            self._shared[entry] = max(shared_bytes, self._shared.get(entry, 0))
            name = entry_name(self.compiled.resources, entry)
            self._functions[entry, shared_bytes] = self._driver.function(self._module, name, self._shared[entry])
        return self._functions[entry, shared_bytes]


class PackedLaunches:
    """The launches of a variant on a problem, with their arguments packed, and where in these the addresses go.

    The packed arguments are shared by all calls: who queues launches holds a lock.
    """

    def __init__(self, driver: Driver, loaded: LoadedVariant, variant: Variant, problem: Problem, sm: int) -> None:
        self.workspace_bytes = 0
        offsets = {}
        for space in workspaces(variant.kernel, variant.config, problem, sm):
            offsets[space.name] = self.workspace_bytes
            self.workspace_bytes += -(-space.bytes // 256) * 256
        self._launch: Callable[..., Any] = driver.launch
        self._packed: list[PackedArguments] = []
        self.queued: list[tuple[Any, ...]] = []
        """The driver's arguments of each launch: kernel, grid, block, shared memory, packed arguments."""
        for bound in bind_launches(variant.kernel, variant.config, problem, sm):
            packed = PackedArguments.bound(bound)
            shared = dynamic_shared_bytes(variant.kernel, bound, loaded.compiled)
            function = loaded.function(bound.entry, shared)
            self._packed.append(packed)
            self.queued.append((function, *bound.grid, *bound.block, shared, packed.address))
        outputs = problem.definition.outputs
        inputs = [name for name in problem.tensors if name not in outputs]
        output = next(name for name in problem.tensors if name in outputs)
        self._inputs = [(slot, i) for i, name in enumerate(inputs) for slot in self._slots(name)]
        self._output = self._slots(output)
        self._workspaces = [(slot, offset) for name, offset in offsets.items() for slot in self._slots(name)]

    def _slots(self, tensor: str) -> list[Any]:
        """The places of a tensor's address in the arguments of all launches."""
        return [value for packed in self._packed for value in packed.slots.get(tensor, ())]

    def queue(self, addresses: Sequence[int], output: int, workspace: int, stream: int) -> None:
        """Queues them in a stream: addresses of the inputs in order, of the output, and of the workspaces."""
        for slot, place in self._inputs:
            slot.value = addresses[place]
        for slot in self._output:
            slot.value = output
        for slot, offset in self._workspaces:
            slot.value = workspace + offset
        for function, gx, gy, gz, bx, by, bz, shared, arguments in self.queued:
            self._launch(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, 0)


class PreparedCall:
    """A variant on a problem, on one device: the arrays that it takes, and its launches."""

    def __init__(
        self,
        driver: Driver,
        loaded: LoadedVariant,
        variant: Variant,
        problem: Problem,
        place: "tuple[int, Workspaces]",
    ) -> None:
        """Make one; `place` is the device, and the memory for workspaces there."""
        self.variant, self.problem = variant, problem
        self.device, self._workspaces = place
        tensors = [Expected(t.name, t.shape, t.dtype, t.bytes) for t in problem.tensors.values()]
        outputs = problem.definition.outputs
        self.inputs = tuple(tensor for tensor in tensors if tensor.name not in outputs)
        self.output = next(tensor for tensor in tensors if tensor.name in outputs)
        self._input_sizes = [(place, tensor.bytes) for place, tensor in enumerate(self.inputs)]
        self.out = Expected("out", self.output.shape, self.output.dtype, self.output.bytes)
        """The output under the name that callers give it."""
        self.launches = PackedLaunches(driver, loaded, variant, problem, driver.sm(self.device))
        self._lock = Lock()

    def run(self, addresses: Sequence[int], output: int, stream: int) -> None:
        """Queues the launches in a stream: addresses of the inputs in order, and of the output."""
        launches = self.launches
        with self._lock:  # the driver copies the packed arguments
            size = launches.workspace_bytes
            workspace = self._workspaces.address(size, self.device, stream) if size else 0
            launches.queue(addresses, output, workspace, stream)

    def check_overlap(self, addresses: Sequence[int], output: int) -> None:
        """Raises `UsageError` if the output lies in the memory of an input."""
        end = output + self.output.bytes
        for place, size in self._input_sizes:
            if addresses[place] < end and output < addresses[place] + size:
                raise UsageError(
                    f"out lies in the memory of {self.inputs[place].name}, which is still read while out is written;"
                    " expected memory of its own"
                )


class Workspaces:
    """Memory for the partial results of launches, one piece for each stream: there, one call follows the other.

    A piece that became too small is kept, for launches that use it may still be queued; a larger one is at least twice
    as large, so that all pieces together take at most twice what is needed.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pieces: dict[tuple[int, int], list[tuple[int, Any]]] = {}

    def address(self, size: int, device: int, stream: int) -> int:
        """The address of at least so many bytes."""
        pieces = self._pieces.setdefault((device, stream), [])
        if not pieces or pieces[-1][0] < size:
            grown = max(size, 2 * pieces[-1][0] if pieces else 0)
            pieces.append((grown, self._driver.allocate(grown)))
        address: int = pieces[-1][1].ptr
        return address


def by_name(inputs: Sequence[str], arrays: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Arrays in the order of the inputs, where some are given by name; `UsageError` where that does not fit."""
    from kernrec.errors import unknown

    for name in named:
        if name not in inputs:
            raise unknown("array", name, inputs)
    by_input = dict(zip(inputs, arrays, strict=False))
    if twice := [name for name in named if name in by_input]:
        raise UsageError(f"{twice[0]} was given twice, by place and by name")
    by_input |= named
    if missing := [name for name in inputs if name not in by_input]:
        raise UsageError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; the arrays are {', '.join(inputs)}"
        )
    return tuple(by_input[name] for name in inputs)
