"""Measure processor time and memory of several contestants, which take turns so that other work slows all of them."""

import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

_PEAK = """
import atexit, sys
def report():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            sys.stderr.write("\\n" + line)
atexit.register(report)
"""
COMMAND = "import sys; sys.argv[0] = 'kernrec'; from kernrec import cli; getattr(cli, 'command', cli.main)()"
"""Python program that runs the `kernrec` command with the arguments of the process."""


def spent(call: Callable[[], object]) -> float:
    """Return the processor time in seconds that a call takes, including threads and finished child processes."""
    used = []
    for each in (lambda: None, call):
        each()
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(time.process_time() + ended.ru_utime + ended.ru_stime)
    return used[1] - used[0]


def in_turns(calls: Mapping[str, Callable[[], object]], rounds: int, warm: int = 1) -> dict[str, list[float]]:
    """Return the processor times in seconds of each call in each round. Warm-up rounds are not included."""
    every = [{name: spent(call) for name, call in calls.items()} for _ in range(warm + rounds)][warm:]
    return {name: [each[name] for each in every] for name in calls}


def ratio(times: Sequence[float], reference: Sequence[float]) -> float:
    """Return the median, over rounds, of the ratio between a time and the reference time."""
    return median(a / b for a, b in zip(times, reference, strict=True))


def python(program: str, *words: object, environment: Mapping[str, str]) -> str:
    """Run a Python program in a new process, and return its standard output. Raises `RuntimeError` if it fails."""
    # Without -P, the process would import kernrec from the working directory.
    command = [sys.executable, "-P", "-c", program, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(environment), check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-500:])
    return done.stdout


def peak_mb(program: str, *words: str, environment: Mapping[str, str]) -> float:
    """Return the largest resident set of a Python program in MB, which the program reports at its end."""
    command = [sys.executable, "-c", _PEAK + program, *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(environment))
    return float(done.stderr.rpartition("VmHWM:")[2].split()[0]) / 1024


def environment_in(folder: Path, checkout: Path | None = None) -> dict[str, str]:
    """Return the environment of a process that imports kernrec (of `checkout`), with cache and database in `folder`."""
    dropped = ("KERNREC_DB", "PYTHONDONTWRITEBYTECODE", "OPENBLAS_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment |= {"XDG_DATA_HOME": str(folder), "KERNREC_CACHE": str(folder / "cache"), "HOME": str(folder)}
    environment |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    return environment | ({} if checkout is None else {"PYTHONPATH": str(checkout)})


_SIZES = (64, 128, 256, 384, 512, 768, 1000, 1024, 2048, 3072, 4096, 6144, 8192, 14336)


def matmuls(count: int, seed: int | str = 1) -> list[dict[str, int]]:
    draw = random.Random(seed)
    return [{name: draw.choice(_SIZES) + draw.choice([0, 0, 8, 1]) for name in "mnk"} for _ in range(count)]
