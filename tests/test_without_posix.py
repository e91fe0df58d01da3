"""Test queries, explanations and analyses without POSIX: Windows has no fcntl, no SIGHUP and no fork."""

import subprocess
import sys
from pathlib import Path

import pytest

from kernrec.store import Database
from tests.helpers.command import environment
from tests.helpers.paths import beside
from tests.helpers.recording import make_recording

WITHOUT_POSIX = """
import concurrent.futures, multiprocessing, os, signal, subprocess, sys, tempfile, types
kill, SIGKILL = os.kill, signal.SIGKILL
subprocess.Popen.kill = lambda process: kill(process.pid, SIGKILL)  # which Windows does without a signal
for module in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[module] = None
POSIX = {
    signal: "SIGALRM SIGCHLD SIGHUP SIGKILL SIGQUIT SIGUSR1 SIGUSR2 pthread_kill pthread_sigmask setitimer sigwait",
    os: "O_CLOEXEC O_DIRECTORY fchmod fork geteuid getloadavg getpgid getuid killpg mkfifo pread pwrite "
    "sched_getaffinity setsid statvfs",
}
for module, names in POSIX.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.modules["msvcrt"] = types.SimpleNamespace(locking=lambda *_: None, LK_NBLCK=2, LK_UNLCK=0)
from kernrec.cli.app import run
sys.exit(run(sys.argv[1:]))
"""
"""Program that runs one command line without the features that Windows lacks."""

COPY_PTX = beside(__file__, "copy_ptx.ptx")


@pytest.mark.every(3)
@pytest.mark.parametrize("line", [
    "recommend --op matmul --gpu h200 --shape m=512,n=512,k=512",
    "explain --op matmul --gpu h200 --shape m=512,n=512,k=512",
    "analyze copy.ptx x=f32[4096] y=f32[4096] --grid 32 --block 128 --gpu rtx4090 --db new.duckdb",
    "check copy.ptx x=f32[256] y=f32[256] --grid 2 --block 128", "db info --db own.duckdb", "list gpus", "list ops",
    "list kernels",
])  # fmt: skip
def test_commands_without_compiler_work_without_posix(line, tmp_path):
    Database.open(tmp_path / "own.duckdb", read_only=False, create=True).close()
    done = run_without_posix(line, tmp_path)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_doctor_works_without_posix(tmp_path):
    done = run_without_posix("doctor", tmp_path)
    assert "Traceback" not in done.stderr
    assert "kernrec" in done.stdout


@pytest.mark.every(4)
def test_replay_collects_without_posix(tmp_path):
    make_recording(tmp_path / "recording.duckdb", configs=20)
    line = "collect --replay recording.duckdb --db own.duckdb --strategy quick"
    done = run_without_posix(line, tmp_path)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    assert "rows are new" in done.stdout


def run_without_posix(line: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run one command line in a folder that holds `copy.ptx`. The process has its own folder of temporary files: it
    cannot lock any, so other processes would delete them as abandoned."""
    (folder / "copy.ptx").write_text(COPY_PTX, encoding="utf-8")
    temporary = folder / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-c", WITHOUT_POSIX, *line.split()]
    variables = environment(TMPDIR=str(temporary))
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=variables, check=False)
