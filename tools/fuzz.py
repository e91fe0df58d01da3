"""Give kernrec damaged files of every format it reads, and look for anything but an answer or one line of error.

    python tools/fuzz.py [--cases 10000] [--seed 1] [--formats ptx,spec,...] [--samples FOLDER] [--keep FOLDER]

A case fails when the reader raises anything but a kernrec error of one line, takes more than 10 s or 512 MB, starts a
program, opens a connection, writes outside of the case's folder, or leaves temporary files behind. What kernrec reads
in a process of its own is read in a fork here: where DuckDB crashes that process, or it is stopped by its limit of CPU
time, the user gets one line, so the case counts under `ended` and not as failed. Undamaged samples come first and must
be read. Prints a row per format and exits 1 when a case failed; `--keep` stores the failing inputs.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fuzz_formats import Format, formats
from fuzz_sharing import more_formats

from kernrec import paths
from kernrec.errors import KernrecError
from tests.helpers.reading import reading_here

SECONDS = 10
BYTES = 512 << 20
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
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
        self._data = _resident() + BYTES
        for folder in (self._temporary, self._start):
            folder.mkdir()
        tempfile.tempdir = str(self._temporary)
        os.chdir(self._start)

    def failure(self, fmt: Format, content: bytes) -> str | None:
        """What is wrong with how a file is read; "ended" where a process of its own ended; None where nothing is."""
        shutil.rmtree(self._case, ignore_errors=True)
        self._case.mkdir()
        (self._case / fmt.file).write_bytes(content)
        wrong = self._forked(fmt) if fmt.apart else self._read(fmt)
        left = [*self._start.iterdir(), *self._temporary.iterdir()]
        for path in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if left and wrong != "ended":
            return wrong or f"left behind: {[str(path) for path in left]}"
        return wrong

    def _read(self, fmt: Format) -> str | None:
        self._guard.seen.clear()
        try:
            with _limit(resource.RLIMIT_DATA, self._data), _seconds(SECONDS), self._guard.watching(*self._places):
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
        receiving, sending = os.pipe()
        if (pid := os.fork()) == 0:
            with suppress(BaseException):
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # DuckDB's own words on a crash
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                spent = resource.getrusage(resource.RUSAGE_SELF)
                most = int(spent.ru_utime + spent.ru_stime) + SECONDS + 2  # where DuckDB does not come back to Python
                resource.setrlimit(resource.RLIMIT_CPU, (most, most))
                os.write(sending, json.dumps(self._read(fmt)).encode()[:60000])
            os._exit(0)
        os.close(sending)
        end_s = time.monotonic() + 30 * SECONDS  # of the clock, on a machine that others use
        while (status := os.waitpid(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > end_s:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                os.close(receiving)
                return f"more than {SECONDS} s, and does not stop"
            time.sleep(0.002)
        with os.fdopen(receiving, "rb") as file:
            answer = file.read()
        return "ended" if os.WIFSIGNALED(status[1]) or not answer else json.loads(answer)


def run(runner: Runner, fmt: Format, cases: int, seed: int, keep: Path | None) -> tuple[int, int]:
    """Reads the samples of one format, then damaged ones; how many failed, and how many processes ended."""
    chance = random.Random(f"{fmt.name} {seed}")
    shown: dict[str, int] = {}
    ended = 0
    for number in range(-len(fmt.samples), cases):
        content = fmt.samples[number] if number < 0 else fmt.damage(chance.choice(fmt.samples), chance)
        wrong = runner.failure(fmt, content)
        if wrong == "ended" and number >= 0:
            ended += 1
        elif wrong is not None:
            kind = wrong.strip().split("\n")[-1][:100]
            if kind not in shown:
                print(f"{fmt.name} case {number}: {wrong.rstrip()}", file=sys.stderr, flush=True)
                if keep:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{fmt.name}-{seed}-{number}{Path(fmt.file).suffix}").write_bytes(content)
            shown[kind] = shown.get(kind, 0) + 1
    return sum(shown.values()), ended


def main() -> None:
    """Runs the cases."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000, help="cases a format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--formats", help="separated by commas; default: all")
    parser.add_argument("--samples", type=Path, help="folder with more samples: *.ptx, *.kernel.toml, *.t1.json, ...")
    parser.add_argument("--keep", type=Path, help="folder for inputs that failed")
    given = parser.parse_args()
    keep = given.keep.absolute() if given.keep else None
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name, reading_here():  # in a fork already
        known = {fmt.name: fmt for fmt in (*formats(given.samples, Path(name)), *more_formats(Path(name)))}
        names = given.formats.split(",") if given.formats else list(known)
        if strange := [name for name in names if name not in known]:
            parser.error(f"unknown format {strange[0]}, known are {', '.join(known)}")
        runner = Runner(Path(name))
        failed = 0
        for name in names:
            wrong, ended = run(runner, known[name], given.cases, given.seed, keep)
            print(f"{name:14s} {given.cases:8d} cases {ended:6d} ended {wrong:6d} failed", flush=True)
            failed += wrong
        os.chdir("/")
    sys.exit(1 if failed else 0)


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


def _resident() -> int:
    """Bytes of data that this process has now."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").split("\n"):
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    return BYTES


if __name__ == "__main__":
    main()
