"""Give kernrec damaged files of every format it reads, and report anything except an answer or a one-line error.

    python -m tests.fuzz [--cases 10000] [--seed 1] [--formats ptx,spec,...] [--samples FOLDER] [--keep FOLDER]

A case fails if the reader raises another error, takes more than 10 s or 512 MB, starts a program, opens a connection,
writes outside the case's folder, or leaves temporary files behind. Cases count as `ended` if kernrec's separate reader
process crashes or its CPU time runs out. Undamaged samples come first. The exit status is 1 if a case failed. `--keep`
stores failing inputs. `TMPDIR=/dev/shm` halves the time of small cases.
"""

import argparse
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kernrec import paths
from kernrec.errors import KernrecError
from tests.fuzz.formats import Format, formats
from tests.fuzz.settings_formats import more_formats
from tests.helpers.paths import TOOLS
from tests.helpers.reading import reading_here

sys.path.append(str(TOOLS))  # makes `benchmarks` importable without pytest

SECONDS = 10
BYTES = 512 << 20
_A_FORK = 500
"""Number of cases that one forked process reads."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
_NEVER = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "socket.getaddrinfo")


class TooSlowError(Exception):
    """A case took longer than `SECONDS`."""


class Guard:
    """Records forbidden actions while a case is read, such as writes and connections, from Python's audit events."""

    def __init__(self, *places: Path) -> None:
        self._places = tuple(f"{place}{os.sep}" for place in places) + tuple(map(str, places))
        self._watching = False
        self.seen: list[str] = []
        sys.addaudithook(self._heard)

    def _heard(self, event: str, values: tuple[Any, ...]) -> None:
        if not self._watching:
            return
        if event in _NEVER:
            self.seen.append(f"{event} {values!r:.200}")
        elif (event == "open" and isinstance(values[2], int) and values[2] & _WRITES) or event in _CHANGES:
            names = values[:1] if event not in ("os.rename", "os.link") else values[:2]
            self.seen += [f"{event} {name}" for name in names if not self._allowed(name)]

    def _allowed(self, name: Any) -> bool:
        if isinstance(name, int):
            return True
        path = os.path.abspath(os.fsdecode(name))
        return path == os.devnull or path.startswith(self._places)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.seen.clear()
        self._watching = True
        try:
            yield
        finally:
            self._watching = False


class Reader:
    """Forked process that reads the cases of one format, in folders below `work`."""

    def __init__(self, fmt: Format, work: Path) -> None:
        self.cases = 0
        self._answers, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=_serve, args=(fmt, work, theirs), daemon=True)
        process.start()
        theirs.close()
        self._process = process

    def read(self) -> str | None:
        """Read the case. Return what went wrong, "ended" if the forked process died, or None on success."""
        self.cases += 1
        try:
            self._answers.send(None)
            if not self._answers.poll(30 * SECONDS):  # long, because other processes share the machine
                return f"more than {SECONDS} s, and does not stop"
            answer: str | None = self._answers.recv()
        except (EOFError, OSError):
            return "ended"
        return answer

    def close(self) -> None:
        self._answers.close()
        self._process.kill()
        self._process.join()


def _serve(fmt: Format, work: Path, answers: Connection) -> None:
    """Read a case on each message from the parent. This function runs in the forked process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # hide the crash reports that DuckDB prints to standard error
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    case, temporary, start = work / "case", work / "temporary", work / "start"
    tempfile.tempdir = str(temporary)
    os.chdir(start)
    guard = Guard(case, temporary, work, paths.cache())
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    while True:
        try:
            answers.recv()
        except EOFError:
            return
        spent = resource.getrusage(resource.RUSAGE_SELF)
        # The kernel kills this process if DuckDB does not return to Python, where the timer's signal is handled.
        resource.setrlimit(resource.RLIMIT_CPU, (int(spent.ru_utime + spent.ru_stime) + SECONDS + 2, hard))
        wrong = _read(fmt, case / fmt.file, guard)
        if left := _emptied(start, temporary):
            wrong = wrong or f"left behind: {left}"
        answers.send(wrong and wrong[:60000])


def _read(fmt: Format, path: Path, guard: Guard) -> str | None:
    try:
        with _limited(), guard.watching():
            fmt.read(path)
    except KernrecError as error:
        if not str(error).isprintable():
            return f"more than one line: {str(error)[:200]!r}"
    except TooSlowError:
        return f"more than {SECONDS} s"
    except MemoryError:
        return f"more than {BYTES >> 20} MB"
    except BaseException:  # every exception is a finding
        return traceback.format_exc(limit=-3)
    return f"reached out: {guard.seen[:3]}" if guard.seen else None


@contextmanager
def _limited() -> Iterator[None]:
    """Limit the memory and CPU time of a case. CPU time does not depend on the load of the machine."""

    def stop(*_: object) -> None:
        raise TooSlowError

    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # Field 6 of proc_pid_statm(5) is the size of this process's data and stack in pages.
    pages = int(Path("/proc/self/statm").read_bytes().split()[5])
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + BYTES, hard))
    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def _emptied(*folders: Path, but: str = "") -> list[str]:
    left = [path for folder in folders for path in folder.iterdir() if path.name != but]
    for path in left:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return [str(path) for path in left]


def tried(fmt: Format, cases: int, seed: int, work: Path, keep: Path | None) -> tuple[int, int]:
    """Read a format's samples and damaged copies. Return how many cases failed, and how many ended their process."""
    chance, shown, ended = random.Random(f"{fmt.name} {seed}"), dict[str, int](), 0
    reader = Reader(fmt, work)
    for number in range(-len(fmt.samples), cases):
        content = fmt.samples[number] if number < 0 else fmt.damage(chance.choice(fmt.samples), chance)
        _emptied(work / "case", but=fmt.file)  # rewriting the file is faster than creating it
        (work / "case" / fmt.file).write_bytes(content)
        wrong = reader.read()
        if wrong is not None or reader.cases == _A_FORK:
            reader.close()
            _emptied(work / "start", work / "temporary")
            reader = Reader(fmt, work)
        if wrong == "ended" and number >= 0 and fmt.apart:
            ended += 1
        elif wrong is not None:
            kind = wrong.strip().split("\n")[-1][:100]
            if kind not in shown:
                print(f"{fmt.name} seed {seed} case {number}: {wrong.rstrip()}", file=sys.stderr, flush=True)
                if keep:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{fmt.name}-{seed}-{number}{Path(fmt.file).suffix}").write_bytes(content)
            shown[kind] = shown.get(kind, 0) + 1
    reader.close()
    return sum(shown.values()), ended


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000, help="cases a format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--formats", default="", help="separated by commas; default: all")
    parser.add_argument("--samples", type=Path, help="folder with more samples: *.ptx, *.kernel.toml, *.t1.json, ...")
    parser.add_argument("--keep", type=Path, help="folder for inputs that failed")
    arguments = parser.parse_args()
    total = [0, 0, 0]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name, reading_here():  # forks already isolate the readers
        work = Path(name)
        chosen = arguments.formats.split(",") if arguments.formats else []
        every: dict[str, Format] = {}
        for fmt in chain(formats(arguments.samples, work), more_formats(work)):
            every[fmt.name] = fmt
            if chosen and every.keys() >= set(chosen):  # making more samples takes seconds
                break
        chosen = chosen or list(every)
        if strange := [name for name in chosen if name not in every]:
            parser.error(f"unknown format {strange[0]}, there are {', '.join(every)}")
        for folder in ("case", "temporary", "start"):
            (work / folder).mkdir()
        for name in chosen:
            failed, ended = tried(every[name], arguments.cases, arguments.seed, work, arguments.keep)
            counts = (arguments.cases, ended, failed)
            total = [before + count for before, count in zip(total, counts, strict=True)]
            print("{:14} {:8} cases {:6} ended {:6} failed".format(name, *counts), flush=True)
    print("{:14} {:8} cases {:6} ended {:6} failed".format("all", *total))
    return int(total[2] > 0)


if __name__ == "__main__":
    sys.path.append(str(TOOLS))  # a tool simulates the training data of the model samples
    sys.exit(main())
