"""Traces: what they add up to, and that they come back as they were written."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.measure.monitor.trace import COLUMNS, TraceSample, read_trace, summarize_trace, write_trace

HEADER = ",".join(COLUMNS)


def sample(time_s: float, power_w: float | None, energy_j: float | None = None, reasons: str = "") -> TraceSample:
    return TraceSample(time_s, power_w, energy_j, 1.5e9, None, 60.0, reasons)


def test_the_counter_is_believed_before_the_samples() -> None:
    counted = summarize_trace([sample(0, 100, 50), sample(1, 300, 260)])
    sampled = summarize_trace([sample(0, 100), sample(1, 300)])
    assert (counted.energy_j, counted.energy_from) == (210, "counter")
    assert (sampled.energy_j, sampled.energy_from) == (200, "power")
    # A counter that was reset says nothing.
    assert summarize_trace([sample(0, 100, 50), sample(1, 300, 2)]).energy_from == "power"


@given(power=st.floats(1, 1000), steps=st.lists(st.floats(0.01, 10), min_size=1, max_size=30))
def test_constant_power_is_power_times_time(power: float, steps: list[float]) -> None:
    times = [sum(steps[:i]) for i in range(len(steps) + 1)]
    summary = summarize_trace([sample(time, power) for time in times])
    assert summary.energy_j == pytest.approx(power * times[-1])
    assert summary.mean_power_w == pytest.approx(power)


def test_throttling_is_a_share_of_the_samples() -> None:
    samples = [
        sample(0, 1, reasons="idle"),
        sample(1, 1, reasons="power cap|idle"),
        sample(2, 1),
        sample(3, 1),
    ]
    assert summarize_trace(samples).throttled == {"idle": 0.5, "power cap": 0.25}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_trace_comes_back_as_it_was_written(kind: str, tmp_path: Path) -> None:
    samples = [sample(0.0, 100.25, 3.5, "power cap|idle"), sample(0.125, None)]
    path = tmp_path / f"it's a trace.{kind}"
    write_trace(path, samples)
    assert read_trace(path) == samples
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "column time_s is missing"),
        (b"a,b\n1,2\n", "column time_s is missing"),
        (HEADER.encode() + b"\n", "has no samples"),
        (HEADER.encode() + b"\n0,much,,,,,\n", "row 1: power_w is 'much'"),
        (HEADER.encode() + b"\n0,nan,,,,,\n", "row 1: power_w is 'nan'"),
        (HEADER.encode() + b"\n,1,,,,,\n", "time_s is missing"),
        (HEADER.encode() + b"\n2,1,,,,,\n1,1,,,,,\n", "row 2: time goes backwards"),
        (b"\xff\xfe\x00", "is not a trace"),
        (HEADER.encode() + b"\n" + b" " * (1 << 16), "is not a table of text"),
    ],
)
def test_a_file_that_is_no_trace_gets_one_line(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(UsageError) as raised:
        read_trace(path)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, match=r"not a Parquet file|column"):
        read_trace(path.rename(tmp_path / "t.parquet"))
