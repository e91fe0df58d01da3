"""Test that Triton kernels are emitted as Python with a launcher, and as PTX."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernrec.compile.triton_compile import with_dynamic_shared
from kernrec.compile.triton_version import has_triton
from kernrec.emit import emit
from kernrec.recommender import Answer, Objective, Query, Recommender, Request

QUERY = Query(Objective.LATENCY, top=1)


def answer() -> Answer:
    """Return a recommendation for the library's Triton matmul, whose profiles ship with kernrec."""
    return Recommender([]).answer(Request("a100", None, "matmul_triton", "m=40,n=512,k=64", "f16", "nn", QUERY))


def test_dynamic_shared_memory_replaces_a_static_array():
    fixed = ".visible .entry f()\n{\n\t.shared .align 16 .b8 global_smem[98304];\n}\n.shared .align 4 .b8 own[64];"
    assert with_dynamic_shared(fixed) == fixed.replace(".shared .align 16", ".extern .shared .align 16").replace(
        "[98304]", "[]"
    )


def test_emit_never_substitutes_another_kernel_for_the_best(monkeypatch, refuses):
    own = Recommender([]).answer(Request("a100", None, "matmul_mma", "m=40,n=512,k=64", "f16", "nn", QUERY))
    recommended = replace(own, recommendations=(*answer().recommendations, *own.recommendations))
    assert recommended.best.kernel.name == "matmul_triton"
    refuses(lambda: emit([recommended], "cuda"))
    refuses(lambda: emit([own], "triton"))
    ((name, content),) = emit([recommended], "triton").items()
    assert name == "matmul_triton.py"
    compile(content, name, "exec")
    monkeypatch.setattr("kernrec.compile.triton_version.has_triton", lambda: False)
    refuses(lambda: emit([recommended], "ptx"))


class Launched:
    """Stand-in for a Triton function that stores the grid and the arguments of its launch."""

    def __getitem__(self, grid: object) -> "Launched":
        self.grid = grid
        return self

    def __call__(self, **arguments: object) -> None:
        self.arguments = arguments


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_emitted_launcher_passes_the_arguments_of_the_recommended_launch(layout):
    pytest.importorskip("triton", reason="needs the extra `triton`")
    recommended = Recommender([]).answer(
        Request("a100", None, "matmul_triton", "m=40,n=512,k=64", "f16", layout, QUERY)
    )
    (content,) = emit([recommended], "triton").values()
    names: dict[str, Any] = {"matmul_triton": Launched()}
    launcher = content.decode().partition("\nCONFIG =")[2]
    exec(f"CONFIG ={launcher}", names)
    names["launch"]("a", "b", "c")
    launched, best = names["matmul_triton"], recommended.best
    sizes = {"a": "a", "b": "b", "c": "c", "m": 40, "n": 512, "k": 64}
    assert launched.grid == best.launches[0].grid
    assert sizes.items() <= launched.arguments.items()
    assert launched.arguments["num_warps"] == best.config["num_warps"]
    assert ("LAYOUT_NT" in launched.arguments) == (layout == "nt")


@pytest.mark.slow
@pytest.mark.skipif(not has_triton(), reason="needs the extra `triton`")
def test_ptx_of_a_triton_kernel_assembles(tmp_path):
    (ptx,) = emit([answer()], "ptx").values()
    assert b".extern .shared .align 16 .b8 global_smem[]" in ptx
    (tmp_path / "k.ptx").write_bytes(ptx)
    import triton

    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    subprocess.run([assembler, "-arch=sm_80", tmp_path / "k.ptx", "-o", tmp_path / "k.cubin"], check=True)
