"""Fixtures shared by all command line tests."""

import pytest


@pytest.fixture(autouse=True)
def no_progress_on_a_slow_machine(monkeypatch):
    """Delay the progress display of in-process commands by an hour, so that output does not depend on load."""
    monkeypatch.setattr("kernrec.cli.progress._FIRST_S", 3600.0)


@pytest.fixture(autouse=True)
def no_reader_of_its_own(read_here):
    """Read databases in this process for in-process commands. Commands in separate processes still start a reader."""
