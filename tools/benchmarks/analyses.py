"""Time whole analyses of users' kernels, from the command to the answer, and compare with another checkout.

Each command runs in a new process, without caches and databases. The checkouts take turns. The table has the medians
over rounds, the ratio to the other checkout, and whether the answers are equal except for the times of the analysis.
"""

import json
import shutil
import tempfile
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from front import ROOT, Table

from benchmarks.timing import COMMAND, environment_in, in_turns, python, ratio

_DATA = ROOT / "datasets" / "kernels"
_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_CHANGES = ("analysis_s", "profiled_s")


def run(before: Path | None = None, rounds: int = 3, only: str = "") -> None:
    """Print a row for each kernel. `before` is the checkout of another version to compare with."""
    checkouts = {"now": ROOT} | ({} if before is None else {"before": before.resolve()})
    table = Table(f"medians of {rounds} rounds, processor time")
    with tempfile.TemporaryDirectory() as name:
        for kernel, words in _commands(Path(name)).items():
            if only in kernel:
                answers: dict[str, Any] = {}
                calls = {
                    which: partial(_analyze, checkout, words, Path(name, which), answers, which)
                    for which, checkout in checkouts.items()
                }
                times = in_turns(calls, rounds)
                cells: dict[str, object] = {"kernel": kernel, "configs": answers["now"]["profiled"]}
                cells |= {f"{which} [s]": median(each) for which, each in times.items()}
                if before is not None:
                    cells["now / before"] = ratio(times["now"], times["before"])
                    cells["answers"] = "equal" if _plain(answers["now"]) == _plain(answers["before"]) else "DIFFER"
                table.row(cells)


def _commands(folder: Path) -> dict[str, list[str]]:
    """Write the files of all kernels to a folder. Return the arguments of `kernrec analyze` for each kernel."""
    stencil = json.loads((_DATA / "stencil2d.json").read_text(encoding="utf-8"))
    for tunable in stencil["ConfigurationSpace"]["TuningParameters"]:
        tunable["Values"] = _TABLES["narrow"].get(tunable["Name"], tunable["Values"])
    (folder / "stencil2d.json").write_text(json.dumps(stencil), encoding="utf-8")
    configs = {
        "matmul": [
            {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8, "num_warps": w, "num_stages": 3}
            for m in (64, 128) for n in (64, 128) for k in (32, 64) for w in (4, 8)
        ],
        "rows": [{"WIDTH": 4096, "num_warps": w} for w in (1, 2, 4, 8, 16)],
    }  # fmt: skip
    for name, text in _TABLES["calls"].items():
        tables = ("[[configs]]\n" + "".join(f"{key} = {value}\n" for key, value in c.items()) for c in configs[name])
        (folder / f"{name}.toml").write_text(text + "".join(tables), encoding="utf-8")
    places = {"root": str(ROOT), "written": str(folder)}
    return {name: [word.format_map(places) for word in words] for name, words in _TABLES["commands"].items()}


def _analyze(checkout: Path, words: list[str], folder: Path, answers: dict[str, Any], which: str) -> None:
    folder.mkdir(exist_ok=True)
    for results in ("compile", "emulated"):
        shutil.rmtree(folder / "cache" / results, ignore_errors=True)
    database = folder / "own.duckdb"
    database.unlink(missing_ok=True)
    version = (checkout / "kernrec" / "version.py").read_text(encoding="utf-8").split('"')[-2]
    names = _TABLES["old_names"].get(version, {}) if ".py:" in words[0] else {}
    words = ["analyze", *(names.get(word, word) for word in words), "--json", "--db", str(database)]
    answers[which] = json.loads(python(COMMAND, *words, environment=environment_in(folder, checkout)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if key not in _CHANGES}
    return [_plain(each) for each in value] if isinstance(value, list) else value
