"""Compare the complete answers of two versions to random queries.

    git worktree add ../before main && python tools/equal_answers.py --before ../before [--queries 10000] [--seed 1]
    python tools/equal_answers.py --release 0.2.0 [--queries 10000]
    python tools/equal_answers.py --pinned [--update]

`--release` compares with a release's commit, except for the differences in `tools/changed_answers.toml`. `--pinned`
compares with the answers in `tools/pinned_answers.json.gz`, which `--update` writes again after an intended change.

Each checkout runs in a separate process (with its `.venv` if it has one), without user databases. The comparison covers
every recommendation, number, note and error; numbers may differ by a relative 1e-12. The exit status is 1 if an answer
differs.
"""

import argparse
import gzip
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from random_queries import Query, random_queries

from kernrec.kernel.library import find_kernel

ROOT = Path(__file__).resolve().parents[1]
CHANGES = ROOT / "tools" / "changed_answers.toml"
PINNED = ROOT / "tools" / "pinned_answers.json.gz"
PINNED_QUERIES, PINNED_OF_A_KIND, PINNED_SEED = 120, 2, 5
EQUAL = 1e-12
"""Maximum relative difference between two numbers that count as equal."""
_SHARES = ("slowdown", "energy_saved")
"""Keys of numbers that are a ratio minus one. Add one before a comparison: near zero, rounding looks large."""
_NUMBERS = re.compile(r" is (-?[\d.]+(?:e[-+]?\d+)?), now (-?[\d.]+(?:e[-+]?\d+)?)$")
_SHOWN, _LINES = 20, 6
"""Maximum number of queries whose differences are printed, and of lines per query."""

_ANSWER = """
import json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # libraries print, too
import numpy as np
import kernrec
from kernrec.errors import KernrecError
from kernrec.recommender import Query, Recommender, Request
from kernrec.recommender.many import answer_many

def plain(value):
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return dict(value) if hasattr(value, "keys") else value.key if hasattr(value, "key") else str(value)

def answer(recommender, asked):
    query = Query(**asked["query"])
    dtype, layout = asked["dtype"], asked["layout"]
    if "shapes" in asked:
        several = asked["op"], asked["gpu"], asked["shapes"], query
        return vars(answer_many(recommender, *several, dtype=dtype, layout=layout))
    if "kernel" in asked:
        request = Request(asked["gpu"], None, asked["kernel"], asked["shape"], dtype, layout, query)
        return recommender.answer(request).as_dict()
    return recommender.recommend(asked["op"], asked["gpu"], asked["shape"], dtype, layout, query).as_dict()

print(json.dumps(kernrec.__file__), file=answers, flush=True)
for line in open(sys.argv[1], encoding="utf-8"):
    recommender = Recommender([])  # one for each GPU: its tables would fill the memory
    for asked in json.loads(line):
        try:
            said = answer(recommender, asked)
        except KernrecError as error:
            said = {"refused": str(error), "kind": type(error).__name__}
        except Exception:
            said = {"crashed": traceback.format_exc().splitlines()[-4:]}
        print(json.dumps(said, default=plain), file=answers, flush=True)
"""


@dataclass(frozen=True)
class Change:
    """Intended difference from a release. An empty field matches everything."""

    why: str
    paths: str = ""
    """Regular expression for the text of a difference. The text begins with the path of the value."""
    ops: Sequence[str] = ()
    gpus: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    most: float = 0.0
    """Largest allowed ratio of the new to the old number, or of the old to the new one. 0 allows any difference."""

    def covers(self, query: dict[str, Any], difference: str) -> bool:
        """Return whether the change explains a difference between two answers to a query."""
        op = query.get("op") or find_kernel(query["kernel"]).op
        matched = ((self.ops, op), (self.gpus, query["gpu"]), (self.dtypes, query["dtype"]))
        if not all(not names or name in names for names, name in matched) or not re.search(self.paths, difference):
            return False
        return not self.most or self._allows(difference)

    def _allows(self, difference: str) -> bool:
        if (numbers := _NUMBERS.search(difference)) is None:
            return False
        old, new = map(float, numbers.groups())
        if difference.partition(" ")[0].endswith(_SHARES):
            sign = -1.0 if "energy_saved" in difference else 1.0
            old, new = 1.0 + sign * old, 1.0 + sign * new
        return bool(old) and 1.0 / self.most <= new / old <= self.most


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    other = parser.add_mutually_exclusive_group(required=True)
    other.add_argument("--before", type=Path, help="the other checkout")
    other.add_argument("--release", help="version whose commit is in git's history")
    other.add_argument("--pinned", action="store_true", help=f"the answers in {PINNED.name}")
    parser.add_argument("--update", action="store_true", help="write the pinned answers anew")
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.pinned and options.update:
        by_gpu = random_queries(PINNED_QUERIES, PINNED_SEED, PINNED_OF_A_KIND)
        answers = [line.rstrip() for line in _answers(ROOT, by_gpu)]
        PINNED.write_bytes(gzip.compress(json.dumps({"queries": by_gpu, "answers": answers}).encode(), mtime=0))
        print(f"{PINNED.name}: {len(answers)} answers, {PINNED.stat().st_size} bytes")
        return 0
    if options.pinned:
        document = json.loads(gzip.decompress(PINNED.read_bytes()))
        status = _report(document["queries"], document["answers"], _answers(ROOT, document["queries"]), ())
        if status:
            print("if these changes are meant, run python tools/equal_answers.py --pinned --update")
        return status
    if options.release is None:
        return compare(options.before, options.queries, options.seed, ())
    changes = tomllib.loads(CHANGES.read_text(encoding="utf-8")).get(options.release, [])
    with tempfile.TemporaryDirectory(prefix="kernrec-release-") as name:
        installed = install_release(options.release, Path(name))
        if installed is None:
            print(f"skipped: no commit 'Release {options.release}' in git's history")
            return 0
        return compare(installed, options.queries, options.seed, [Change(**each) for each in changes])


def install_release(version: str, folder: Path) -> Path | None:
    """Build and install the commit `Release VERSION` in a folder. Return its path, or None without such a commit."""
    git = ["git", "-C", str(ROOT)]
    log = [*git, "log", "--max-count=1", "--format=%H", f"--grep=^Release {re.escape(version)}$"]
    commit = subprocess.run(log, capture_output=True, text=True, check=False).stdout.strip()
    if not commit:
        return None
    archive = subprocess.run([*git, "archive", commit], capture_output=True, check=True)
    (folder / "source").mkdir()
    subprocess.run(["tar", "-x", "-C", folder / "source"], input=archive.stdout, check=True)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder / "installed")]
    subprocess.run([*install, str(folder / "source")], check=True)
    return folder / "installed"


def compare(before: Path, count: int, seed: int, changes: Sequence[Change]) -> int:
    """Compare answers to `count` random queries. Return 1 if one differs, or 2 if `before` is not a checkout."""
    if not (before / "kernrec" / "__init__.py").is_file():
        print(f"equal_answers: {before} is not a checkout of kernrec", file=sys.stderr)
        return 2
    by_gpu = random_queries(count, seed)
    return _report(by_gpu, _answers(before.resolve(), by_gpu), _answers(ROOT, by_gpu), changes)


def _report(
    by_gpu: Sequence[Sequence[Query]], before: Iterable[str], now: Iterable[str], changes: Sequence[Change]
) -> int:
    """Print how the answers to queries differ. Return 1 if there is a difference that no change covers."""
    queries = [query for some in by_gpu for query in some]
    counts: Counter[str] = Counter()
    for query, old, new in zip(queries, before, now, strict=True):
        counts.update(word for word in ("shapes", "kernel") if word in query)
        every = list(json_differences(json.loads(old), json.loads(new))) if old.rstrip() != new.rstrip() else []
        differences = [line for line in every if not any(change.covers(query, line) for change in changes)]
        if differences and counts["different"] < _SHOWN:
            print(f"DIFFERENT {json.dumps(query)}", *(f"    {line[:300]}" for line in differences[:_LINES]), sep="\n")
            if len(differences) > _LINES:
                print(f"    and {len(differences) - _LINES} more")
        counts["different" if differences else "changed" if every else "equal"] += 1
        if not every:
            counts.update(word for word in ("refused", "crashed") if new.startswith(f'{{"{word}"'))
    crashed = f", {counts['crashed']} crashed in both" if counts["crashed"] else ""
    crashed += f", {counts['changed']} changed on purpose" if counts["changed"] else ""
    print(
        f"{len(queries)} queries ({counts['shapes']} of several shapes, {counts['kernel']} about a kernel):"
        f" {counts['equal']} equal, {counts['different']} different;"
        f" {counts['refused']} refused by both ({counts['refused'] / len(queries):.0%}){crashed}"
    )
    return 1 if counts["different"] else 0


def _answers(tree: Path, by_gpu: Sequence[Sequence[Query]]) -> Iterator[str]:
    """Run a checkout's kernrec in another process, and yield its answers as lines of JSON."""
    with tempfile.TemporaryDirectory(prefix="kernrec-equal-") as folder:
        file = Path(folder) / "queries.jsonl"
        file.write_text("".join(f"{json.dumps(some)}\n" for some in by_gpu), encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KERNREC_")}
        environment |= {"PYTHONPATH": str(tree), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        for kind in ("CACHE", "CONFIG", "DATA", "STATE"):
            environment[f"XDG_{kind}_HOME"] = tempfile.mkdtemp(dir=folder)
        own = tree / ".venv" / "bin" / "python"
        command = [str(own if own.exists() else sys.executable), "-c", _ANSWER, str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tree) as process:
            assert process.stdout is not None
            try:
                if tree not in Path(json.loads(process.stdout.readline() or '""')).parents:
                    raise SystemExit(f"equal_answers: the kernrec of {tree} cannot be imported there")
                yield from process.stdout
                if process.wait():
                    raise SystemExit(f"equal_answers: the process of {tree} ended with status {process.returncode}")
            finally:
                process.kill()


def json_differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield descriptions of the differences between two JSON values. `path` is their path in the document."""
    if isinstance(before, dict) and isinstance(now, dict):
        yield from (f"{path}.{key} is gone" for key in before if key not in now)
        yield from (f"{path}.{key} is new" for key in now if key not in before)
        for key, old in before.items():
            if key in now:
                new = now[key]
                if key in _SHARES and type(old) is type(new) is float and _equal(1.0 + old, 1.0 + new):
                    continue
                yield from json_differences(old, new, f"{path}.{key}")
    elif isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            yield f"{path} has {len(before)} entries, now {len(now)}"
        for number, (old, new) in enumerate(zip(before, now, strict=False)):
            yield from json_differences(old, new, f"{path}[{number}]")
    elif not _equal(before, now):
        yield f"{path} is {before!r}, now {now!r}"


def _equal(before: Any, now: Any) -> bool:
    if type(before) in (int, float) and type(now) in (int, float):
        return before == now or math.isclose(before, now, rel_tol=EQUAL) or (before != before and now != now)
    return type(before) is type(now) and bool(before == now)


if __name__ == "__main__":
    sys.exit(main())
