"""Test that a confined process can reach only the files it needs, and no network."""

import subprocess
import sys

import pytest

from kernrec.checking.limits import Limits
from kernrec.errors import UsageError
from tests.helpers.command import environment

PROGRAM = """
import json, os, socket, sys
from pathlib import Path
import numpy
from kernrec.checking.limits import Limits, limit_process
folder = Path(sys.argv[1])
confined = limit_process(Limits(time_s=30), folder)
def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return type(error).__name__
def connect():
    socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=5)
print(json.dumps({
    "confined": confined,
    "passwd": attempt(lambda: open("/etc/passwd").read()),
    "link": attempt(lambda: open(folder / "link").read()),
    "elsewhere": attempt(lambda: open(sys.argv[3], "w")),
    "parent": attempt(lambda: open(f"/proc/{os.getppid()}/environ").read()),
    "own": attempt(lambda: (folder / "own").write_text("x")),
    "network": attempt(connect),
    "numpy": attempt(lambda: __import__("numpy.fft")),
}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
def test_sandboxed_process_cannot_reach_files_or_network(tmp_path):
    import json
    import socket

    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = str(listening.getsockname()[1])
        command = [sys.executable, "-c", PROGRAM, str(folder), port, str(tmp_path / "elsewhere")]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    ended = json.loads(done.stdout)
    if not ended.pop("confined"):
        pytest.skip("this kernel has no Landlock")
    reached = {name for name, how in ended.items() if how == "done"}
    assert reached - {"network"} == {"own", "numpy"}  # old versions of Landlock cannot restrict the network


@pytest.mark.parametrize("wrong", [{"time_s": 0.0}, {"time_s": float("nan")}, {"memory_bytes": 1000}])
def test_impossible_limits_are_refused(wrong):
    with pytest.raises(UsageError):
        Limits(**wrong)  # type: ignore[arg-type]
