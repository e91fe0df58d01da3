"""Test reading Kernel Tuner's caches, both complete and cut off by a killed tuner."""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kernrec.errors import UsageError
from kernrec.interop.read_results import read_results
from kernrec.interop.results import ForeignResult
from tests.helpers.foreign_files import cache, entry

Write = Callable[..., Path]

MANY = [
    entry(),
    entry(tile=2, time=0.123456789, note='a "quoted" } brace, and ü'),
    entry(bx=64, time="RuntimeFailedConfig", times=None),
    entry(bx=128, time=1e-05, nvml_energy=0.0002),
]


SAMPLES = Path(__file__).with_name("samples")


def read_one(write: Write, **arguments: Any) -> ForeignResult:
    return read_results(write(cache(entry(**arguments)))).results[0]


def test_times_are_read_as_milliseconds_and_other_fields_kept(write):
    file = read_results(write(cache(entry())))
    assert (file.tool, file.device, file.kernel) == ("Kernel Tuner", "NVIDIA GeForce RTX 3090", "vector_add")
    assert (file.tunables, file.dropped) == (("bx", "tile"), 0)
    (result,) = file.results
    assert result.config == {"bx": 32, "tile": 1}
    assert result.latency_s == pytest.approx(0.5e-3)
    assert result.samples_s == pytest.approx((0.4e-3, 0.5e-3, 0.6e-3))
    assert result.measured_at == datetime(2024, 5, 1, 12)
    assert (result.outcome, result.energy_j) == ("ok", None)


@pytest.mark.parametrize(("error", "outcome"), [
    ("InvalidConfig", "constraint"), ("CompilationFailedConfig", "compile"), ("RuntimeFailedConfig", "crash"),
    ("ErrorConfig", "crash"), ("TimeoutFailedConfig", "timeout"),
])  # fmt: skip
def test_error_instead_of_a_time_becomes_an_outcome_with_a_reason(write, error, outcome):
    for arguments in ({"time": error}, {"__error__": error}):
        result = read_one(write, **arguments)
        assert (result.outcome, result.error, result.latency_s) == (outcome, error, None)


@pytest.mark.parametrize(("arguments", "joules", "watts", "method"), [
    ({"nvml_energy": 0.1}, 0.1, 200.0, "nvml_energy"),
    ({"nvml_energy": 0.1, "nvml_power": 190.0}, 0.1, 190.0, "nvml_energy"),
    ({"nvml_power": 150.0}, 0.075, 150.0, "nvml_power x time"),
    ({"energy": 0.1, "ps_energy": 0.09}, 0.09, 180.0, "ps_energy"),
    ({"energy": 100.0}, None, None, None),  # 100 J would mean 200 kW, so the unit is not joules per launch
])  # fmt: skip
def test_energy_is_joules_per_launch_from_the_best_sensor(write, arguments, joules, watts, method):
    result = read_one(write, **arguments)
    assert result.energy_j == (None if joules is None else pytest.approx(joules))
    assert result.power_w == (None if watts is None else pytest.approx(watts))
    assert result.energy_method == method


@pytest.mark.every(2)
def test_cache_truncated_at_any_byte_yields_its_complete_entries(write):
    text = cache(*MANY)
    whole = read_results(write(text)).results
    ends = [text.index(json.dumps(entry)) + len(json.dumps(entry)) for entry in MANY]
    for cut in range(len(text)):
        path = write(text[:cut])
        complete = [end for end in ends if end <= cut]
        if complete:
            file = read_results(path)
            assert file.results == whole[: len(complete)]
            assert file.dropped == (text[complete[-1] : cut].strip(",}\n") != "")
        else:
            with pytest.raises(UsageError, match=r"cut short before its first|a T4 file") as caught:
                read_results(path)
            assert "\n" not in str(caught.value)


def test_malformed_cache_is_refused_in_one_line(write, refuses):
    def refused(text: str) -> None:
        path = write(text)
        read_results(path)

    refuses(refused, [
        cache(), cache(entry(time=-1.0)), cache(entry(time="fast")), cache(entry(times=[0.1, "x"])),
        cache(entry(timestamp="yesterday")), cache(entry(bx=[1])), cache({"bx": 32, "time": 1.0}),
        cache({"bx": 32, "tile": 1}), cache(entry(), tune_params_keys=[], tune_params={}),
        cache(entry(), device_name="\x1b[2J"), cache(entry(), entry(tile=2)).replace('"tile": 2', '"tile" 2'),
        cache(entry(time=float("nan"))), cache(entry()).replace("0.5,", "1e999,"),
        cache(entry()).replace("0.5,", "9" * 5000 + ","),
    ])  # fmt: skip
