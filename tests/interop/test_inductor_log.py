"""Inductor's autotune log."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.interop.import_export import import_results
from kernrec.interop.read_results import read_results
from kernrec.interop.results import StatedProblem
from kernrec.store import Database

SAMPLE = Path(__file__).with_name("samples") / "inductor.log"
CPU = SAMPLE.with_name("inductor_cpu.log")
TEXT = SAMPLE.read_text(encoding="utf-8")

Write = Callable[..., Path]


def test_each_product_is_a_problem_with_sizes_type_and_layout() -> None:
    with Database.memory() as database:
        done = import_results(database, SAMPLE, StatedProblem(), "h100")
        assert [(part.kernel, part.problem.key, part.results) for part in done.parts] == [
            ("triton_mm", "matmul[m=128,n=12288,k=4096]f16,nt", 3),
            ("triton_mm", "matmul[m=64,n=1024,k=768,bias=1]tf32,nn", 1),
            ("triton_bmm", "matmul[m=64,n=64,k=32,batch=8]bf16,nn", 1),
        ]
        assert done.parts[0].outcomes == {"ok": 2, "constraint": 1}
        assert done.parts[0].best_s == pytest.approx(49.4e-6)
        assert "left out: 4 choices" in done.notes[0]
        assert database.altered() == []
        assert import_results(database, SAMPLE, StatedProblem(), "h100").added == 0


def test_what_is_said_chooses_among_the_products() -> None:
    with Database.memory() as database:
        done = import_results(database, SAMPLE, StatedProblem("mm", (("m", 64), ("k", 768))), "h100")
        assert [part.problem.dim["n"] for part in done.parts] == [1024]
        assert "left out: 4 results of other problems" in done.notes
        bmm = import_results(database, SAMPLE, StatedProblem(), "h100", "triton_bmm")
        assert [part.kernel for part in bmm.parts] == ["triton_bmm"]
        with pytest.raises(UsageError, match="none of its results is of the stated problem; they are of matmul m=128"):
            import_results(database, SAMPLE, StatedProblem("matmul", (("m", 5),)), "h100")
        with pytest.raises(UsageError, match="none of its results is of the stated problem"):
            import_results(database, SAMPLE, StatedProblem("conv2d"), "h100")
        with pytest.raises(UsageError, match="none of its results"):
            import_results(database, SAMPLE, StatedProblem(dtype="f64"), "h100")


def test_a_product_that_was_tuned_again_has_both_times(write: Write) -> None:
    (result,) = (r for r in read_results(write(TEXT + TEXT.replace("0.0494", "0.0496"), "x.log")).results if r.samples_s
                 and r.config["BLOCK_K"] == 64 and r.problem.layout == "nt")  # fmt: skip
    assert result.samples_s == pytest.approx((49.4e-6, 49.6e-6))
    assert result.latency_s == pytest.approx(49.5e-6)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CPU.read_text(encoding="utf-8"), "it has no choice with tunables of a product (choices: packed_linear)"),
        (re.sub(r"% ACC.*| ALLOW.*", "% ", TEXT), "no choice with tunables of a product"),
        (TEXT.replace("BLOCK_K=64, BLOCK_M", "BLOCK_K=64 BLOCK_M"), "choice triton_mm_18 has tunables"),
        (TEXT.replace("triton_mm_18 0.0494", "triton_mm_18 0.0000"), "choice triton_mm_18: time is 0 s"),
        ("AUTOTUNE mm(" + "1" * 500_000 + ")", "is not JSON"),
        ("AUTOTUNE mm(2x2, 2x2)\n" + "  a 1.0 ms 1.0% " + "A=1, " * 100_000, "no choice with tunables"),
    ],
)
def test_a_log_that_says_too_little_is_refused_in_one_line(write: Write, text: str, says: str) -> None:
    path = write(text, "run.log")
    with pytest.raises(UsageError) as caught:
        read_results(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
