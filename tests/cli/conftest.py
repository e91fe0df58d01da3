"""What all tests of the command line share."""

import pytest

from tests.helpers.reading import reading_here


@pytest.fixture(autouse=True)
def no_progress_on_a_slow_machine(monkeypatch):
    """Progress of commands that run in this process starts after an hour: what they print does not depend on load."""
    monkeypatch.setattr("kernrec.cli.steps._FIRST_S", 3600.0)


@pytest.fixture(autouse=True)
def no_reader_of_its_own():
    """Commands that run in this process read databases in it; those in processes of their own start a reader."""
    with reading_here():
        yield
