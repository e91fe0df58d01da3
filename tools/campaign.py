"""Run a measuring campaign on a machine with a GPU and without a network, in sessions of a few minutes.

    bash tools/fetch_wheels.sh                                     # on this machine, once
    python3 tools/campaign.py --out "$OUT" --minutes 9 broad       # on the other machine, repeatedly

Each session measures what is missing until its time is over, and writes to the folder `--out`: `doctor.json`,
`gpu-tests.txt` (with `--tests`), `campaign.log`, and `campaign.duckdb` with all measurements so far (with a journal of
rows that the database could not store). `broad` screens the best predicted configs of all standard problems, `deep`
measures these problems at normal effort, and `truth` measures large random samples of a few problems for evaluation.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernrec.op import Problem

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / ".campaign" / "site"

PROBLEMS = tomllib.loads((ROOT / "tools" / "campaign.toml").read_text(encoding="utf-8"))
TRUTH_CONFIGS = 600


def main() -> int:
    """Install the packages, then restart this program so that it uses them. Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("plan", choices=("broad", "deep", "truth"))
    parser.add_argument("--out", type=Path, default=ROOT / ".campaign" / "out", help="folder for what is to be kept")
    parser.add_argument("--list", action="store_true", help="print the problems of the plan, and measure nothing")
    parser.add_argument("--minutes", type=float, default=9.0, help="when the whole command has to be over")
    parser.add_argument("--tests", action="store_true", help="run the tests that need a GPU first")
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--database", type=Path, default=ROOT / ".campaign" / "campaign.duckdb", help="measured into")
    parser.add_argument("--replay", type=Path, help="rehearse without a GPU: measure this database's problems again")
    arguments = parser.parse_args()
    if arguments.list:
        print(*(problem.key for _, problem in (truth() if arguments.plan == "truth" else broad())), sep="\n")
        return 0
    started = time.time()
    if "KERNREC_CAMPAIGN" not in os.environ:
        return _in_place(started)
    started = float(os.environ["KERNREC_CAMPAIGN"])
    return run(arguments, started + 60.0 * arguments.minutes)


def _in_place(started: float) -> int:
    wheels = sorted((ROOT / "wheels").glob("*.whl"))
    if wheels and not SITE.exists():
        partial = SITE.with_name("partial")
        shutil.rmtree(partial, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*command, "--target", str(partial), *map(str, wheels)], check=True)
        partial.rename(SITE)
    path = os.pathsep.join([str(SITE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "KERNREC_CAMPAIGN": str(started), "PYTHONUNBUFFERED": "1"}
    return subprocess.run([sys.executable, __file__, *sys.argv[1:]], env=environment, check=False).returncode


def run(arguments: argparse.Namespace, deadline: float) -> int:
    """Run one session of the campaign. Return exit status 1 if measuring ended with an error."""
    from kernrec.errors import KernrecError
    from kernrec.store.intake import merge_file

    out, database = arguments.out, arguments.database
    out.mkdir(parents=True, exist_ok=True)
    database.parent.mkdir(exist_ok=True)
    if arguments.tests:
        _log(out, "tests that need a GPU")
        _keep(out / "gpu-tests.txt", [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"])
    if (earlier := out / database.name).exists():
        _log(out, f"{merge_file(database, earlier)} rows of earlier runs")
    if not (out / "doctor.json").exists():
        _keep(out / "doctor.json", [sys.executable, "-m", "kernrec", "doctor", "--json"])
    _log(out, f"{arguments.plan}, {deadline - time.time():.0f} s left")
    try:
        error = measure(arguments, deadline - 20.0)  # Leave time to copy the results.
    except KernrecError as failure:
        error = str(failure)
        _log(out, error)
    if database.exists():
        shutil.copy(database, out)
    for journal in database.parent.glob("*.journal.sqlite"):
        shutil.copy(journal, out)
    return 1 if error else 0


def measure(arguments: argparse.Namespace, until: float) -> str | None:
    """Measure the configs of a plan. Return the reason if the measurements ended early, or None."""
    from kernrec.cli.progress import Lines
    from kernrec.measure.campaign.results import EFFORTS, CampaignBudget, MeasuringEffort
    from kernrec.measure.collect import collect
    from kernrec.measure.request import CollectRequest, WantedProblem

    efforts = {"truth": MeasuringEffort(TRUTH_CONFIGS, 8, drawn=True), "deep": EFFORTS["normal"]}
    planned = truth() if arguments.plan == "truth" else broad()
    wanted = CollectRequest(
        problems=None if arguments.replay else [WantedProblem(*each) for each in planned],
        database=arguments.database,
        gpu=arguments.gpu,
        recording=arguments.replay,
        effort=efforts.get(arguments.plan, EFFORTS["quick"]),
        budget=CampaignBudget(seconds=max(1.0, until - time.time())),
    )
    collected = collect(wanted, Lines().show)
    for result in collected.results:
        best = f"{result.best.latency_s:.3e} s" if result.best else "none"
        lowest_energy = f"{result.lowest_energy.energy_j:.3e} J" if result.lowest_energy else "no energy"
        counts = f"{result.measured} rows, {result.earlier} before"
        _log(arguments.out, f"{result.problem}: {counts}, {best}, {lowest_energy} {result.failures}")
    ended = f"{collected.leftover} left behind before; {collected.error or 'no error'}"
    _log(arguments.out, f"{collected.stored} rows stored, {ended}")
    return collected.error


def broad() -> "list[tuple[str, Problem]]":
    """Return (name, problem) of each layer of the standard workloads that has a kernel. Layers of different rows of
    `broad` in campaign.toml alternate. Repeated problems are skipped."""
    from kernrec.kernel import kernels_for
    from kernrec.op import find_op
    from kernrec.op.workload import workload

    rows = []
    for op, name, dtypes in PROBLEMS["broad"]:
        for dtype in dtypes:
            if dtype not in find_op(op).dtypes or not kernels_for(op, dtype):
                continue
            layers = workload(name).layers_of(op, dtype)
            rows.append([(f"{name} {dtype} {layer.name}", layer.problem) for layer in layers])
    by_key: dict[str, tuple[str, Problem]] = {}
    for place in range(max(map(len, rows))):
        for row in rows:
            if place < len(row) and kernels_for(row[place][1].op, row[place][1].dtype, row[place][1].layout):
                by_key.setdefault(row[place][1].key, row[place])
    return list(by_key.values())


def truth() -> "list[tuple[str, Problem]]":
    """Return (key, problem) of each problem of `truth` in campaign.toml that has a kernel."""
    from kernrec.kernel import kernels_for
    from kernrec.op import find_op, parse_shape

    problems = [find_op(op).problem(dtype, None, **parse_shape(shape)) for op, dtype, shape in PROBLEMS["truth"]]
    return [(p.key, p) for p in problems if kernels_for(p.op, p.dtype, p.layout)]


def _keep(path: Path, command: list[str]) -> int:
    with path.open("w") as file:
        return subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False).returncode


def _log(out: Path, text: str) -> None:
    line = f"{time.strftime('%H:%M:%S')} {text}"
    print(line, flush=True)
    with (out / "campaign.log").open("a") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
