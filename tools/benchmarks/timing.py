"""How the benchmarks time: by the processor, children included, medians, and what is compared in one run."""

import os
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Seconds(NamedTuple):
    """Time that was spent."""

    clock: float
    cpu: float
    """Of the processor, with the processes that were started and have ended."""


def spent(call: Callable[[], object]) -> Seconds:
    """The time of a call."""
    cpu, clock = cpu_s(), time.perf_counter()
    call()
    return Seconds(time.perf_counter() - clock, cpu_s() - cpu)


def at_rank(times: Sequence[Seconds], rank: float = 0.5) -> Seconds:
    """The time of this rank, by the clock and of the processor apart."""
    clock, cpu = (sorted(column)[int(len(times) * rank)] for column in zip(*times, strict=True))
    return Seconds(clock, cpu)


def medians(calls: Sequence[Callable[[], object]], repeats: int) -> list[Seconds]:
    """The median of each of some calls, which take turns, so that what else the machine does slows all alike."""
    rounds = [[spent(call) for call in calls] for _ in range(repeats)]
    return [at_rank([each[i] for each in rounds]) for i in range(len(calls))]


def cpu_s() -> float:
    """Processor time of this process, of all its threads, and of the children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def all_cpu_s() -> tuple[float, float]:
    """Processor time of this process, and of those that it started, running or not (Linux), and their children."""
    user, system, *_ = os.times()
    unit, fields = os.sysconf("SC_CLK_TCK"), dict[int, list[bytes]]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # Its name, in parentheses, may hold anything.
            fields[int(path.parent.name)] = path.read_bytes().rpartition(b")")[2].split()
    ours, waiting = {os.getpid()}, [os.getpid()]
    while waiting:
        parent = waiting.pop()
        children = [process for process, some in fields.items() if int(some[1]) == parent and process not in ours]
        ours.update(children)
        waiting += children
    # Fields 14 to 17 of proc(5): user and system time, and those of the children that have ended.
    total = sum(sum(map(int, fields[process][11:15])) for process in ours if process in fields) / unit
    return user + system, max(0.0, total - user - system)


def peak_mb(who: int = resource.RUSAGE_SELF) -> float:
    """The largest resident set of this process, or of its largest child (`resource.RUSAGE_CHILDREN`)."""
    return resource.getrusage(who).ru_maxrss / 1024
