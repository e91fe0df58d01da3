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
from kernrec.interop.read_results import read_config_list, read_results
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


TILES = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}
OPTIONS = {"num_warps": 4, "num_stages": 3}


def written(folder: Path, document: object) -> Path:
    path = folder / "configs.json"
    path.write_text(json.dumps(document))
    return path


def test_tile_names_follow_the_function(tmp_path):
    path = written(tmp_path, {"1": TILES | OPTIONS, "2": TILES | OPTIONS, "4": TILES | OPTIONS | {"BLOCK_SIZE_M": 32}})
    short = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128} | OPTIONS
    source = "def f(a, BLOCK_M, BLOCK_N, BLOCK_K): ..."
    assert read_config_list(path, source) == [short, short | {"BLOCK_M": 32}]
    assert read_config_list(path, f"def f({', '.join(TILES)}): ...")[0] == TILES | OPTIONS


def test_autotune_cache_is_read_as_a_config_list(tmp_path):
    usual = {"num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None, "pre_hook": None, "ir_override": None}
    times = [[{"kwargs": {"BLOCK": 64}} | usual, [0.5, 0.4, 0.6]]]
    path = written(tmp_path, {"predicted_by": "kernrec", "key": [64], "configs_timings": times})
    assert read_config_list(path, "") == [{"BLOCK": 64, "num_warps": 4, "num_stages": 3}]


def test_file_that_is_not_a_config_list_gives_a_one_line_error(tmp_path, refuses):
    refuses(lambda document: read_config_list(written(tmp_path, document), ""), [[], {}, {"a": 1}, {"results": []}, 3])
