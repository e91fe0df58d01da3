"""Test which calls of Triton functions are refused, and how arguments are specialized."""

from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.profile.kernel_code import compile_job_for
from kernrec.profile.triton_call import kernel_of_triton
from kernrec.profile.triton_call_file import TritonCall, read_call
from tests.helpers.paths import beside
from tests.helpers.triton_kernels import FOLDER, configs_of

CALL = beside(__file__, "triton_call.toml")
TARGET = f"{FOLDER}/matmul.py:matmul"


def called(folder: Path, text: str = CALL, target: str = TARGET) -> TritonCall:
    (folder / "triton_call.toml").write_text(text)
    return read_call(folder / "triton_call.toml", target)


@pytest.mark.parametrize(("old", "new", "message"), [
    ("[arguments]", "[argument]", "unknown key 'argument'; did you mean arguments"),
    ("flops", "flop", "unknown key 'flop'"),
    ('grid = ["ceil_div(m, BLOCK_M) * ceil_div(n, BLOCK_N)"]', "", "grid is missing"),
])  # fmt: skip
def test_unreadable_call_is_refused(tmp_path, old, new, message):
    with pytest.raises(UsageError, match=message):
        called(tmp_path, CALL.replace(old, new, 1))
    with pytest.raises(UsageError, match=r"given as kernels\.py:matmul"):
        called(tmp_path, target="kernels.py")


class TestWithTriton:
    @pytest.fixture(autouse=True)
    def _triton(self):
        pytest.importorskip("triton", reason="needs the extra `triton`")

    def test_arguments_are_specialized_as_in_the_jit(self, tmp_path):
        """Compare the specialization with Triton's own rules."""
        from triton.backends.compiler import BaseBackend
        from triton.runtime import jit

        specialize = getattr(jit, "native_specialize_impl", None)
        if specialize is None:
            pytest.skip("this release of Triton has no such function")
        kernel, _ = kernel_of_triton(called(tmp_path))
        spec = kernel.spec["triton"]
        for name, value in called(tmp_path).arguments.items():
            if isinstance(value, int):
                kind, key = specialize(BaseBackend, value, False, True, True)
                assert (kind == "constexpr") == (name in kernel.spec["defines"]), name
                assert (key == "D") == (name in spec["divisible"]), name
        assert spec["parameters"] == ["a", "b", "c", "m", "n", "k", "stride_a", "stride_c"]

    @pytest.mark.parametrize(("old", "new", "message"), [
        ("stride_c = 100", "stride_d = 100", "unknown parameter 'stride_d'; did you mean stride"),
        ("stride_c = 100", "", "the value of parameter stride_c is missing"),
        ('c = { dtype = "f16", shape = ["m", "n"] }', 'c = "x"', "c is text, which only a tl.constexpr"),
        ("stride_c = 100", "stride_c = 100\nBLOCK_M = 64", "BLOCK_M is an argument and a meta-parameter"),
        ("stride_c = 100", "stride_c = 100\n[[configs]]\nBLOCKM = 64", "unknown meta-parameter 'BLOCKM'"),
        ('"ceil_div(m, BLOCK_M) * ceil_div(n, BLOCK_N)"', '"ceil_div(q, BLOCK_M)"', "unknown name 'q'"),
        ('grid = ["ceil_div(m, BLOCK_M) * ceil_div(n, BLOCK_N)"]', 'grid = "grids"', "no function 'grids'"),
        ('dtype = "f16"', 'dtype = "f17"', "unknown dtype 'f17'; did you mean f16"),
        ("stride_c = 100", 'stride_c = { python = "Nope" }', "python = 'Nope'.*: expected a literal such as None"),
    ])  # fmt: skip
    @pytest.mark.slow
    def test_inconsistent_call_is_refused_in_one_line(self, tmp_path, old, new, message):
        with pytest.raises(UsageError, match=message) as caught:
            kernel_of_triton(called(tmp_path, CALL.replace(old, new, 1)))
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(("stages", "rows"), [
        ("[[configs]]\nBLOCK = 64\nnum_stages = 2\n[[configs]]\nBLOCK = 64\nnum_stages = 4", [2, 4]),
        ("num_stages = 5\n[[configs]]\nBLOCK = 64", [5]), ("[[configs]]\nBLOCK = 64", [7]),
    ])  # fmt: skip
    def test_triton_parameter_named_num_stages_also_sets_the_option(self, tmp_path, stages, rows):
        """An earlier version ignored the requested value, and merged configs that differ only in `num_stages`."""
        (tmp_path / "f.py").write_text(
            "import triton\nimport triton.language as tl\n@triton.jit\n"
            "def f(x, y, BLOCK: tl.constexpr, num_stages: tl.constexpr = 7):\n    pass\n"
            "def grid(meta):\n    assert meta['y'] is None\n    return (meta['num_stages'],)\n"
        )
        text = (
            f'grid = "grid"\n[arguments]\nx = {{ dtype = "bf16", shape = 64 }}\ny = {{ python = "None" }}\n{stages}\n'
        )
        kernel, _ = kernel_of_triton(called(tmp_path, f"{text}{stages}\n", f"{tmp_path}/f.py:f"))
        columns = kernel.listed.columns
        assert [row[columns.index("num_stages")] for row in kernel.listed.rows] == rows
        assert [row[columns.index("grid_x")] for row in kernel.listed.rows] == rows
        assert kernel.spec["defines"] == {"y": "None"}
        assert kernel.definition.problem().dtype == "bf16"
        job = compile_job_for(kernel, configs_of(kernel)[-1], kernel.definition.problem(), 80, tmp_path)
        assert job.defines["num_stages"] == str(rows[-1])

    @pytest.mark.slow
    def test_triton_file_that_never_ends_is_stopped(self, tmp_path):
        from kernrec.compile.triton_describe import described

        request = {"source": "while True: pass", "name": "endless.py", "folder": "", "module": ""}
        request |= {"function": "f", "arguments": {}, "configs": None, "grid": None}
        with pytest.raises(UsageError, match=r"endless\.py: the process that loads it took longer than 1 s"):
            described(request, limit_s=1.0)
