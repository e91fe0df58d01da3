"""Test the assumed default for floating-point fusion in Triton, and that it is part of the cache key."""

import pytest

from kernrec.compile import triton_version
from kernrec.compile.compiled import CompileJob, TritonTarget
from kernrec.compile.nvrtc import cache_key

JOB = CompileJob("", 80, name="f.py", triton=TritonTarget("f", {}, "code", None))


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in ("TRITON_DEFAULT_FP_FUSION", "TRITON_FORCE_DISABLE_FP_FUSION"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("release", "fused"), [("3.4.0", True), ("3.9.0", True), ("3.10.0", False), ("4.0", False)])
def test_fusion_follows_the_release_or_the_environment(monkeypatch, release, fused):
    monkeypatch.setattr(triton_version, "triton_compiler", lambda: f"triton {release}")
    assert triton_version.fp_fusion() is fused
    assert f"as triton {release} does by default" in (triton_version.fp_fusion_note() or "")
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "on")
    assert triton_version.fp_fusion()
    assert triton_version.fp_fusion_note() is None
    monkeypatch.setenv("TRITON_FORCE_DISABLE_FP_FUSION", "1")
    assert not triton_version.fp_fusion()


def test_disabled_fusion_changes_the_code(monkeypatch):
    monkeypatch.setattr(triton_version, "triton_compiler", lambda: "triton 3.9.0")
    key = cache_key(JOB)
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    assert cache_key(JOB) == key
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    assert cache_key(JOB) != key
