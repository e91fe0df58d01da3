"""An in-process cluster that runs the driver's calls one by one, so that tests can add and kill machines in between."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kernrec.cluster.gpu_actor import GpuActor, GpuLost, Reply

Event = Callable[["GpuCluster", int], None]


class GpuCluster:
    """In-process stand-in for `RayCluster` whose machines have one GPU each."""

    def __init__(self, folder: Path, machines: int, at_call: Event = lambda cluster, number: None) -> None:
        """Create a cluster of `machines` machines. `at_call` gets the cluster and the call count after each call."""
        self._folder, self._machines, self._at_call = folder, machines, at_call
        self._gpus: dict[str, GpuActor] = {}
        self._calls: list[tuple[str, str, tuple[Any, ...]]] = []
        self._dead: set[str] = set()
        self._count = 0

    def join(self) -> list[str]:
        new = [f"machine-{number}" for number in range(len(self._gpus), self._machines)]
        self._gpus |= {name: self.make_gpu(name) for name in new}
        return new

    def make_gpu(self, name: str) -> GpuActor:
        return GpuActor()

    def add_machine(self) -> None:
        """Add a machine, which joins at the next `join`."""
        self._machines += 1

    def kill(self, gpu: str) -> None:
        """Kill the machine of a GPU for good. Its later replies are lost."""
        self._dead.add(gpu)
        self._end(self._gpus[gpu])

    def call(self, gpu: str, method: str, *arguments: object) -> None:
        self._calls.append((gpu, method, arguments))

    def wait(self, seconds: float) -> Iterator[tuple[str, Reply]]:
        """Run the oldest call, and yield the replies. See `RayCluster.wait`."""
        if not self._calls:
            return
        gpu, method, arguments = self._calls.pop(0)
        if gpu in self._dead and method == "hello":  # the call waits for a new machine
            return
        replies: Iterable[Reply] = ()
        if gpu not in self._dead:
            reply = getattr(self._gpus[gpu], method)(*arguments)
            replies = reply if method == "measure" else (reply,)
        for reply in replies:
            self._count += 1
            self._at_call(self, self._count)
            if gpu in self._dead:
                break
            yield gpu, reply
        if gpu in self._dead:
            yield gpu, GpuLost("the machine died")

    def close(self) -> None:
        for name, gpu in self._gpus.items():
            if name not in self._dead:
                self._end(gpu)

    @staticmethod
    def _end(gpu: GpuActor) -> None:
        if gpu._campaign is not None:
            gpu._campaign.end()


def killed_at(number: int) -> Event:
    """Return an event that replaces the first machine with a new machine at call `number`."""

    def die(cluster: GpuCluster, call: int) -> None:
        if call == number:
            cluster.kill("machine-0")
            cluster.add_machine()

    return die
