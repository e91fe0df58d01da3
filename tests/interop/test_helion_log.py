"""Helion's autotune CSV."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.interop.import_export import import_results
from kernrec.interop.read_results import read_results
from kernrec.op import find_op
from kernrec.store import Database

SAMPLE = Path(__file__).with_name("samples") / "helion.csv"
TEXT = SAMPLE.read_text(encoding="utf-8")
PROBLEM = find_op("matmul").problem(m=1024, n=1024, k=1024, dtype="f16")

Write = Callable[..., Path]


def test_a_row_is_a_config_with_its_end_and_lists_are_numbered_tunables() -> None:
    file = read_results(SAMPLE)
    assert (file.tool, file.device, file.kernel, file.not_run) == ("Helion", None, None, 1)
    assert [result.outcome for result in file.results] == ["ok", "ok", "crash", "timeout", "ok"]
    first = file.results[0]
    assert first.latency_s == pytest.approx(87.4e-6)
    assert first.config["block_sizes_2"] == 32
    assert first.config["loop_orders_0_1"] == 1
    assert first.config["range_warp_specializes_0"] == "None"
    assert first.config["indexing"] == "pointer"


def test_columns_of_earlier_releases_are_read_too(write: Write) -> None:
    text = "timestamp_s,config_index,generation,status,perf_ms,compile_time_s,config\n"
    path = write(text + '0.5,1,0,ok,1.25,0.1,"helion.Config(block_size=[64], num_warps=4)"\n', "run.csv")
    (result,) = read_results(path).results
    assert (result.config, result.latency_s) == ({"block_size_0": 64, "num_warps": 4}, pytest.approx(1.25e-3))


def test_a_log_is_imported_with_gpu_shape_and_kernel_said() -> None:
    with Database.memory() as database:
        done = import_results(database, SAMPLE, PROBLEM, "h100", "their_matmul")
        assert (done.results, done.added, done.parts[0].best_s) == (5, 5, pytest.approx(59.2e-6))
        with pytest.raises(UsageError, match="does not name its GPU"):
            import_results(database, SAMPLE, PROBLEM, None, "their_matmul")


def test_a_config_that_was_measured_again_is_one_with_both_times(write: Write) -> None:
    again = TEXT.splitlines()[2].replace(",ok,0.087400", ",ok,0.087800")
    failed = TEXT.splitlines()[2].replace(",ok,0.087400", ",error,")
    path = write(f"{TEXT}{again}\n{failed}\n", "run.csv")
    first = read_results(path).results[0]
    assert (first.outcome, first.samples_s) == ("ok", pytest.approx((87.4e-6, 87.8e-6)))
    with Database.memory() as database:
        assert import_results(database, path, PROBLEM, "h100", "their_matmul").added == 5
        assert database.conflicts() == []


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (",ok,0.087400", ",fine,0.087400", "row 1: unknown status 'fine'"),
        (",ok,0.087400", ",ok,", "row 1: perf_ms is '', not a number"),
        (",ok,0.087400", ",ok,-1", "row 1: time is -0.001 s"),
        ("Config(block_sizes=[64, 64, 32]", "Config(block_sizes=open('x')", "is not a config"),
        ("Config(block_sizes=[64, 64, 32]", "Config(block_sizes=" + "[" * 3000 + "]" * 3000, "is not a config"),
        ("Config(block_sizes=[64, 64, 32]", "Config(block_sizes=[" + "64," * 300 + "]", "311 tunables; 1 to 256"),
        (TEXT.splitlines()[2][:64], "f" * 64, "has 2 runs"),
    ],
)
def test_what_is_no_such_log_is_refused_in_one_line(write: Write, before: str, after: str, says: str) -> None:
    path = write(TEXT.replace(before, after, 2), "run.csv")
    with pytest.raises(UsageError) as caught:
        read_results(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
