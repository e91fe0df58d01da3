"""Test reading networks from user files, listing unsupported layers, and refusing invalid files in one line."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.interop.workload_files import append_query, find_workload
from kernrec.op import find_op
from kernrec.op.workload import workload


def test_workload_name_is_shipped_and_workload_path_is_a_file(tmp_path):
    assert find_workload("ResNet-50") is workload("resnet50")
    path = tmp_path / "mine.toml"
    path.write_text(
        'dtype = "f16"\nlayouts = { mm = "nt" }\n'
        'layers = [{ op = "mm", m = 64, n = 8, k = 8 }, { op = "softmax", rows = 2, columns = 4, dtype = "f32" }]'
    )
    mine = find_workload(str(path))
    assert [layer.problem.key for layer in mine.layers] == [
        "matmul[m=64,n=8,k=8]f16,nt",
        "softmax[rows=2,columns=4]f32,row",
    ]
    assert mine.name == "mine"


def test_repeated_shapes_are_one_layer_and_unknown_ops_are_listed(tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_text("op,count,m,n,k,dtype\nmm,2,64,8,8,f16\ngemm,3,64,8,8,half\nrope,,1,,,\nmv,,8,,8,\n")
    network = find_workload(str(path))
    assert [(layer.problem.key, layer.count) for layer in network.layers] == [
        ("matmul[m=64,n=8,k=8]f16,nn", 5),
        ("matvec[m=8,k=8,n=1]f32,row", 1),
    ]
    assert network.unknown == ("1 of the unknown op 'rope'",)


def test_malformed_file_is_refused_in_one_line(tmp_path, refuses):
    def refused(name: str, text: str) -> None:
        path = tmp_path / name
        path.write_text(text)
        find_workload(str(path))

    refuses(refused, [
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
def test_any_file_is_read_or_refused(tmp_path, content, ending):
    path = tmp_path / f"any{ending}"
    path.write_bytes(b"op,m,n,k\n" + content if ending == ".csv" else content)
    message = "read"
    try:
        assert find_workload(str(path)).layers
    except UsageError as refused:
        message = str(refused)
    assert message.isprintable()


def test_log_counts_equal_queries(tmp_path):
    once, twice = (find_op("matmul").problem("f16", "tn", m=size, n=64, k=64) for size in (64, 128))
    log = tmp_path / "queries.jsonl"
    for problem in (once, twice, twice):
        append_query(log, problem)
    assert {layer.problem: layer.count for layer in find_workload(str(log)).layers} == {once: 1, twice: 2}


def test_unwritable_log_is_reported_in_one_line(tmp_path, refuses):
    refuses(lambda: append_query(tmp_path, find_op("matmul").problem(m=64, n=64, k=64)))
