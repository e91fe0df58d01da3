"""Test that a grid function can use only names of the config and of the arguments."""

from types import SimpleNamespace

import pytest

from kernrec.compile import triton_version
from kernrec.compile.compiled import CompileJob, NoCompilerError, TritonTarget
from kernrec.compile.nvrtc import cache_key
from kernrec.compile.triton_describe import describe
from kernrec.errors import UsageError


def parameter(name: str, constant: bool) -> SimpleNamespace:
    return SimpleNamespace(
        name=name, is_constexpr=constant, has_default=False, default=None, annotation_type="",
        do_not_specialize=False, do_not_specialize_on_alignment=False,
    )  # fmt: skip


FUNCTION = SimpleNamespace(params=[parameter("n", False), parameter("BLOCK", True)], cache_key="")


def grid(meta: dict[str, int]) -> tuple[int]:
    return (meta["n"] // meta["BLOCK"],)


def described(**config: int) -> dict:
    return {"arguments": {"n": 64}, "configs": [config]}


def test_grid_with_an_unknown_name_is_refused_in_one_line():
    with pytest.raises(UsageError, match="the grid uses 'BLOCK', which is neither an argument nor in the config"):
        describe(FUNCTION, grid, described(num_warps=4))


def test_config_with_an_unknown_tunable_has_no_grid():
    (config,) = describe(FUNCTION, grid, described(BLOCKS=16))["configs"]
    assert config == {"constants": {"BLOCKS": 16}, "options": {}, "grid": None}
    (config,) = describe(FUNCTION, grid, described(BLOCK=16))["configs"]
    assert config["grid"] == [4, 1, 1]


JOB = CompileJob("", 80, name="f.py", triton=TritonTarget("f", {}, "code", None))


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in ("TRITON_DEFAULT_FP_FUSION", "TRITON_FORCE_DISABLE_FP_FUSION"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("release", "fused"), [("3.4.0", True), ("3.9.0", True), ("3.10.0", False), ("4.0", False)])
def test_multiply_add_fusion_follows_the_triton_release_or_the_environment(monkeypatch, release, fused):
    monkeypatch.setattr(triton_version, "triton_compiler", lambda: f"triton {release}")
    assert triton_version.fp_fusion() is fused
    assert f"as triton {release} does by default" in (triton_version.fp_fusion_note() or "")
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "on")
    assert triton_version.fp_fusion()
    assert triton_version.fp_fusion_note() is None
    monkeypatch.setenv("TRITON_FORCE_DISABLE_FP_FUSION", "1")
    assert not triton_version.fp_fusion()


def test_triton_without_a_required_function_is_refused_by_name(monkeypatch):
    compiler = pytest.importorskip("triton.compiler")
    monkeypatch.setattr(triton_version, "triton_compiler", lambda: "triton 9.1.0")
    assert "Triton 9.1.0 was not tested" in str(triton_version.untested_version())
    triton_version.check_interfaces.__wrapped__()
    monkeypatch.delattr(compiler, "ASTSource")
    with pytest.raises(NoCompilerError, match=r"triton 9\.1\.0 has no triton\.compiler\.ASTSource, which"):
        triton_version.check_interfaces.__wrapped__()


def test_disabled_fusion_changes_the_code(monkeypatch):
    monkeypatch.setattr(triton_version, "triton_compiler", lambda: "triton 3.9.0")
    key = cache_key(JOB)
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    assert cache_key(JOB) == key
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    assert cache_key(JOB) != key
