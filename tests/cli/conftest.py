"""What all tests of the command line share."""

import pytest


@pytest.fixture(autouse=True)
def no_progress_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress of commands that run in this process starts after an hour: what they print does not depend on load."""
    monkeypatch.setattr("kernrec.cli.steps._FIRST_S", 3600.0)
