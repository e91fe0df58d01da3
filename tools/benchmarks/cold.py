"""How long and how large a command is in a new process, beside `import numpy, typer`, and how long a repeated query.

Commands and the import take turns, so that what else the machine does slows all alike: what is printed are medians of
the ratios of each round, of processor time and of the clock. Memory is the largest resident set that a process reports
of itself, shared pages included; its parent's, which Linux counts in `ru_maxrss` of a child, is not in it. Caches are
filled by a round that does not count.

known      one query asked again and again in a process, microseconds of processor time

Exits 1 when an aim is missed.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from front import Table

from .timing import Seconds, spent

IMPORT = "import numpy, typer"
COMMANDS = {
    "matmul f32, rtx4090, --json": "recommend --op matmul --gpu rtx4090 --shape m=4096,n=4096,k=4096 --json",
    "matmul bf16, h200": "recommend --op matmul --gpu h200 --shape m=4096,n=4096,k=4096 --dtype bf16",
    "conv2d, rtx4090": "recommend --op conv --gpu rtx4090 --shape n=1,c=64,h=56,w=56,k=64,r=3,s=3",
    "conv2d's own network": "recommend --op conv --gpu rtx4090",
    "resnet50, 53 convolutions": "recommend --workload resnet50 --gpu rtx4090",
    "resnet50, --json": "recommend --workload resnet50 --gpu rtx4090 --json",
}
AIMS = {"cpu": 1.4, "clock": 2.2, "memory_mb": 60.0, "network": 2.0, "known_us": 40.0}
"""Of a command with a shape, ratios; `network` of the others, processor time."""
RUN = "import sys; sys.argv = ['kernrec', *sys.argv[1:]]; from kernrec.cli import main; main()"
_PEAK = """
import atexit, sys
def report():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            sys.stderr.write("\\n" + line)
atexit.register(report)
"""


def run(rounds: int = 5) -> int:
    """Print a line for each command; `rounds`: of which medians are taken."""
    missed = False
    table = Table(f"times of `{IMPORT}`, medians of {rounds} rounds")
    with tempfile.TemporaryDirectory() as name:
        environment = environment_in(Path(name))
        lines = {IMPORT: [IMPORT]} | {label: [RUN, *line.split()] for label, line in COMMANDS.items()}
        seen: dict[str, list[Seconds]] = {label: [] for label in lines}
        for number in range(rounds + 1):
            for label, line in lines.items():
                took = spent(partial(_process, line, environment))
                if number:
                    seen[label].append(took)
        for label, line in lines.items():
            pairs = list(zip(seen[label], seen[IMPORT], strict=True))
            cpu, clock = (median(time(own) / time(base) for own, base in pairs) for time in (_cpu, _clock))
            memory = peak_mb(line, environment)
            late = cpu > (AIMS["cpu"] if "--shape" in line else AIMS["network"]) or memory > AIMS["memory_mb"]
            late = label != IMPORT and (late or ("--shape" in line and clock > AIMS["clock"]))
            missed = missed or late
            cells = {"cpu": f"{cpu:.2f}", "clock": f"{clock:.2f}", "MB": f"{memory:.0f}"}
            seconds = f"{median(map(_cpu, seen[label])) * 1e3:.0f} ms"
            table.row({"": label, **cells, "processor": seconds, "note": "MISSED" if late else ""})
    again = known_us()
    print(f"known shape: {again:.0f} us{' MISSED' if again > AIMS['known_us'] else ''}")
    print(f"aims of a shape: {AIMS['cpu']} and {AIMS['clock']} times, {AIMS['memory_mb']:.0f} MB, known")
    print(f"{AIMS['known_us']:.0f} us; of a network {AIMS['network']} times the processor time")
    return int(missed or again > AIMS["known_us"])


def known_us(repeats: int = 5, calls: int = 1000) -> float:
    """Processor time of a query that was asked before, in microseconds: the median of some runs of many calls."""
    import kernrec

    ask = partial(kernrec.recommend, "matmul", "rtx4090", m=4096, n=4096, k=4096)
    ask()

    def many() -> None:
        for _ in range(calls):
            ask()

    return median(spent(many).cpu for _ in range(repeats)) / calls * 1e6


def peak_mb(line: Sequence[str], environment: Mapping[str, str]) -> float:
    """The largest resident set that a Python program (code, then arguments) reports of itself at its end, in MB."""
    code, *arguments = line
    command = [sys.executable, "-c", _PEAK + code, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(environment))
    return float(done.stderr.rpartition("VmHWM:")[2].split()[0]) / 1024


def _process(line: Sequence[str], environment: Mapping[str, str]) -> None:
    subprocess.run([sys.executable, "-c", *line], check=True, capture_output=True, env=dict(environment))


def environment_in(folder: Path) -> dict[str, str]:
    """The environment of an installed program with the user's database aside and a cache of its own."""
    dropped = ("KERNREC_DB", "PYTHONDONTWRITEBYTECODE", "OPENBLAS_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment |= {"XDG_DATA_HOME": str(folder), "KERNREC_CACHE": str(folder / "cache")}
    return environment | {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def _cpu(seconds: Seconds) -> float:
    return seconds.cpu


def _clock(seconds: Seconds) -> float:
    return seconds.clock
