"""Test reading results from T4 documents."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernrec.errors import UsageError
from kernrec.interop.json_document import read_text
from kernrec.interop.read_results import read_results
from kernrec.interop.results import ForeignResult
from kernrec.op import find_op
from tests.helpers.foreign_files import document, result

Write = Callable[..., Path]

PROBLEM = find_op("matmul").problem(m=64, n=32, k=16)

KTT = Path(__file__).with_name("samples") / "ktt.t4.json"


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


def test_decompression_bomb_is_refused_before_parsing(tmp_path, refuses):
    def refused(bomb: Callable[[], bytes]) -> None:
        path = tmp_path / "bomb.json"
        path.write_bytes(bomb())
        read_text(path)

    refuses(refused, [
        lambda: gzip.compress(b"[" + b" " * 80_000_000 + b"]", 1), lambda: b"[" + b"[]," * 8_000_000 + b"[]]",
    ])  # fmt: skip
