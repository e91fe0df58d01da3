"""A config on a CUDA device: its launch sequence over each of the rotating buffers, timed, queued and checked."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from cupy.cuda import Event, Stream

from kernrec.measure.device.buffers import ProblemBuffers
from kernrec.measure.device.interface import OutputError
from kernrec.measure.device.launch import DeviceLaunch, LaunchTools, elapsed_s, record_event

_GRAPH_LAUNCHES = 256
_QUEUE_S = 15e-6
"""To queue one launch on the host, generously: so long the device is held back, or gaps would be timed."""


class LoadedCudaConfig:
    """A `LoadedConfig`. sequences: the launches of one run, for each set of buffers. held: objects to keep alive.

    memory: what they run over, None where nothing is checked. scratch: workspaces, all runs use the same.
    """

    def __init__(
        self,
        tools: LaunchTools,
        sequences: list[list[DeviceLaunch]],
        footprint_bytes: int,
        memory: ProblemBuffers | None,
        held: Any,
        scratch: Mapping[str, Any] | None = None,
        renewed: bool = False,
    ) -> None:
        self.footprint_bytes = footprint_bytes
        self.renewed = renewed
        self._tools = tools
        self._stream: Stream = tools.stream
        self._sequences = sequences
        self._memory = memory
        self._scratch = scratch or {}
        self._held = held
        self._turn = 0
        self._graphs: dict[int, Any] = {}
        self._pending: deque[tuple[Event, int]] = deque()
        self._marks: list[Event] = []

    def errors(self) -> OutputError | None:
        if self._memory is None:
            return None
        self.run()
        return self._memory.errors()

    def run(self) -> None:
        """One run over the first set of buffers, as the first launch of all finds them; waits for it."""
        assert self._memory is not None
        self._memory.forget(self._stream, self._scratch)
        self._queue(self._sequences[0])
        self._stream.synchronize()

    def times(self, launches: int) -> list[float]:
        self._tools.hold(_QUEUE_S * launches * (3 + len(self._sequences[0])))
        timed = []
        for _ in range(launches):
            if self.renewed and self._memory is not None:
                self._memory.renew(self._stream)
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
        self._sequences.clear()
        self._memory = self._held = None

    def _next(self) -> list[DeviceLaunch]:
        self._turn = (self._turn + 1) % len(self._sequences)
        return self._sequences[self._turn]

    def _queue(self, sequence: list[DeviceLaunch]) -> None:
        for launch in sequence:
            launch.queue(self._stream)

    def _graph(self, launches: int) -> Any:
        """So many runs over the rotating buffers, captured once and run once."""
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
