"""Prepare a kernel's launches for one shape and GPU, so that a call only has to fill in addresses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from kernrec.compile import Compiled
from kernrec.errors import UsageError
from kernrec.kernel import bind_launches, workspaces
from kernrec.kernel.binding import PackedArguments
from kernrec.op import Problem
from kernrec.profile.kernel_code import dynamic_shared_bytes
from kernrec.profile.launch_profile import entry_name
from kernrec.run.driver import Driver
from kernrec.run.shapes import Variant


class LoadedVariant:
    """Code of a variant, loaded on one GPU."""

    def __init__(self, driver: Driver, compiled: Compiled) -> None:
        self._driver, self.compiled = driver, compiled
        self._module = driver.load(compiled)
        self._functions: dict[tuple[str, int], int] = {}
        self._shared: dict[str, int] = {}

    def function(self, entry: str, shared_bytes: int) -> int:
        """Return the kernel `entry`, and permit `shared_bytes` of dynamic shared memory."""
        if (entry, shared_bytes) not in self._functions:
            # All launches of a kernel share the driver's limit, so never lower the limit.
            self._shared[entry] = max(shared_bytes, self._shared.get(entry, 0))
            name = entry_name(self.compiled.resources, entry)
            self._functions[entry, shared_bytes] = self._driver.function(self._module, name, self._shared[entry])
        return self._functions[entry, shared_bytes]


class PreparedCall:
    """Launches of a variant for one problem on one GPU."""

    def __init__(
        self,
        driver: Driver,
        loaded: LoadedVariant,
        variant: Variant,
        problem: Problem,
        place: "tuple[int, Workspaces]",
    ) -> None:
        """Load and pack a variant's launches. `place` is (number of the GPU, memory for intermediate results)."""
        self.device, self._workspaces = place
        tensors, outputs = problem.tensors.values(), problem.definition.outputs
        self.inputs = tuple(tensor for tensor in tensors if tensor.name not in outputs)
        self.output = next(tensor for tensor in tensors if tensor.name in outputs)
        self.out = replace(self.output, name="out")
        self._input_sizes = [(number, tensor.bytes) for number, tensor in enumerate(self.inputs)]
        self._launch: Callable[..., Any] = driver.launch
        self._packed: list[PackedArguments] = []
        self._queued: list[tuple[Any, ...]] = []
        """Launches: (function, grid x, y, z, block x, y, z, shared memory in bytes, address of packed arguments)."""
        sm = driver.sm(self.device)
        for bound in bind_launches(variant.kernel, variant.config, problem, sm):
            packed = PackedArguments.bound(bound)
            shared = dynamic_shared_bytes(variant.kernel, bound, loaded.compiled)
            function = loaded.function(bound.entry, shared)
            self._packed.append(packed)
            self._queued.append((function, *bound.grid, *bound.block, shared, packed.address))
        self._input_slots = [(slot, i) for i, each in enumerate(self.inputs) for slot in self._slots(each.name)]
        self._output_slots = self._slots(self.output.name)
        self._workspace_slots: list[tuple[Any, int]] = []
        self._workspace_bytes = 0
        for space in workspaces(variant.kernel, variant.config, problem, sm):
            self._workspace_slots += [(slot, self._workspace_bytes) for slot in self._slots(space.name)]
            self._workspace_bytes += -(-space.bytes // 256) * 256
        self._lock = Lock()

    def _slots(self, tensor: str) -> list[Any]:
        return [value for packed in self._packed for value in packed.slots.get(tensor, ())]

    def run(self, addresses: Sequence[int], output: int, stream: int) -> None:
        """Queue the launches in a stream. `addresses` has the inputs' addresses, in the order of the op's tensors."""
        with self._lock:  # All calls share the packed arguments, which the driver copies when a launch is queued.
            size = self._workspace_bytes
            workspace = self._workspaces.address(size, self.device, stream) if size else 0
            for slot, number in self._input_slots:
                slot.value = addresses[number]
            for slot in self._output_slots:
                slot.value = output
            for slot, offset in self._workspace_slots:
                slot.value = workspace + offset
            for function, gx, gy, gz, bx, by, bz, shared, arguments in self._queued:
                self._launch(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, 0)

    def check_overlap(self, addresses: Sequence[int], output: int) -> None:
        """Raise `UsageError` if the output's memory overlaps the memory of an input."""
        end = output + self.output.bytes
        for place, size in self._input_sizes:
            if addresses[place] < end and output < addresses[place] + size:
                raise UsageError(
                    f"out shares memory with {self.inputs[place].name}, which the kernel reads while it writes out;"
                    " give another array"
                )


class Workspaces:
    """Device memory for intermediate results of kernels. Launches in the same stream share a piece of memory.

    If a piece is too small, a larger piece is allocated. The old piece stays, because queued launches may still use
    it. Sizes at least double, so all pieces of a stream take less than twice the size of the largest piece.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pieces: dict[tuple[int, int], list[tuple[int, Any]]] = {}

    def address(self, size: int, device: int, stream: int) -> int:
        """Return the address of at least `size` bytes for launches in a stream."""
        pieces = self._pieces.setdefault((device, stream), [])
        if not pieces or pieces[-1][0] < size:
            grown = max(size, 2 * pieces[-1][0] if pieces else 0)
            pieces.append((grown, self._driver.allocate(grown)))
        address: int = pieces[-1][1].ptr
        return address


def by_name(inputs: Sequence[str], arrays: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the inputs of a call, given by position or name, in the order of the op's tensors.

    Raise `UsageError` if an input is missing, unknown or given twice.
    """
    from kernrec.errors import unknown

    for name in named:
        if name not in inputs:
            raise unknown("array", name, inputs)
    by_input = dict(zip(inputs, arrays, strict=False))
    if twice := [name for name in named if name in by_input]:
        raise UsageError(f"{twice[0]} was given twice, by position and by name")
    by_input |= named
    if missing := [name for name in inputs if name not in by_input]:
        raise UsageError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; the arrays are {', '.join(inputs)}"
        )
    return tuple(by_input[name] for name in inputs)
