"""Give kernrec damaged files of every text format it reads, and look for anything but an answer or one line of error.

    python tools/fuzz.py [--cases 10000] [--seed 1] [--formats ptx,spec,...] [--samples FOLDER] [--keep FOLDER]

Samples are this repository's own files, and whatever `--samples` holds with the same endings. A case fails when the
reader raises anything but a kernrec error of one line, takes more than 10 s or 512 MB, or leaves a file behind. Prints
a row per format and exits 1 when a case failed; `--keep` stores the failing inputs.
"""

import argparse
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kernrec.errors import KernrecError

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 10
BYTES = 512 << 20
_EDGES = (
    *("0", "-1", "1e309", "NaN", "null", "true", '""', "[]", "{}", "4294967296", "99999999999999999999", "1.5"),
    *("%", "@", "[", "]", "{", "}", ",", ":", ";", '"', "\\", "\n", "\0", "é", "\x1b", "(", ")", "**", "//", "<", "="),
)
_TOKEN = re.compile(r"\s+|[\w.%]+|.", re.DOTALL)


@dataclass(frozen=True)
class Format:
    """A format that kernrec reads."""

    name: str
    """What `--formats` calls it."""

    ending: str
    """Of its files."""

    samples: tuple[str, ...]
    """Whole files."""

    read: Callable[[Path], Any]
    """Reads a file as kernrec's commands do."""


class TooSlowError(Exception):
    """A case took longer than `SECONDS`."""


def formats(extra: Path | None) -> Iterator[Format]:
    """The formats, each with its samples; `extra`: a folder with more of them."""
    from kernrec.interop.load_spec import load_spec
    from kernrec.interop.read_results import read_results
    from kernrec.kernel.expression import parse as parse_expression
    from kernrec.measure.monitor.trace import read_trace
    from kernrec.op.workload import load_workload
    from kernrec.ptx import parse as parse_ptx

    def texts(ending: str, *patterns: str) -> tuple[str, ...]:
        paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
        paths += sorted(extra.rglob(f"*{ending}")) if extra else []
        return tuple(path.read_text(encoding="utf-8") for path in paths if path.stat().st_size < 1 << 16)

    source = ROOT / "docs" / "examples" / "blur.cu"
    yield Format("ptx", ".ptx", texts(".ptx", "docs/examples/*.ptx"), lambda path: parse_ptx(_text(path)))
    yield Format("expression", ".txt", _EXPRESSIONS, lambda path: parse_expression(_text(path)))
    yield Format(
        "spec",
        ".toml",
        texts(".kernel.toml", "docs/examples/blur.toml", "datasets/kernels/textbook/*.toml"),
        partial(load_spec, source=source),
    )
    yield Format("t1", ".json", texts(".t1.json", "datasets/kernels/*.json"), partial(load_spec, source=source))
    yield Format("workload", ".toml", texts(".workload.toml", "datasets/workloads/*.toml"), load_workload)
    yield Format("t4", ".json", (_T4,), read_results)
    yield Format("kernel-tuner", ".json", (_CACHE,), read_results)
    yield Format("trace", ".csv", (_TRACE,), read_trace)


def damaged(text: str, chance: random.Random) -> str:
    """A sample with one to four changes: of a token, of a line, or of its end."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        tokens = _TOKEN.findall(text)
        if not tokens:
            return text
        place = chance.randrange(len(tokens))
        kind = chance.randrange(7)
        if kind == 0:
            del tokens[place]
        elif kind == 1:
            tokens[place] = chance.choice(_EDGES)
        elif kind == 2:
            tokens.insert(place, chance.choice(tokens))
        elif kind == 3:
            tokens[place] *= chance.choice((2, 50, 5000))
        elif kind == 4:
            other = chance.randrange(len(tokens))
            tokens[place], tokens[other] = tokens[other], tokens[place]
        elif kind == 5:
            del tokens[place:]
        else:
            tokens[place] = chance.choice("[{(") * chance.choice((3, 3000))
        text = "".join(tokens)
    return text


def failure(fmt: Format, text: str, folder: Path) -> str | None:
    """What is wrong with how a text is read; None where nothing is."""
    path = folder / f"case{fmt.ending}"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    before = set(os.listdir(folder))
    try:
        with _seconds(SECONDS):
            fmt.read(path)
    except KernrecError as error:
        if "\n" in str(error).strip() or any(ord(c) < 32 for c in str(error)):
            return f"more than one line: {str(error)[:200]!r}"
    except TooSlowError:
        return f"more than {SECONDS} s"
    except MemoryError:
        return f"more than {BYTES >> 20} MB"
    except BaseException:  # whatever it is, it is the result
        return traceback.format_exc(limit=-2)
    left = set(os.listdir(folder)) - before
    return f"left behind: {sorted(left)}" if left else None


def run(fmt: Format, cases: int, seed: int, keep: Path | None) -> int:
    """Runs cases of one format; the number that failed."""
    chance = random.Random(f"{fmt.name} {seed}")
    shown: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        for number in range(cases):
            text = damaged(chance.choice(fmt.samples), chance)
            if (wrong := failure(fmt, text, Path(name))) is not None:
                kind = wrong.strip().split("\n")[-1][:100]
                if kind not in shown:
                    print(f"{fmt.name} case {number}: {wrong.rstrip()}", file=sys.stderr)
                    if keep:
                        keep.mkdir(parents=True, exist_ok=True)
                        (keep / f"{fmt.name}-{seed}-{number}{fmt.ending}").write_text(text, errors="surrogateescape")
                shown[kind] = shown.get(kind, 0) + 1
    return sum(shown.values())


def main() -> None:
    """Runs the cases."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000, help="cases a format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--formats", help="separated by commas; default: all")
    parser.add_argument("--samples", type=Path, help="folder with more samples: *.ptx, *.kernel.toml, *.t1.json, ...")
    parser.add_argument("--keep", type=Path, help="folder for inputs that failed")
    given = parser.parse_args()
    known = {fmt.name: fmt for fmt in formats(given.samples)}
    names = given.formats.split(",") if given.formats else list(known)
    if strange := [name for name in names if name not in known]:
        parser.error(f"unknown format {strange[0]}, known are {', '.join(known)}")
    soft = _resident() + BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (soft, soft))
    failed = 0
    for name in names:
        wrong = run(known[name], given.cases, given.seed, given.keep)
        print(f"{name:14s} {given.cases:8d} cases {wrong:6d} failed")
        failed += wrong
    sys.exit(1 if failed else 0)


@contextmanager
def _seconds(most: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooSlowError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(most)
    try:
        yield
    finally:
        signal.alarm(0)


def _resident() -> int:
    """Bytes of data that this process has now."""
    for line in _text(Path("/proc/self/status")).split("\n"):
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    return BYTES


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


_EXPRESSIONS = (
    "block_x * block_y <= 1024 and (tile == 1 or block_x % 32 == 0)",
    "ceil_div(n, block_x * tile) if vector else max(1, n // block_x)",
    "min(log2(m), 16) + abs(-n) ** 2",
)
_T4 = json.dumps(
    {
        "schema_version": "1.0.0",
        "metadata": {"timeunit": "milliseconds"},
        "results": [
            {
                "timestamp": "2024-05-01 12:00:00+00:00",
                "configuration": {"bx": 32, "tile": 1},
                "times": {"compilation": 900.0, "runtimes": [0.4, 0.5, 0.6]},
                "invalidity": "correct",
                "correctness": 1,
                "measurements": [{"name": "time", "value": 0.5, "unit": ""}],
                "objectives": ["time"],
            }
        ],
    }
)
_CACHE = json.dumps(
    {
        "device_name": "NVIDIA GeForce RTX 3090",
        "kernel_name": "vector_add",
        "problem_size": [1000, 1000],
        "tune_params_keys": ["bx", "tile"],
        "tune_params": {"bx": [32, 64], "tile": [1, 2]},
        "objective": "time",
        "cache": {"32,1": {"bx": 32, "tile": 1, "time": 0.5, "times": [0.4, 0.6], "timestamp": "2024-05-01 12:00:00"}},
    }
)
_TRACE = """time_s,power_w,energy_j,sm_clock_hz,memory_clock_hz,temperature_c,reasons
0.0,100,0,1.5e9,1e9,40,
0.1,120,11,1.5e9,1e9,41,power cap
"""


if __name__ == "__main__":
    main()
