"""Test that a query log is read as a workload that counts each problem's queries."""

from kernrec.interop.query_log import append_query
from kernrec.interop.workload_files import find_workload
from kernrec.op import find_op


def test_log_counts_equal_queries(tmp_path):
    once, twice = (find_op("matmul").problem("f16", "tn", m=size, n=64, k=64) for size in (64, 128))
    log = tmp_path / "queries.jsonl"
    for problem in (once, twice, twice):
        append_query(log, problem)
    assert {layer.problem: layer.count for layer in find_workload(str(log)).layers} == {once: 1, twice: 2}


def test_unwritable_log_is_reported_in_one_line(tmp_path, refuses):
    refuses(lambda: append_query(tmp_path, find_op("matmul").problem(m=64, n=64, k=64)))
