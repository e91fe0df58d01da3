"""Test that the format of a results file is detected, and that other or damaged files are refused."""

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.interop import json_document
from kernrec.interop.read_results import read_results
from kernrec.interop.results import StoredAs, to_measurements
from kernrec.op import find_op
from kernrec.store import Database
from tests.helpers.foreign_files import cache, document, entry, result

Write = Callable[..., Path]

PROBLEM = find_op("matmul").problem(m=64, n=32, k=16)


def test_format_and_compression_are_detected_from_the_content(write):
    for content in (cache(entry()), document(result())):
        path = write(content)
        packed = write(gzip.compress(path.read_bytes()), "packed")
        assert read_results(path) == read_results(packed)


def test_file_without_results_gives_a_one_line_error(write, refuses):
    def refused(content: object) -> None:
        path = write(content)
        read_results(path)

    refuses(refused, [
        "", "hello", "[1, 2]", "{'a': 1}", '{"General": {"FormatVersion": 1}, "ConfigurationSpace": {}}',
        b"\xff\xfe\x00\x01" * 40, '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        document(result()) | {"schema_version": "2.0.0"},
    ])  # fmt: skip


def test_missing_file_or_folder_is_refused_in_one_line(tmp_path):
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(UsageError, match="cannot be read"):
            read_results(path)


def test_unpacking_stops_at_the_size_limit(write, monkeypatch, refuses):
    monkeypatch.setattr(json_document, "MOST_BYTES", 2**22)
    refuses(lambda: read_results(write(gzip.compress(b" " * 2**23))))


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
def test_replaced_value_is_accepted_or_refused_in_one_line(write, database, whole, data):
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
        database.add_measurements(to_measurements(file, PROBLEM, StoredAs("t4", "k")))
    except UsageError as error:
        message = str(error)
    assert "\n" not in message
