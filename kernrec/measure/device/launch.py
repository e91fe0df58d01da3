"""Load compiled code, launch kernels, and time and check the launches of a config.

Arguments are packed only once, because CuPy's own packing takes longer than some kernels run.
"""

import ctypes
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cupy.cuda import Event, Stream, driver, get_elapsed_time, runtime
from cupy.cuda.function import Module

from kernrec.compile import Compiled
from kernrec.kernel import BoundLaunch, Kernel
from kernrec.kernel.binding import PackedArguments
from kernrec.measure.device.correctness import ProblemBuffers
from kernrec.measure.device.interface import MeasurementFailure, OutputError
from kernrec.profile.emulated_launch import argument_mismatch
from kernrec.ptx.ir.program import Module as Ptx
from kernrec.store.measurement import Outcome

# CUresult codes of launches that exceed the GPU's resources. The CUDA context stays usable.
_REFUSALS = {1: "invalid value", 701: "out of resources"}


def loaded_module(compiled: Compiled) -> Module:
    """Load compiled code on the device. Raise `MeasurementFailure` if the driver refuses the code."""
    module = Module()
    try:
        module.load(compiled.cubin or compiled.ptx.encode() + b"\0")
    except driver.CUDADriverError as error:
        raise MeasurementFailure(Outcome.COMPILE, f"the driver does not load the code: {error}") from None
    return module


def check_arguments(code: Ptx, names: Mapping[str, str], launches: Iterable[BoundLaunch]) -> None:
    """Raise `MeasurementFailure` if a launch passes fewer arguments than its kernel has. The device would read past the
    last argument.

    `names` are the kernels' names in the code, keyed by names in the spec.
    """
    for launch in launches:
        if mismatch := argument_mismatch(code, names[launch.entry], launch):
            raise MeasurementFailure(Outcome.CONSTRAINT, mismatch)


def fill_constants(module: Module, code: Ptx, kernel: Kernel, tensors: Mapping[str, Any], stream: Stream) -> None:
    """Queue copies of tensors to the module's `__constant__` variables. Raise `MeasurementFailure` if a variable is too
    small."""
    for name, symbol in kernel.constants.items():
        if (variable := code.variables.get(symbol)) is None:
            continue
        array = tensors[name]
        if array.nbytes > variable.size:
            text = f"__constant__ {symbol} has {variable.size} bytes, {name} of the spec has {array.nbytes}"
            raise MeasurementFailure(Outcome.CONSTRAINT, text)
        target = int(module.get_global_var(symbol))
        runtime.memcpyAsync(target, array.data.ptr, array.nbytes, runtime.memcpyDeviceToDevice, stream.ptr)


class DeviceLaunch:
    """One kernel launch with its packed arguments, ready to be queued."""

    def __init__(
        self, module: Module, entry: str, grid: Sequence[int], block: Sequence[int], shared_bytes: int,
        arguments: Iterable[Any] | PackedArguments,
    ) -> None:  # fmt: skip
        self._function = module.get_function(entry)
        self._grid, self._block, self._shared = tuple(grid), tuple(block), shared_bytes
        self._arguments = arguments if isinstance(arguments, PackedArguments) else PackedArguments(arguments)
        try:
            # CUDA refuses more than 48 KiB of shared memory unless the attribute for its maximum size is set.
            if shared_bytes:
                attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                driver.funcSetAttribute(self._function.ptr, attribute, shared_bytes)
        except driver.CUDADriverError as error:
            raise MeasurementFailure(
                Outcome.CONSTRAINT, f"{entry}: {shared_bytes} bytes of shared memory: {error}"
            ) from None

    @classmethod
    def bound(cls, module: Module, launch: BoundLaunch, entry: str, addresses: Mapping[str, int]) -> "DeviceLaunch":
        """Create a launch of the kernel `entry` of a module, with buffer addresses keyed by tensor name."""
        arguments = PackedArguments.bound(launch)
        for name in arguments.slots:
            arguments.set_address(name, addresses[name])
        return cls(module, entry, launch.grid, launch.block, launch.shared_bytes, arguments)

    def queue(self, stream: Stream) -> None:
        """Put the launch into a stream. Raise `MeasurementFailure` if the GPU refuses it."""
        try:
            driver.launchKernel(
                self._function.ptr, *self._grid, *self._block, self._shared, stream.ptr,
                self._arguments.address, 0,
            )  # fmt: skip
        except driver.CUDADriverError as error:
            if error.status in _REFUSALS:
                raise MeasurementFailure(
                    Outcome.CONSTRAINT, f"the launch was refused: {_REFUSALS[error.status]}"
                ) from None
            raise


class LaunchTools:
    """The helper kernels of reference.cu, a buffer to flush L2, and the stream for all launches."""

    def __init__(self, module: Module, stream: Stream, l2_bytes: int) -> None:
        import cupy

        self.stream = stream
        self._flush = cupy.empty(2 * l2_bytes, dtype=cupy.uint8)
        self._clock_result = cupy.zeros(2, dtype=cupy.uint64)
        self._wait_ns = ctypes.c_uint32(0)
        self._wait = DeviceLaunch(module, "wait", (1, 1, 1), (1, 1, 1), 0, [self._wait_ns])
        clock = [ctypes.c_void_p(self._clock_result.data.ptr), ctypes.c_uint32(400_000)]
        self._clock = DeviceLaunch(module, "sm_clock", (1, 1, 1), (1, 1, 1), 0, clock)

    def flush_l2(self) -> None:
        """Queue a write of twice the size of L2, which evicts all other data from L2."""
        runtime.memsetAsync(self._flush.data.ptr, 0, self._flush.nbytes, self.stream.ptr)

    def hold(self, seconds: float) -> None:
        """Let the device wait for some seconds, during which the host can queue launches."""
        self._wait_ns.value = int(seconds * 1e9)  # Queued launches have a copy of the earlier value.
        self._wait.queue(self.stream)

    def sm_clock_hz(self) -> float | None:
        """Return the SM clock in Hz, measured by a kernel after all queued work."""
        self._clock.queue(self.stream)
        self.stream.synchronize()
        cycles, nanoseconds = self._clock_result.get().tolist()
        return cycles / nanoseconds * 1e9 if nanoseconds else None


def record_event(stream: Stream) -> Event:
    event = Event()
    event.record(stream)
    return event


def elapsed_s(start: Event, end: Event) -> float:
    return float(get_elapsed_time(start, end)) / 1e3


_GRAPH_LAUNCHES = 256
_QUEUE_S = 15e-6
"""Seconds that the host may take to queue a launch. The generous value avoids gaps between launches."""


@dataclass(frozen=True)
class ConfigLaunches:
    """Launches of one config, and the objects in GPU memory that they need."""

    sequences: list[list[DeviceLaunch]]
    """Kernel launches that compute the problem once, as one list for each copy of the buffers."""
    footprint_bytes: int
    """Size of the inputs and outputs of one computation, in bytes."""
    keep_alive: Any = None
    """Objects that must exist as long as the launches."""
    scratch: Mapping[str, Any] = field(default_factory=dict)
    """Workspaces, keyed by tensor name, which all computations share."""
    renewed: bool = False
    """Whether each computation needs fresh inputs (`LoadedConfig.renewed`)."""


class LoadedCudaConfig:
    def __init__(self, tools: LaunchTools, launches: ConfigLaunches, buffers: ProblemBuffers | None = None) -> None:
        """Create a loaded config. `buffers` is None for the reference kernels, whose outputs are not checked."""
        self.footprint_bytes = launches.footprint_bytes
        self.renewed = launches.renewed
        self._tools = tools
        self._launches: ConfigLaunches | None = launches
        self._buffers = buffers
        self._turn = 0
        self._graphs: dict[int, Any] = {}
        self._pending: deque[tuple[Event, int]] = deque()
        self._marks: list[Event] = []

    @property
    def _stream(self) -> Stream:
        return self._tools.stream

    @property
    def _sequences(self) -> list[list[DeviceLaunch]]:
        return self._launches.sequences if self._launches is not None else []

    def errors(self) -> OutputError | None:
        if self._buffers is None:
            return None
        self.run()
        return self._buffers.errors()

    def run(self) -> None:
        assert self._buffers is not None
        assert self._launches is not None
        self._buffers.reset(self._stream, self._launches.scratch)
        self._queue(self._sequences[0])
        self._stream.synchronize()

    def times(self, launches: int) -> list[float]:
        self._tools.hold(_QUEUE_S * launches * (3 + len(self._sequences[0])))
        timed = []
        for _ in range(launches):
            if self.renewed and self._buffers is not None:
                self._buffers.renew(self._stream)
            self._tools.flush_l2()
            start = record_event(self._stream)
            self._queue(self._sequences[0])
            timed.append((start, record_event(self._stream)))
        self._stream.synchronize()
        return [elapsed_s(start, end) for start, end in timed]

    def back_to_back(self, launches: int) -> float:
        graph = self._graph(launches)
        self._tools.hold(8 * _QUEUE_S)
        start = record_event(self._stream)
        graph.launch(self._stream)
        end = record_event(self._stream)
        self._stream.synchronize()
        return elapsed_s(start, end) / launches

    def submit(self, launches: int) -> None:
        left = launches
        if launches >= _GRAPH_LAUNCHES:
            graph = self._graph(_GRAPH_LAUNCHES)
            while left >= _GRAPH_LAUNCHES:
                graph.launch(self._stream)
                left -= _GRAPH_LAUNCHES
        for _ in range(left):
            self._queue(self._next())
        self._pending.append((record_event(self._stream), launches))

    def outstanding(self) -> int:
        while self._pending and self._pending[0][0].done:
            self._pending.popleft()
        return sum(launches for _, launches in self._pending)

    def mark(self) -> None:
        self._marks.append(record_event(self._stream))

    def between_marks(self) -> float:
        self._stream.synchronize()
        self._pending.clear()
        first, last = self._marks[0], self._marks[-1]
        self._marks.clear()
        return elapsed_s(first, last)

    def close(self) -> None:
        self._stream.synchronize()
        self._graphs.clear()
        self._launches = self._buffers = None

    def _next(self) -> list[DeviceLaunch]:
        self._turn = (self._turn + 1) % len(self._sequences)
        return self._sequences[self._turn]

    def _queue(self, sequence: list[DeviceLaunch]) -> None:
        for launch in sequence:
            launch.queue(self._stream)

    def _graph(self, launches: int) -> Any:
        if launches not in self._graphs:
            self._stream.begin_capture()
            try:
                for _ in range(launches):
                    self._queue(self._next())
            finally:
                graph = self._stream.end_capture()
            graph.upload(self._stream)
            graph.launch(self._stream)
            self._stream.synchronize()
            self._graphs[launches] = graph
        return self._graphs[launches]
