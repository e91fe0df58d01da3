"""The output of vLLM's and SGLang's benchmark of a layer of experts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.interop.import_export import import_results
from kernrec.interop.moe_configs import TILES, write_moe_configs
from kernrec.interop.read_results import read_results
from kernrec.interop.results import StatedProblem
from kernrec.store import Database
from tests.helpers.refusals import Refuses

SAMPLE = Path(__file__).with_name("samples") / "benchmark_moe.txt"
TEXT = SAMPLE.read_text(encoding="utf-8")
MIXTRAL = (("hidden", 4096), ("intermediate", 14336), ("experts", 8), ("topk", 2), ("tp", 2))

Write = Callable[..., Path]


def test_each_batch_size_is_a_problem_of_the_layer_that_is_said() -> None:
    with Database.memory() as database:
        done = import_results(database, SAMPLE, StatedProblem(None, MIXTRAL, "bf16"), "h100")
        assert [(part.problem.dim["tokens"], part.kernel) for part in done.parts] == [
            (1, "fused_moe"), (16, "fused_moe"), (1024, "fused_moe")
        ]  # fmt: skip
        assert done.parts[1].best_s == pytest.approx(402.75e-6)
        (best, *_) = database.measured("h100-sxm", ["fused_moe"], done.parts[2].problem.key)
        assert best.config["BLOCK_SIZE_N"] == 128


def test_the_layer_has_to_be_said() -> None:
    with Database.memory() as database, pytest.raises(UsageError, match=r"moe is missing hidden"):
        import_results(database, SAMPLE, StatedProblem(), "h100")


def test_lines_that_a_cluster_or_a_logger_marks_are_read(write: Write) -> None:
    marked = "".join(f"\x1b[36m(worker pid=7)\x1b[0m {line}\n" for line in TEXT.splitlines())
    assert read_results(write(marked, "out.txt")).results == read_results(SAMPLE).results


def test_output_without_times_is_refused_in_one_line(write: Write, refuses: Refuses) -> None:
    def refused(text: str) -> None:
        path = write(text, "out.txt")
        read_results(path)

    refuses(refused, [
        TEXT.replace("Kernel time: 402.75 us", ""), TEXT.replace("{'BLOCK_SIZE_M': 16", "{__import__('os')", 1),
        TEXT.replace("101.43", "0.00"), write_moe_configs({1: dict.fromkeys(TILES, 16)}),
    ])  # fmt: skip
