"""Kernel Tuner's caches: whole, and as a killed tuner leaves them."""

import gzip
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kernrec.errors import UsageError
from kernrec.interop.import_export import import_results
from kernrec.interop.read_results import read_results
from kernrec.interop.results import ForeignResult
from kernrec.op import find_op
from kernrec.store import Database
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


def test_cache_made_without_a_gpu_is_read(refuses):
    """Its cache of a whole run, that of a run that an error ended, and its T4 file."""
    whole, stopped, t4 = (
        read_results(SAMPLES / f"kernel_tuner{name}.json") for name in ("", "_stopped", "_t4")
    )  # fmt: skip
    assert (whole.tool, whole.device, whole.kernel, len(whole.results), whole.dropped) == (
        "Kernel Tuner", None, "add", 8, 0
    )  # fmt: skip
    assert [result.config for result in stopped.results] == [
        {"block_size": 64, "unroll_factor": factor} for factor in (1, 4)
    ]
    first = whole.results[0]
    assert first.latency_s == pytest.approx(0.1754496693611145e-3)
    assert first.measured_at == datetime(2026, 11, 27, 5, 56, 42, 115766)
    assert t4.results == whole.results[:3]
    problem = find_op("elementwise").problem(n=100_000)
    with Database.memory() as database:
        refuses(lambda: import_results(database, SAMPLES / "kernel_tuner.json", problem, None))
        assert import_results(database, SAMPLES / "kernel_tuner.json", problem, "rtx3090").added == 8


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
    ({"energy": 100.0}, None, None, None),  # 200 kW: not joules of one launch
])  # fmt: skip
def test_energy_is_joules_per_launch_from_the_best_sensor(write, arguments, joules, watts, method):
    result = read_one(write, **arguments)
    assert result.energy_j == (None if joules is None else pytest.approx(joules))
    assert result.power_w == (None if watts is None else pytest.approx(watts))
    assert result.energy_method == method


def test_tuned_clock_and_power_limits_are_not_kernel_tunables(write):
    keys = ["bx", "tile", "nvml_pwr_limit", "nvml_gr_clock"]
    text = cache(entry(nvml_pwr_limit=250, nvml_gr_clock=1410), tune_params_keys=keys)
    (result,) = read_results(write(text)).results
    assert result.config == {"bx": 32, "tile": 1}
    assert (result.power_limit_w, result.locked_sm_clock_hz) == (250.0, 1.41e9)


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


def test_truncated_compressed_cache_is_read_up_to_the_end(write):
    text = cache(*(entry(bx=32 * i, time=0.1 + i / 7) for i in range(500)))
    data = gzip.compress(text.encode())
    assert len(read_results(write(data)).results) == 500
    counts = [len(read_results(write(data[: len(data) * i // 8])).results) for i in (4, 6, 7)]
    assert 0 < counts[0] < counts[1] < counts[2] < 500


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
