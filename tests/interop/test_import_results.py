"""Test importing results, and reading workloads from files."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.interop.import_results import import_results
from kernrec.interop.read_results import read_results
from kernrec.interop.results import external_hash
from kernrec.interop.workload_files import append_query, find_workload
from kernrec.kernel import all_kernels
from kernrec.op import find_op
from kernrec.op.workload import workload
from tests.helpers.foreign_files import cache, document, entry, result
from tests.helpers.paths import SPACES

PROBLEM = find_op("matmul").problem(m=64, n=32, k=16)
needs_spaces = pytest.mark.skipif(not SPACES.is_dir(), reason="needs the recorded spaces in ../shared/data")


def test_imported_row_states_its_origin(database, write):
    done = import_results(database, write(cache(entry(), entry(bx=64, time="RuntimeFailedConfig"))), PROBLEM)
    assert (done.gpu.name, done.kernels[0].kernel, done.results, done.added) == ("rtx3090", "vector_add", 2, 2)
    assert done.kernels[0].outcomes == {"ok": 1, "crash": 1}
    assert done.kernels[0].best_s == pytest.approx(0.5e-3)
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


def test_second_import_of_a_completed_file_adds_only_missing_rows(database, write):
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


def test_import_adds_nothing_if_one_of_2500_entries_is_bad(database, write, refuses):
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
def test_recorded_result_files_are_read_completely(file, count, good, best_s):
    results = read_results(SPACES / file)
    assert len(results.results) == count
    latencies = [result.latency_s for result in results.results if result.latency_s is not None]
    assert len(latencies) == good
    assert min(latencies) == pytest.approx(best_s, rel=1e-12)
    assert all(len(result.samples_s) == 32 for result in results.results if result.outcome == "ok")
    assert results.dropped == 0


def test_workload_is_a_shipped_name_or_a_file(write):
    assert find_workload("ResNet-50") is workload("resnet50")
    text = (
        'dtype = "f16"\nlayouts = { mm = "nt" }\n'
        'layers = [{ op = "mm", m = 64, n = 8, k = 8 }, { op = "softmax", rows = 2, columns = 4, dtype = "f32" }]'
    )
    mine = find_workload(str(write(text, "mine.toml")))
    assert [layer.problem.key for layer in mine.layers] == [
        "matmul[m=64,n=8,k=8]f16,nt",
        "softmax[rows=2,columns=4]f32,row",
    ]
    assert mine.name == "mine"


def test_repeated_shapes_are_one_layer_and_unknown_ops_are_listed(write):
    text = "op,count,m,n,k,dtype\nmm,2,64,8,8,f16\ngemm,3,64,8,8,half\nrope,,1,,,\nmv,,8,,8,\n"
    network = find_workload(str(write(text, "shapes.csv")))
    assert [(layer.problem.key, layer.count) for layer in network.layers] == [
        ("matmul[m=64,n=8,k=8]f16,nn", 5),
        ("matvec[m=8,k=8,n=1]f32,row", 1),
    ]
    assert network.unknown == ("1 of the unknown op 'rope'",)


def test_malformed_file_is_refused_in_one_line(write, refuses):
    refuses(lambda name, text: find_workload(str(write(text, name))), [
        ("x.csv", ""), ("x.csv", "m,n,k\n1,2,3\n"), ("x.csv", "op,m,m\nmm,1,1\n"), ("x.csv", "op,m,n,k\nmm,1,2,3,4\n"),
        ("x.csv", "op,m,n,k\nmm,1,two,3\n"), ("x.csv", "op,m,n,k\nmm,1,2,3\nmm,1,2\n"), ("x.csv", "op,m\nrope,1\n"),
        ("x.csv", "op,count,m,n,k\nmm,0,1,1,1\n"), ("x.jsonl", "{}\n"), ("x.jsonl", "[1\n"),
        ("x.jsonl", '{"op": "mm", "shape": {"m": 1.5, "n": 1, "k": 1}}\n'),
        ("x.jsonl", '{"op": "mm", "shape": {"op": 1}}\n'), ("x.jsonl", ""), ("x.toml", "layers = 3"),
        ("x.toml", 'layers = [{ op = "mm", m = 1, n = 1, k = 1, count = "2" }]'),
        ("x.toml", 'price = 3\nlayers = [{ op = "mm", m = 1, n = 1, k = 1 }]'), ("x.yaml", "layers: []"),
    ])  # fmt: skip


def test_missing_file_or_unknown_name_is_refused(refuses):
    refuses(find_workload, ["absent.csv", "absent.toml", "folder/absent", "resnet5"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), ending=st.sampled_from([".csv", ".jsonl"]))
def test_any_file_is_read_or_refused(write, content, ending):
    path = write(b"op,m,n,k\n" + content if ending == ".csv" else content, f"any{ending}")
    message = "read"
    try:
        assert find_workload(str(path)).layers
    except UsageError as refused:
        message = str(refused)
    assert message.isprintable()


def test_query_log_counts_repeated_queries(tmp_path):
    once, twice = (find_op("matmul").problem("f16", "tn", m=size, n=64, k=64) for size in (64, 128))
    log = tmp_path / "queries.jsonl"
    for problem in (once, twice, twice):
        append_query(log, problem)
    assert {layer.problem: layer.count for layer in find_workload(str(log)).layers} == {once: 1, twice: 2}


def test_unwritable_log_is_reported_in_one_line(tmp_path, refuses):
    refuses(lambda: append_query(tmp_path, find_op("matmul").problem(m=64, n=64, k=64)))
