"""Test that `tools/equal_answers.py` finds no difference to the same checkout, but to one with another catalog."""

import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from equal_answers import PINNED, Change, json_differences

from kernrec.kernel import find_kernel
from kernrec.op import all_ops
from tests.helpers.paths import ROOT


def compared_with(checkout: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "tools/equal_answers.py", "--before", str(checkout), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.every(3)
@pytest.mark.slow
def test_checkout_gives_the_same_answers_only_as_itself(tmp_path):
    some = "--queries", 40, "--seed", 3
    itself = compared_with(ROOT, *some)
    assert itself.returncode == 0, itself.stdout + itself.stderr
    assert re.match(r"40 queries \([1-9]\d* of several shapes, [1-9]\d* about a kernel\): 40 equal, 0 ", itself.stdout)
    shutil.copytree(ROOT / "kernrec", tmp_path / "kernrec")
    for name in ("db", "datasets"):
        (tmp_path / name).symlink_to(ROOT / name)
    for catalog in (tmp_path / "kernrec" / "gpu" / "catalog").glob("*.toml"):
        catalog.write_text(
            re.sub(r"\bboost = (\d+)", lambda clock: f"boost = {int(clock[1]) + 1}", catalog.read_text())
        )
    other = compared_with(tmp_path, *some)
    assert other.returncode == 1, other.stderr
    assert re.search(r"latency_s is [\de.-]+, now [\de.-]+\n", other.stdout)
    equal, different = map(int, re.findall(r"(\d+) (?:equal|different)", other.stdout))
    assert equal + different == 40
    assert different > 20


def test_folder_that_is_not_a_checkout_is_refused_in_one_line(tmp_path):
    done = compared_with(tmp_path)
    assert (done.returncode, done.stderr) == (2, f"equal_answers: {tmp_path} is not a checkout of kernrec\n")


def test_release_missing_from_history_is_skipped():
    command = [sys.executable, "tools/equal_answers.py", "--release", "0.0.9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "skipped: no commit 'Release 0.0.9' in git's history\n")


def test_change_covers_only_its_queries_and_paths():
    change = Change("one-warp blocks", r"latency_s", ops=("reduce",))
    query = {"op": "reduce", "gpu": "rtx3090", "dtype": "f32"}
    assert change.covers(query, ".choices[0].latency_s is 1.0, now 2.0")
    assert not change.covers(query, ".choices[0].energy_j is 1.0, now 2.0")
    assert not change.covers(query | {"op": "conv2d"}, ".choices[0].latency_s is 1.0, now 2.0")
    of_kernel = {"gpu": "l4", "dtype": "f32"}
    assert change.covers(of_kernel | {"kernel": "reduce_rows"}, ".latency_s is 1.0, now 2.0")
    assert not change.covers(of_kernel | {"kernel": "softmax_rows"}, ".latency_s is 1.0, now 2.0")


@pytest.mark.parametrize(("before", "now", "differences"), [
    ({"a": [1.0, "x"]}, {"a": [1.0 + 1e-13, "x"]}, []),
    ({"a": [1.0, "x"]}, {"a": [1.0 + 1e-11, "y"]}, [".a[0] is 1.0, now 1.00000000001", ".a[1] is 'x', now 'y'"]),
    ({"slowdown": 1e-9}, {"slowdown": 1e-9 + 1e-16}, []),
    ({"slowdown": 1e-9}, {"slowdown": 2e-9}, [".slowdown is 1e-09, now 2e-09"]),
    ({"a": 1e-9}, {"a": 1e-9 + 1e-16}, [".a is 1e-09, now 1.0000001e-09"]),
    ({"a": float("nan")}, {"a": float("nan")}, []), ({"a": float("inf")}, {"a": 1e308}, [".a is inf, now 1e+308"]),
    ({"a": 1}, {"a": True}, [".a is 1, now True"]), ({"a": None}, {"a": 0}, [".a is None, now 0"]),
    ({"a": 1, "b": 2}, {"a": 1, "c": 2}, [".b is gone", ".c is new"]),
    ([1, 2], [1, 3, 4], [" has 2 entries, now 3", "[1] is 2, now 3"]),
])  # fmt: skip
def test_differences_are_listed_by_path(before, now, differences):
    assert list(json_differences(before, now)) == differences


@pytest.mark.parametrize(("difference", "covered"), [
    (".choices[0].latency_s is 1e-05, now 1.4e-05", True), (".choices[0].latency_s is 1e-05, now 6e-06", False),
    (".choices[0].slowdown is 0.0, now 0.3", True), (".choices[0].latency_s is 1e-05, now None", False),
])  # fmt: skip
def test_change_with_bound_covers_only_numbers_within_it(difference, covered):
    change = Change("baselines scale a lead", r"^\.choices", most=1.5)
    assert change.covers({"op": "matvec", "gpu": "l4", "dtype": "f16"}, difference) is covered


def test_pinned_answers_are_of_every_op():
    queries = [query for some in json.loads(gzip.decompress(PINNED.read_bytes()))["queries"] for query in some]
    assert {query.get("op") or find_kernel(query["kernel"]).op for query in queries} == {op.name for op in all_ops()}
    assert any("shapes" in query for query in queries)
