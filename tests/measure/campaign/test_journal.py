"""The journal: what was acknowledged is there after any crash, and one collector at a time has it."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.measure.campaign.journal import Journal, JournalError, journal_path
from tests.helpers.depth import few_examples


def drained(path: Path) -> list[dict]:
    records: list[dict] = []
    with Journal(path) as journal:
        journal.drain(records.extend)
    return records


def test_what_was_appended_is_there_after_opening_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal(path) as journal:
        journal.append({"a": 1})
        journal.append({"a": [1.5, None, "ä\n"]})
    assert drained(path) == [{"a": 1}, {"a": [1.5, None, "ä\n"]}]


def test_an_emptied_journal_is_removed_and_one_that_holds_something_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal(path) as journal:
        journal.append({"a": 1})
    assert path.exists()
    drained(path)
    assert not path.exists()


@few_examples(30)
@given(cut=st.integers(1, 200))
def test_wherever_a_crash_cuts_the_file_all_whole_lines_survive(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.journal"
    with Journal(path) as journal:
        for i in range(8):
            journal.append({"i": i, "text": "x" * i})
    content = path.read_bytes()
    stored = content[: max(0, len(content) - cut)]
    path.write_bytes(stored)
    whole = [json.loads(line) for line in stored.split(b"\n")[:-1]]
    assert drained(path) == [record for record in whole if "i" in record]


def test_appending_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal(path) as journal:
        journal.append({"a": 1})
    with path.open("ab") as file:
        file.write(b'{"a": 2, "b"')
    with Journal(path) as journal:
        journal.append({"a": 3})
    assert drained(path) == [{"a": 1}, {"a": 3}]


def test_a_second_collector_is_told_who_is_at_work(tmp_path: Path) -> None:
    database = tmp_path / "k.duckdb"
    with Journal(journal_path(database)), pytest.raises(UsageError) as caught:
        Journal(journal_path(database))
    assert str(caught.value) == (
        f"another collector (PID {os.getpid()}) is filling {database}; wait for it or give another --db"
    )
    Journal(journal_path(database)).close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a lock that a fork inherits")
def test_a_lock_that_a_dead_collector_left_to_a_process_it_was_starting_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "own.duckdb.journal"
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom kernrec.measure.campaign.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "if os.fork() == 0:\n    sys.stdin.read()\nos._exit(0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, path], stdin=subprocess.PIPE) as collector:
        assert collector.stdin is not None
        while collector.poll() is None:  # `wait` would close the standard input
            time.sleep(0.01)
        threading.Timer(0.2, collector.stdin.close).start()
        with Journal(path) as journal:
            journal.append({"row": 1})
    assert json.loads(path.read_text().splitlines()[-1]) == {"row": 1}


def test_a_journal_on_a_full_disk_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal(path) as journal:
        journal.append({"a": 1})
        whole, file = path.stat().st_size, journal._file
        journal._file = os.open("/dev/full", os.O_RDWR)
        with pytest.raises(JournalError, match="no space left on device; what was measured before is safe in it"):
            journal.append({"a": 2})
        os.close(journal._file)
        journal._file = file
    assert path.stat().st_size == whole


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"the journal .* cannot be written: (file exists|not a directory)"):
        Journal(tmp_path / "file" / "a.journal")
