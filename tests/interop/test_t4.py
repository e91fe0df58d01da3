"""T4, in and out."""

import gzip
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.interop.json_document import read_text
from kernrec.interop.read_results import read_results
from kernrec.interop.results import ForeignResult, ForeignResults, StoredAs, to_measurements
from kernrec.interop.t4 import write_t4
from kernrec.op import find_op
from kernrec.store.measurement import Measurement
from tests.helpers.foreign_files import document, result

Write = Callable[..., Path]

PROBLEM = find_op("matmul").problem(m=64, n=32, k=16)

KTT = Path(__file__).with_name("samples") / "ktt.t4.json"

# What the results schema 1.0.0 asks for, as Kernel Tuner 1.5 ships it.
_VALUE = {"type": ["number", "string", "array"]}
_MEASURED = {"name": {"type": "string"}, "value": _VALUE, "unit": {"type": "string"}}
_RESULT = {
    "timestamp": {"type": "string"}, "configuration": {"type": "object"}, "objectives": {"type": "array"},
    "times": {"type": "object", "properties": {"runtimes": {"type": "array"}}}, "correctness": {"type": "number"},
    "invalidity": {"enum": ["timeout", "compile", "runtime", "correctness", "constraints", "correct"]},
    "measurements": {"type": "array", "items": {"type": "object", "properties": _MEASURED}},
}  # fmt: skip
_REQUIRED = ["configuration", "times", "invalidity", "correctness"]
_RESULTS = {"type": "array", "items": {"type": "object", "required": _REQUIRED, "properties": _RESULT}}
_VERSION = {"type": "string", "pattern": "^[0-9]{1,}.[0-9]{1,}.[0-9]{1,}$"}
SCHEMA = {"type": "object", "properties": {"schema_version": _VERSION, "results": _RESULTS}}


def read_one(write: Write, timeunit: str | None = "milliseconds", **arguments: Any) -> ForeignResult:
    metadata = {} if timeunit is None else {"timeunit": timeunit}
    return read_results(write(document(result(**arguments), metadata=metadata))).results[0]


def measured(**values: tuple[object, str]) -> list[dict[str, object]]:
    return [{"name": name, "value": value, "unit": unit} for name, (value, unit) in values.items()]


@pytest.mark.parametrize(("timeunit", "unit", "seconds"), [
    ("miliseconds", "", 0.5e-3),  # misspelt, as the files of benchmark_hub are
    ("milliseconds", "", 0.5e-3),
    ("seconds", "", 0.5),
    ("Microseconds", "", 0.5e-6),
    ("seconds", "ns", 0.5e-9),
])  # fmt: skip
def test_time_unit_may_be_per_value_or_per_file(write, timeunit, unit, seconds):
    result = read_one(write, timeunit, measurements=measured(time=(0.5, unit)))
    assert result.latency_s == pytest.approx(seconds)


@pytest.mark.parametrize(("invalidity", "correctness", "outcome"), [
    ("timeout", 0, "timeout"), ("compile", 1, "compile"), ("runtime", 0, "crash"), ("correctness", 0, "incorrect"),
    ("constraints", 1, "constraint"), ("correct", 0, "incorrect"), ("correct", 1, "ok"),
])  # fmt: skip
def test_invalid_config_is_stored_with_its_reason(write, invalidity, correctness, outcome):
    result = read_one(write, invalidity=invalidity, correctness=correctness)
    assert result.outcome == outcome
    assert (result.latency_s is None) is (outcome != "ok")
    assert result.error == (None if outcome == "ok" else invalidity)


def test_malformed_ktt_file_is_refused_in_one_line(write, refuses):
    def refused(before: str, after: str) -> None:
        path = write(KTT.read_text().replace(before, after))
        read_results(path)

    refuses(refused, [
        ('"autotuner": "KTT"', '"autotuner": "other"'), ('"timeunit": "microseconds"', '"timeunit": ""'),
        ("2026-03-05 09:04:43 UTC", "05.03.2026 UTC"), ('"registers": 12', '"registers": -1'),
    ])  # fmt: skip


def test_malformed_result_error_states_its_index(write, refuses):
    refuses(lambda arguments: read_one(write, **arguments), [
        {"timeunit": "fortnights"}, {"timeunit": None}, {"invalidity": "bad"}, {"configuration": None}, {"times": 3},
        {"measurements": [1]}, {"measurements": [], "times": {}},
        {"measurements": measured(time=(0.5, ""), energy=(1.0, "kWh"))},
        {"measurements": measured(time=("RuntimeFailedConfig", ""))}, {"configuration": {}}, {"correctness": "yes"},
    ])  # fmt: skip


def test_truncated_t4_file_is_refused(write):
    text = json.dumps(document(result(), result()))
    for cut in range(1, len(text)):
        with pytest.raises(UsageError, match=r"is cut short|lacks results|has T4 schema"):
            read_results(write(text[:cut]))


names = st.text("abcdefgh_", min_size=1, max_size=6)
positive = st.floats(1e-7, 1e3)
failures = st.sampled_from(["timeout", "compile", "crash", "incorrect", "constraint"])


@st.composite
def results(draw: st.DrawFn, tunables: list[str]) -> ForeignResult:
    config = {name: draw(st.integers(0, 512) | st.sampled_from(["a", "b"])) for name in tunables}
    moment = draw(st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)))
    limits = {"power_limit_w": draw(st.none() | st.sampled_from([250.0, 300.0])), "measured_at": moment}
    if draw(st.booleans()):
        return ForeignResult(config, draw(failures), draw(names), **limits)
    samples = tuple(draw(st.lists(positive, max_size=4)))
    latency = draw(st.floats(min(samples), max(samples)) if samples else positive)
    energy: dict[str, Any] = {}
    if draw(st.booleans()):
        watts = draw(st.floats(1, 900))
        energy = {"energy_j": watts * latency, "power_w": watts, "energy_method": "energy"}
    return ForeignResult(config, "ok", None, latency, samples, **energy, **limits)


def rows(file: ForeignResults) -> list[dict[str, Any]]:
    measurements = to_measurements(file, PROBLEM, StoredAs("rtx3090", "theirs"))
    return [{k: v for k, v in measurement.columns().items() if v is not None} for measurement in measurements]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), tunables=st.lists(names, min_size=1, max_size=4, unique=True))
def test_written_rows_read_back(write, data, tunables):
    drawn = data.draw(st.lists(results(tunables), min_size=1, max_size=6))
    before = rows(ForeignResults("T4", "NVIDIA GeForce RTX 3090", "theirs", drawn))
    path = write(
        write_t4(
            map(Measurement.from_columns, before), {"device_name": "NVIDIA GeForce RTX 3090", "kernel_name": "theirs"}
        )
    )
    file = read_results(path)
    after = rows(file)
    assert (file.device, file.kernel) == ("NVIDIA GeForce RTX 3090", "theirs")
    assert len(after) == len(before)
    for was, now in zip(before, after, strict=True):
        assert was.keys() == now.keys()
        for name, value in was.items():
            if isinstance(value, float) or name == "latency_samples_s":
                assert now[name] == pytest.approx(value, rel=1e-9, abs=1e-18), name
            elif name != "latency_outliers":  # a sample that lies at the very bound may fall to either side
                assert now[name] == value, name


EVERY_OUTCOME = [
    ForeignResult({"a": 1}, "ok", None, 1e-3, (1e-3, 2e-3), 0.1, 100.0, "nvml_energy"),
    *(
        ForeignResult({"a": 1}, outcome, "why")
        for outcome in ("timeout", "compile", "crash", "incorrect", "constraint")
    ),
]


def test_written_file_passes_the_schema_validator():
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")
    jsonschema.validate(
        json.loads(
            write_t4(
                to_measurements(ForeignResults("T4", None, None, EVERY_OUTCOME), PROBLEM, StoredAs("rtx3090", "k")), {}
            )
        ),
        SCHEMA,
    )
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document(result(invalidity="bad")), SCHEMA)


def test_decompression_bomb_is_refused_before_parsing(tmp_path, refuses):
    def refused(bomb: Callable[[], bytes]) -> None:
        path = tmp_path / "bomb.json"
        path.write_bytes(bomb())
        read_text(path)

    refuses(refused, [
        lambda: gzip.compress(b"[" + b" " * 80_000_000 + b"]", 1), lambda: b"[" + b"[]," * 8_000_000 + b"[]]",
    ])  # fmt: skip
