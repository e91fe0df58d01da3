import io
import sys
import time

from kernrec.cli.progress import Lines, Steps
from kernrec.measure.campaign.results import Progress
from kernrec.store.measurement import Measurement
from tests.helpers.sharing import USUAL


def measurement(**arguments: object) -> Measurement:
    return Measurement.from_columns(USUAL | {"config": {"a": 1}, "tier": "screen"} | arguments)


def step(done: int, **row: object) -> Progress:
    return Progress("card", "layer", "screen", done, 10, measurement=measurement(**row))


def test_progress_shows_share_done_best_time_and_failures(capsys):
    lines = Lines(every_s=0.0)
    lines.show(step(1, latency_s=2e-3))
    lines.show(step(2, latency_s=1e-3))
    lines.show(step(3, outcome="timeout"))
    assert capsys.readouterr().err.splitlines()[-1] == "card: layer, screen 3/10, best 1 ms, 1 timeout"


def test_log_has_a_line_per_tier_and_note_but_not_per_row(capsys):
    lines = Lines(every_s=3600.0)
    for done in range(1, 6):
        lines.show(step(done))
    lines.show(Progress("card", "layer", "", 0, 0, note="energy is not measured: because"))
    lines.show(Progress("card", "layer", "coarse", 1, 2, measurement=measurement()))
    captured = capsys.readouterr()
    assert captured.out == ""
    first, note, second = captured.err.splitlines()
    assert "screen 1/10" in first
    assert note == "note: energy is not measured: because"
    assert "coarse 1/2" in second


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
