"""Test reading results of each tool, complete or truncated. Damaged files and files of other types are refused."""

import copy
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
from kernrec.interop.import_results import import_results
from kernrec.interop.json_document import read_text
from kernrec.interop.read_results import read_results
from kernrec.interop.results import ForeignResult, StatedProblem, to_measurements
from kernrec.op import find_op
from kernrec.store import Database
from kernrec.store.measurement import Outcome
from tests.helpers.foreign_files import cache, document, entry, result
from tests.helpers.paths import beside

Write = Callable[..., Path]


def test_format_and_compression_are_detected_from_the_content(write):
    for content in (cache(entry()), document(result())):
        path = write(content)
        packed = write(gzip.compress(path.read_bytes()), "packed")
        assert read_results(path) == read_results(packed)


def test_file_without_results_gives_a_one_line_error(write, refuses):
    refuses(lambda content: read_results(write(content)), [
        "", "hello", "[1, 2]", "{'a': 1}", '{"General": {"FormatVersion": 1}, "ConfigurationSpace": {}}',
        b"\xff\xfe\x00\x01" * 40, '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        document(result()) | {"schema_version": "2.0.0"},
    ])  # fmt: skip


def test_missing_file_or_folder_is_refused_in_one_line(tmp_path):
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(UsageError, match="cannot be read"):
            read_results(path)


damage = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([cache(entry(), entry(tile=2)), json.dumps(document(result(), result()))]), damage)
def test_damaged_file_is_refused_in_one_line(write, text, damage):
    content = bytearray(text.encode())
    for place, byte in damage:
        content[int(place * len(content))] = byte
    path = write(bytes(content))
    message = ""
    try:
        assert read_results(path).results
    except UsageError as error:
        message = str(error)
    assert "\n" not in message


@pytest.fixture(scope="module")
def database():
    with Database.memory() as database:
        yield database
        assert database.altered() == []


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3) | st.just(10**400),
    st.floats(allow_nan=True),
    st.sampled_from(["", "x", "\x1b[2J", "\ud800", "correct", "0001-01-01T00:00+14:00", "RuntimeFailedConfig"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["time", "bx"]), st.integers(), max_size=2),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([json.loads(cache(entry(), entry(tile=2))), document(result(), result())]), st.data())
def test_results_with_a_random_value_are_accepted_or_refused_in_one_line(write, database, whole, data):
    node = whole = copy.deepcopy(whole)
    while True:
        places = list(node) if isinstance(node, dict) else list(range(len(node)))
        place = data.draw(st.sampled_from(places))
        if not isinstance(node[place], (dict, list)) or not node[place] or data.draw(st.booleans()):
            break
        node = node[place]
    node[place] = data.draw(junk)
    message = ""
    try:
        file = read_results(write(whole))
        database.add_measurements(to_measurements(file, find_op("matmul").problem(m=64, n=32, k=16), "t4", "k"))
    except UsageError as error:
        message = str(error)
    assert "\n" not in message


def read_one(write: Write, timeunit: str | None = "milliseconds", **arguments: Any) -> ForeignResult:
    metadata = {} if timeunit is None else {"timeunit": timeunit}
    return read_results(write(document(result(**arguments), metadata=metadata))).results[0]


def measured(**values: tuple[object, str]) -> list[dict[str, object]]:
    return [{"name": name, "value": value, "unit": unit} for name, (value, unit) in values.items()]


@pytest.mark.parametrize(("timeunit", "unit", "seconds"), [
    ("miliseconds", "", 0.5e-3),  # the misspelling occurs in benchmark_hub's files
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
    text = beside(__file__, "ktt.t4.json", "samples")
    refuses(lambda before, after: read_results(write(text.replace(before, after))), [
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


def test_truncated_results_file_is_refused(write):
    text = json.dumps(document(result(), result()))
    for cut in range(1, len(text)):
        with pytest.raises(UsageError, match=r"is cut short|lacks results|schema_version is"):
            read_results(write(text[:cut]))


def test_decompression_bomb_is_refused_before_parsing(write, refuses):
    refuses(lambda bomb: read_text(write(bomb(), "bomb.json")), [
        lambda: gzip.compress(b"[" + b" " * 80_000_000 + b"]", 1), lambda: b"[" + b"[]," * 8_000_000 + b"[]]",
    ])  # fmt: skip


CLBLAST: dict[str, Any] = json.loads(beside(__file__, "clblast.json"))
TUNED_KTT: dict[str, Any] = json.loads(beside(__file__, "ktt.json"))


def test_clblast_tuner_file_keeps_problem_and_measurements(tmp_path, write):
    file = read_results(path := write(CLBLAST))
    assert (file.tool, file.kernel, file.device, file.not_run) == ("CLBlast", "xgemm_1", "NVIDIA GeForce RTX 3060", 1)
    assert [(dict(row.config), row.latency_s) for row in file.results] == [
        ({"MWG": 64, "NWG": 64}, pytest.approx(620e-6)),
        ({"MWG": 32, "NWG": 64}, pytest.approx(810e-6)),
    ]
    assert file.problem == StatedProblem("matmul", (("m", 1024), ("n", 512), ("k", 256)), "f32")
    with Database.open(tmp_path / "own.duckdb", read_only=False, create=True) as database:
        summary = import_results(database, path, StatedProblem("matmul"))
        assert (summary.added > 0, summary.gpu.name) == (True, "rtx3060")


def test_ktt_json_is_read_with_its_failures(write):
    file = read_results(write(TUNED_KTT))
    good, wrong = file.results
    assert (file.tool, file.device, good.kernel) == ("KTT", "NVIDIA GeForce RTX 3060", "nbody")
    assert (dict(good.config), good.registers) == ({"GROUP": 64, "F": "x"}, 40)
    assert good.latency_s == pytest.approx(310.5e-6)
    assert (wrong.outcome, wrong.latency_s, wrong.error) == (Outcome.INCORRECT, None, "ValidationFailed")


def test_damaged_ktt_json_gives_a_one_line_error(write, refuses):
    refuses(lambda change: read_results(write(TUNED_KTT | change)), [
        {"Metadata": {"TimeUnit": "Minutes"}}, {"Results": {}},
        {"Results": [{"Configuration": [{"Name": "A", "Value": 1}], "Status": "Fine"}]},
        {"Results": [{"Configuration": "A"}]},
    ])  # fmt: skip


def test_unsupported_formats_are_named(write, refuses):
    refuses(lambda text: read_results(write(text, "tuned.json")), [
        '{"input": ["cuda", "dense_small_batch.cuda", []], "config": {}, "result": [[0.1], 0, 1, 1]}\n',
        '{"i": ["cuda -model=t4", "conv2d_nchw.cuda"], "t": "", "v": 0.2}\n',
        '{"_metadata": {"flashinfer_version": "0.6"}, "(\'fp4_gemm\')": ["Runner", 3]}',
    ])  # fmt: skip


MANY = [
    entry(),
    entry(tile=2, time=0.123456789, note='a "quoted" } brace, and ü'),
    entry(bx=64, time="RuntimeFailedConfig", times=None),
    entry(bx=128, time=1e-05, nvml_energy=0.0002),
]


def read_tuned(write: Write, **arguments: Any) -> ForeignResult:
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
        result = read_tuned(write, **arguments)
        assert (result.outcome, result.error, result.latency_s) == (outcome, error, None)


@pytest.mark.parametrize(("arguments", "joules", "watts", "method"), [
    ({"nvml_energy": 0.1}, 0.1, 200.0, "nvml_energy"),
    ({"nvml_energy": 0.1, "nvml_power": 190.0}, 0.1, 190.0, "nvml_energy"),
    ({"nvml_power": 150.0}, 0.075, 150.0, "nvml_power x time"),
    ({"energy": 0.1, "ps_energy": 0.09}, 0.09, 180.0, "ps_energy"),
    ({"energy": 100.0}, None, None, None),  # 100 J would mean 200 kW, so the unit is not joules per launch
])  # fmt: skip
def test_energy_is_joules_per_launch_from_the_best_sensor(write, arguments, joules, watts, method):
    result = read_tuned(write, **arguments)
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
    refuses(lambda text: read_results(write(text)), [
        cache(), cache(entry(time=-1.0)), cache(entry(time="fast")), cache(entry(times=[0.1, "x"])),
        cache(entry(timestamp="yesterday")), cache(entry(bx=[1])), cache({"bx": 32, "time": 1.0}),
        cache({"bx": 32, "tile": 1}), cache(entry(), tune_params_keys=[], tune_params={}),
        cache(entry(), device_name="\x1b[2J"), cache(entry(), entry(tile=2)).replace('"tile": 2', '"tile" 2'),
        cache(entry(time=float("nan"))), cache(entry()).replace("0.5,", "1e999,"),
        cache(entry()).replace("0.5,", "9" * 5000 + ","),
    ])  # fmt: skip
