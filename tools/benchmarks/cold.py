"""Compare commands in new processes with the import of NumPy and Typer, and measure their memory.

A round divides a command's processor time by that of `import numpy, typer`. The table shows the median ratio of all
rounds, and the largest resident memory. All commands run without and with a user's database of `--rows` made-up
measurements. The exit status is 1 if a command with a shape misses its aim.
"""

import json
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

from front import Table

from benchmarks.timing import COMMAND, environment_in, in_turns, matmuls, peak_mb, python, ratio

IMPORT = "import numpy, typer"
COMMANDS = {
    "matmul f32, rtx4090, --json": "recommend --op matmul --gpu rtx4090 --shape m=4096,n=4096,k=4096 --json",
    "matmul bf16, h200": "recommend --op matmul --gpu h200 --shape m=4096,n=4096,k=4096 --dtype bf16",
    "conv2d, rtx4090": "recommend --op conv --gpu rtx4090 --shape n=1,c=64,h=56,w=56,k=64,r=3,s=3",
    "resnet50, 53 convolutions": "recommend --workload resnet50 --gpu rtx4090",
}
AIMS = {False: (1.15, 50.0), True: (1.2, 60.0)}
"""(maximum ratio of times, maximum MB) of a command with a shape, keyed by whether there is a user's database."""
_FILL = """
import json, sys
from kernrec.op import find_op
from kernrec.recommender import Objective, Query, Recommender
from kernrec.store import Database
from kernrec.store.measurement import Measurement
usual = {"gpu": "rtx4090", "protocol_version": 1, "tier": "final", "session": "s", "measured_at": "2026-01-01"}
with Database.open(sys.argv[1], read_only=False, create=True) as database:
    for dims in json.loads(sys.argv[2]):
        query = Query(Objective.LATENCY, top=int(sys.argv[3]))
        answer = Recommender([]).recommend("matmul", "rtx4090", dims, "f32", query=query)
        problem = find_op("matmul").problem("f32", None, **dims)
        database.add_measurements(
            Measurement.from_columns(usual | {
                "problem": problem, "kernel": row.kernel.name, "kernel_hash": row.kernel.hash,
                "config": dict(row.config), "outcome": "ok", "latency_s": row.latency_s.value,
                "energy_j": row.energy_j.value,
            })
            for row in answer.recommendations
        )
"""
_OF_A_PROBLEM = 100
"""Number of measured configs per problem in the user's database."""


def run(rounds: int = 5, rows: int = 4362) -> int:
    """Print a row for each command. `rows` is the number of measurements in the user's database."""
    missed = False
    for has_rows in (False, True) if rows else (False,):
        with tempfile.TemporaryDirectory() as name:
            environment = environment_in(Path(name))
            title = f"beside `{IMPORT}`, medians of {rounds} rounds"
            if has_rows:
                problems = json.dumps(matmuls(-(-rows // _OF_A_PROBLEM)))
                database = Path(name, "kernrec", "kernrec.duckdb")
                database.parent.mkdir()
                python(_FILL, database, problems, _OF_A_PROBLEM, environment=environment)
                title += f", with a user's database of {rows} rows"
            calls = {IMPORT: partial(python, IMPORT, environment=environment)}
            calls |= {
                label: partial(python, COMMAND, *line.split(), environment=environment)
                for label, line in COMMANDS.items()
            }
            times, table = in_turns(calls, rounds), Table(f"\n{title}")
            for label, line in COMMANDS.items():
                times_over = ratio(times[label], times[IMPORT])
                memory = peak_mb(COMMAND, *line.split(), environment=environment)
                late = "--shape" in line and (times_over > AIMS[has_rows][0] or memory > AIMS[has_rows][1])
                missed |= late
                cells = {"times": f"{times_over:.2f}", "MB": f"{memory:.0f}", "ms": f"{median(times[label]) * 1e3:.0f}"}
                table.row({"": label, **cells, "note": "MISSED" if late else ""})
    return int(missed)
