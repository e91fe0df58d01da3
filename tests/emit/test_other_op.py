"""A kernel of another op that states the problem in its own terms is emitted with the problem's tensors."""

from kernrec.emit.cuda import cuda_source, launch_comment
from kernrec.gpu import find_gpu
from kernrec.op import find_op
from kernrec.recommender import Recommender
from kernrec.recommender.choices import build_choice
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.recommender.result import Choice


def _choice(split: bool) -> Choice:
    problem = find_op("matmul").problem("f16", "nt", m=3, n=4096, k=1024)
    candidates = Recommender([]).candidates(problem, find_gpu("a100"), (DEFAULT_POINT,))
    number = next(i for i, kernel in enumerate(candidates.kernels) if kernel.table.kernel.name == "matvec_rows")
    positions = range(candidates.starts[number], candidates.starts[number + 1])
    choices = (build_choice(candidates, 0, position) for position in positions)
    return next(choice for choice in choices if (choice.config["split_k"] > 1) == split)


def test_matvec_kernel_accepts_the_tensors_of_a_matmul():
    lines = launch_comment(_choice(split=False))
    assert "//   b: 4096 x 1024 f16 (input)" in lines
    (launched,) = (line for line in lines if "<<<" in line)
    assert "(b, a, c, 4096, 3, 1024," in launched


def test_split_matvec_kernel_keeps_its_workspace():
    choice = _choice(split=True)
    lines = launch_comment(choice)
    first, second = (line for line in lines if "<<<" in line)
    assert "(b, a, partial, 4096, 3, 1024," in first
    assert f"(partial, c, {3 * 4096}, {choice.config['split_k']})" in second
    assert f"//   partial: {choice.config['split_k'] * 3 * 4096} f32 (workspace, no initial value needed)" in lines
    assert "matvec_rows_partial" in cuda_source(choice)
