"""Test that quick commands print no progress, and that long commands estimate the remaining time correctly."""

import io
import sys
import time

from kernrec.cli.steps import Steps


def test_quick_step_prints_nothing(capsys):
    with Steps("checking"):
        pass
    assert capsys.readouterr().err == ""


def test_time_left_is_shown_only_if_the_share_done_is_known():
    steps = Steps("reading")
    assert "reading, 0 s so far" in steps.text()
    steps.step("training", 1.0, 4.0)
    assert steps.text().startswith("training, about ")
    assert steps.text().endswith(" left")


def test_long_step_is_reported_while_it_runs(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with Steps("merging", first_s=0.01):
        while "merging" not in stream.getvalue():
            time.sleep(0.005)
    assert stream.getvalue().endswith("\n")
