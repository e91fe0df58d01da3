"""Test importing results of other tools into a database."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernrec.interop.import_results import import_results
from kernrec.interop.read_results import read_results
from kernrec.interop.results import external_hash
from kernrec.kernel import all_kernels
from kernrec.op import find_op
from kernrec.store import Database
from tests.helpers.foreign_files import cache, document, entry, result
from tests.helpers.paths import SPACES

Write = Callable[..., Path]

PROBLEM = find_op("matmul").problem(m=64, n=32, k=16)
needs_spaces = pytest.mark.skipif(not SPACES.is_dir(), reason="needs the recorded spaces in ../shared/data")


@pytest.fixture
def database():
    with Database.memory() as database:
        yield database


def test_imported_row_states_its_origin(database, write):
    done = import_results(database, write(cache(entry(), entry(bx=64, time="RuntimeFailedConfig"))), PROBLEM)
    assert (done.gpu.name, done.parts[0].kernel, done.results, done.added) == ("rtx3090", "vector_add", 2, 2)
    assert done.parts[0].outcomes == {"ok": 1, "crash": 1}
    assert done.parts[0].best_s == pytest.approx(0.5e-3)
    good, bad = sorted(database.rows("measurement"), key=lambda row: str(row["outcome"]), reverse=True)
    assert (bad["error"], bad["latency_s"]) == ("RuntimeFailedConfig", None)
    assert (good["protocol_version"], good["measured_by"]) == (0, "Kernel Tuner")
    assert good["device"] == "NVIDIA GeForce RTX 3090"
    assert good["latency_samples_s"] == pytest.approx([0.4e-3, 0.5e-3, 0.6e-3])
    assert good["latency_n"] == 3
    # For a mean of three samples with a deviation of 0.1 ms, the interval is +- 1.645 x 0.1 / sqrt(3) ms.
    assert good["latency_low_s"] == pytest.approx(0.405e-3, rel=1e-3)
    assert good["latency_high_s"] == pytest.approx(0.595e-3, rel=1e-3)
    assert database.altered() == []


def test_complete_file_adds_only_rows_missing_from_its_partial_import(database, write):
    entries = [entry(bx=32 * i) for i in range(1, 6)]
    text = cache(*entries)
    part = import_results(database, write(text[: text.index('"128,1"') + 30]), PROBLEM)
    assert (part.results, part.dropped) == (3, 1)
    assert [import_results(database, write(text), PROBLEM).added for _ in range(2)] == [2, 0]
    (session,) = {row["session"] for row in database.rows("measurement")}
    (answer, *_) = database.measured("rtx3090", ["vector_add"], PROBLEM.key)
    assert answer.sessions == 1
    assert session


def test_gpu_option_must_agree_with_the_file(database, write, refuses):
    path = write(cache(entry()))
    assert import_results(database, path, PROBLEM, gpu="3090").gpu.name == "rtx3090"
    refuses(lambda: import_results(database, path, PROBLEM, gpu="h200"))
    strange = write(cache(entry(), device_name="Graphics Device"))
    refuses(lambda: import_results(database, strange, PROBLEM))
    assert import_results(database, strange, PROBLEM, gpu="h200").gpu.name == "h200-sxm"
    refuses(lambda: import_results(database, write(document(result())), PROBLEM, kernel="k"))
    refuses(lambda: import_results(database, write(document(result())), PROBLEM, gpu="h200"))


def test_imported_results_cannot_use_a_library_kernel_name(database, write, refuses):
    refuses(lambda: import_results(database, write(cache(entry())), PROBLEM, kernel="matmul_simt"))
    assert set(database.counts().values()) == {0}
    for kernel in all_kernels():
        assert set(kernel.hash) <= set("0123456789abcdef")
        names = [tunable.name for tunable in kernel.tunables]
        assert external_hash(kernel.name, names, "T4").startswith("external:")
    assert external_hash("k", ["a", "b"], "T4") == external_hash("k", ["b", "a"], "T4")
    assert external_hash("k", ["a"], "T4") != external_hash("k", ["a", "b"], "T4")


def test_one_bad_entry_among_thousands_prevents_the_import(database, write, refuses):
    entries = [entry(bx=i) for i in range(2500)]
    refuses(lambda: import_results(database, write(cache(*entries, entry(bx=7, tile=9, time=-1))), PROBLEM))
    assert set(database.counts().values()) == {0}


@pytest.mark.every(5)
@needs_spaces
@pytest.mark.parametrize(("file", "count", "good", "best_s"), [
    ("convolution-a100.t4.json.gz", 4362, 4201, 0.5536000076681375e-3),
    ("convolution-a4000.t4.json.gz", 4362, 4201, 1.021171996369958e-3),
    ("gemm-rtx3090.kernel_tuner.json.gz", 17956, 17956, 5.657844e-3),
])  # fmt: skip
def test_recorded_spaces_are_read_completely(file, count, good, best_s):
    results = read_results(SPACES / file)
    assert len(results.results) == count
    latencies = [result.latency_s for result in results.results if result.latency_s is not None]
    assert len(latencies) == good
    assert min(latencies) == pytest.approx(best_s, rel=1e-12)
    assert all(len(result.samples_s) == 32 for result in results.results if result.outcome == "ok")
    assert results.dropped == 0
