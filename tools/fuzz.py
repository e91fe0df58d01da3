"""Give kernrec damaged files of every format it reads, and look for anything but an answer or one line of error.

    python tools/fuzz.py [--cases 10000] [--seed 1] [--formats ptx,spec,...] [--samples FOLDER] [--keep FOLDER]
    python tools/fuzz.py --minutes 30 --tally FILE    go on with what FILE counts, all formats in turn

With `TMPDIR=/dev/shm` small cases take half the time.

A case fails when the reader raises anything but a kernrec error of one line, takes more than 10 s or 512 MB, starts a
program, opens a connection, writes outside of the case's folder, or leaves temporary files behind. What kernrec reads
in a process of its own is read in a fork here, which takes case after case: where DuckDB crashes that process, or it is
stopped by its limit of CPU time, the user gets one line, so the case counts under `ended` and not as failed. Undamaged
samples come first and must be read. Prints a row per format and exits 1 when a case failed; `--keep` stores the failing
inputs.
"""

import argparse
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fuzz_formats import Format, formats
from fuzz_sharing import more_formats

from kernrec import paths
from kernrec.errors import KernrecError
from kernrec.util.atomic_write import write_whole
from tests.helpers.reading import reading_here

SECONDS = 10
BYTES = 512 << 20
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
_A_FORK = 500
"""Cases that one fork reads."""
_A_TURN, _TURN_S = 25, 4.0
"""With `--minutes`: cases of a format before the next format's turn at first, and how long a turn should take."""
_GROUPS = ("apart", "here")
_NEVER = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "socket.getaddrinfo")


class TooSlowError(Exception):
    """A case took longer than `SECONDS`."""


class Guard:
    """What a case does beside reading its file, as Python's audit events tell."""

    def __init__(self) -> None:
        self.places: tuple[str, ...] | None = None
        """Folders in which a case may write; None: no case is being read."""
        self.seen: list[str] = []
        sys.addaudithook(self._heard)

    def _heard(self, event: str, values: tuple[Any, ...]) -> None:
        if self.places is None:
            return
        if event in _NEVER:
            self.seen.append(f"{event} {values!r:.200}")
        elif (event == "open" and isinstance(values[2], int) and values[2] & _WRITES) or event in _CHANGES:
            names = values[:1] if event not in ("os.rename", "os.link") else values[:2]
            self.seen += [f"{event} {name}" for name in names if not self._allowed(name)]

    def _allowed(self, name: object) -> bool:
        if isinstance(name, int):
            return True
        path = os.path.abspath(os.fsdecode(name))  # type: ignore[arg-type]
        return path == os.devnull or path.startswith(self.places or ())

    @contextmanager
    def watching(self, *places: Path) -> Iterator[None]:
        """While a case is read."""
        self.places = tuple(f"{place}{os.sep}" for place in places) + tuple(map(str, places))
        try:
            yield
        finally:
            self.places = None


class Runner:
    """Reads cases, in folders of its own.

    Args:
        work: the folder that holds them.
    """

    def __init__(self, work: Path) -> None:
        self._case, self._temporary, self._start = work / "case", work / "temporary", work / "start"
        self._places = (self._case, self._temporary, work, paths.cache())
        self._guard = Guard()
        self._reader: Reader | None = None
        for folder in (self._case, self._temporary, self._start):
            folder.mkdir()
        tempfile.tempdir = str(self._temporary)
        os.chdir(self._start)

    def failure(self, fmt: Format, content: bytes) -> str | None:
        """What is wrong with how a file is read; "ended" where a process of its own ended; None where nothing is."""
        case = self._case / fmt.file
        for path in self._case.iterdir():
            if path != case:  # which is written anew; to make a folder for each case takes longer than many a case
                _remove(path)
        case.write_bytes(content)
        wrong = self._forked(fmt) if fmt.apart else self._read(fmt)
        left = [*self._start.iterdir(), *self._temporary.iterdir()]
        for path in left:
            _remove(path)
        if left and wrong != "ended":
            return wrong or f"left behind: {[str(path) for path in left]}"
        return wrong

    def _read(self, fmt: Format) -> str | None:
        self._guard.seen.clear()
        try:
            most = _resident() + BYTES
            with _limit(resource.RLIMIT_DATA, most), _seconds(SECONDS), self._guard.watching(*self._places):
                fmt.read(self._case / fmt.file)
        except KernrecError as error:
            if not str(error).isprintable():
                return f"more than one line: {str(error)[:200]!r}"
        except TooSlowError:
            return f"more than {SECONDS} s"
        except MemoryError:
            return f"more than {BYTES >> 20} MB"
        except BaseException:  # whatever it is, it is the result
            return traceback.format_exc(limit=-3)
        return f"reached out: {self._guard.seen[:3]}" if self._guard.seen else None

    def _forked(self, fmt: Format) -> str | None:
        if self._reader is None or self._reader.fmt is not fmt or self._reader.cases == _A_FORK:
            self.close()
            self._reader = Reader(fmt, self._read)
        wrong = self._reader.read()
        if wrong is not None:
            self.close()
        return wrong

    def close(self) -> None:
        """End the fork, if there is one."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class Reader:
    """A fork that reads case after case of a format.

    Args:
        fmt: the format.
        read: what it does for each case.
    """

    def __init__(self, fmt: Format, read: Callable[[Format], str | None]) -> None:
        self.fmt, self.cases = fmt, 0
        requests, self._ask = os.pipe()
        self._answers, answer = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(self._ask)
            os.close(self._answers)
            with suppress(BaseException):
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # DuckDB's own words on a crash
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                _, hard = resource.getrlimit(resource.RLIMIT_CPU)
                while os.read(requests, 1):
                    spent = resource.getrusage(resource.RUSAGE_SELF)
                    # Where DuckDB does not come back to Python.
                    most = int(spent.ru_utime + spent.ru_stime) + SECONDS + 2
                    resource.setrlimit(resource.RLIMIT_CPU, (most, hard))
                    os.write(answer, json.dumps(read(fmt)).encode()[:60000] + b"\n")
            os._exit(0)
        os.close(requests)
        os.close(answer)
        self._pid = pid

    def read(self) -> str | None:
        """What is wrong with how the case is read; "ended" if the fork ended."""
        self.cases += 1
        os.write(self._ask, b".")
        answer = b""
        end_s = time.monotonic() + 30 * SECONDS  # of the clock, on a machine that others use
        while not answer.endswith(b"\n"):
            if not select.select([self._answers], [], [], max(0.0, end_s - time.monotonic()))[0]:
                return f"more than {SECONDS} s, and does not stop"
            if not (part := os.read(self._answers, 1 << 16)):
                return "ended"
            answer += part
        return json.loads(answer)

    def close(self) -> None:
        """End the fork."""
        os.close(self._ask)
        os.close(self._answers)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def run(runner: Runner, fmt: Format, cases: range, seed: int, keep: Path | None) -> tuple[int, int]:
    """Reads cases of one format, of which those below 0 are its samples; how many failed, and how many forks ended."""
    chance = random.Random(f"{fmt.name} {seed}")
    shown: dict[str, int] = {}
    ended = 0
    for number in cases:
        content = fmt.samples[number] if number < 0 else fmt.damage(chance.choice(fmt.samples), chance)
        wrong = runner.failure(fmt, content)
        if wrong == "ended" and number >= 0:
            ended += 1
        elif wrong is not None:
            kind = wrong.strip().split("\n")[-1][:100]
            if kind not in shown:
                print(f"{fmt.name} seed {seed} case {number}: {wrong.rstrip()}", file=sys.stderr, flush=True)
                if keep:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{fmt.name}-{seed}-{number}{Path(fmt.file).suffix}").write_bytes(content)
            shown[kind] = shown.get(kind, 0) + 1
    return sum(shown.values()), ended


class Tally:
    """Cases, ended forks and failures by format, in a file that later runs go on with.

    Args:
        path: of the file; None: in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        known = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}
        self.counts: dict[str, list[int]] = known
        """By format: cases, ended, failed, turns."""

    def turns(self, name: str) -> int:
        """How many turns a format has had."""
        return self.counts.get(name, [0, 0, 0, 0])[3]

    def add(self, name: str, cases: int, ended: int, failed: int) -> None:
        """Count a turn of a format."""
        before = self.counts.get(name, [0, 0, 0, 0])
        self.counts[name] = [old + new for old, new in zip(before, (cases, ended, failed, 1), strict=True)]
        if self._path:
            write_whole(self._path, json.dumps(self.counts).encode())

    def line(self, name: str) -> str:
        """What is known of a format."""
        cases, ended, failed, _ = self.counts[name]
        return f"{name:14s} {cases:8d} cases {ended:6d} ended {failed:6d} failed"


def in_turn(runner: Runner, chosen: list[Format], given: argparse.Namespace, tally: Tally) -> None:
    """Reads cases of all formats in turn until the time is over; each turn takes a format about as long."""
    end_s = time.monotonic() + 60 * given.minutes
    sizes = {fmt.name: _A_TURN for fmt in chosen}
    first = True
    while time.monotonic() < end_s:
        for fmt in chosen:
            started_s = time.monotonic()
            cases = range(-len(fmt.samples) if first else 0, sizes[fmt.name])
            failed, ended = run(runner, fmt, cases, given.seed + tally.turns(fmt.name), given.keep)
            runner.close()
            tally.add(fmt.name, cases.stop, ended, failed)
            took_s = time.monotonic() - started_s
            sizes[fmt.name] = max(5, int(sizes[fmt.name] * min(4.0, _TURN_S / max(took_s, 1e-3))))
            if time.monotonic() > end_s:
                break
        first = False


def main() -> None:
    """Runs the cases."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000, help="cases a format")
    parser.add_argument("--minutes", type=float, help="instead of --cases: formats in turn for so long")
    parser.add_argument("--tally", type=_path, help="file with the counts of earlier runs, which are added to")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--formats", help="separated by commas, or `apart`, `here`; default: all")
    parser.add_argument("--samples", type=_path, help="folder with more samples: *.ptx, *.kernel.toml, *.t1.json, ...")
    parser.add_argument("--keep", type=_path, help="folder for inputs that failed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, reading_here():  # in a fork already
        known = {fmt.name: fmt for fmt in (*formats(given.samples, Path(folder)), *more_formats(Path(folder)))}
        groups = {which: [fmt.name for fmt in known.values() if fmt.apart == (which == "apart")] for which in _GROUPS}
        names = groups.get(given.formats) or (given.formats.split(",") if given.formats else list(known))
        if strange := [name for name in names if name not in known]:
            parser.error(f"unknown format {strange[0]}, known are {', '.join(known)}")
        runner, tally = Runner(Path(folder)), Tally(given.tally)
        if given.minutes:
            in_turn(runner, [known[name] for name in names], given, tally)
        for name in names:
            if not given.minutes:
                cases = range(-len(known[name].samples), given.cases)
                failed, ended = run(runner, known[name], cases, given.seed, given.keep)
                runner.close()
                tally.add(name, given.cases, ended, failed)
            if name in tally.counts:
                print(tally.line(name), flush=True)
        os.chdir("/")
    total = [sum(column) for column in zip(*tally.counts.values(), strict=True)]
    print(f"{'all':14s} {total[0]:8d} cases {total[1]:6d} ended {total[2]:6d} failed")
    sys.exit(1 if total[2] else 0)


def _path(text: str) -> Path:
    return Path(text).absolute()


@contextmanager
def _limit(kind: int, soft: int) -> Iterator[None]:
    before, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (before, hard))


@contextmanager
def _seconds(most: int) -> Iterator[None]:
    """Of CPU time, so that what else a machine does is no failure."""

    def stop(*_: object) -> None:
        raise TooSlowError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, most)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _resident() -> int:
    """Bytes of data and stack that this process has now."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[5]) * resource.getpagesize()
    except OSError:
        return BYTES


if __name__ == "__main__":
    main()
