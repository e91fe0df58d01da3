"""Time, queue and check a config's launches on a CUDA device, over rotating sets of buffers."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cupy.cuda import Event, Stream

from kernrec.measure.device.buffers import ProblemBuffers
from kernrec.measure.device.interface import OutputError
from kernrec.measure.device.launch import DeviceLaunch, LaunchTools, elapsed_s, record_event

_GRAPH_LAUNCHES = 256
_QUEUE_S = 15e-6
"""Generous estimate of the host's seconds per queued launch; the device waits this long, so that no gap is timed."""


@dataclass(frozen=True)
class ConfigLaunches:
    """Launches of one config, and their objects on the device."""

    sequences: list[list[DeviceLaunch]]
    """Launches of one run, for each of the rotating sets of buffers."""
    footprint_bytes: int
    """Bytes of inputs and outputs of one run."""
    keep_alive: Any = None
    """Objects that must live as long as the launches."""
    scratch: Mapping[str, Any] = field(default_factory=dict)
    """Workspaces by name, which all runs share."""
    renewed: bool = False
    """Whether each run needs fresh inputs (`LoadedConfig.renewed`)."""


class LoadedCudaConfig:
    """A `LoadedConfig` on a CUDA device."""

    def __init__(self, tools: LaunchTools, launches: ConfigLaunches, buffers: ProblemBuffers | None = None) -> None:
        """Create a loaded config.

        Args:
            tools: Helper kernels and stream.
            launches: Launches of the config.
            buffers: Buffers of the launches; None if nothing is checked.
        """
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
        """Run once over the first set of buffers, with initial contents, and wait for the end."""
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
        """Return a CUDA graph of several runs over the rotating buffers, which is captured and warmed up once."""
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
