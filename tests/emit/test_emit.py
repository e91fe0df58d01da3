"""Test that nvcc compiles the output of `--emit cuda` without changes and without warnings, for host and device."""

from pathlib import Path
from typing import Any

import pytest

from kernrec.compile.compiled import target_name
from kernrec.emit import emit
from kernrec.emit.sources import variant_source
from kernrec.gpu import limits
from kernrec.kernel import Config, Kernel, Space, all_kernels
from kernrec.op import find_op
from kernrec.ptx import parse
from tests.helpers.nvcc import complaints
from tests.helpers.trial import OPS

SMS = (75, 80, 90, 100, 120)
"""The oldest and newest architecture, and each architecture that changes the library's sources or configs."""

CASES = [(kernel, dtype, layout) for kernel in all_kernels() for dtype in kernel.dtypes for layout in kernel.layouts]
DTYPES = [(kernel, place) for kernel in all_kernels() for place in range(len(kernel.dtypes))]


def _case(number: int) -> Any:
    """Return the test parameter of one kernel and dtype. All but one dtype of each kernel are marked `deep`."""
    kernel, place = DTYPES[number]
    turn = all_kernels().index(kernel) % len(kernel.dtypes)
    marks = () if place == turn else pytest.mark.deep
    return pytest.param(number, id=f"{kernel.name} {kernel.dtypes[place]}", marks=marks)


def variants(kernel: Kernel, dtype: str, layout: str) -> dict[tuple[int, ...], tuple[Config, list[int]]]:
    """Return configs that cover every value of `vector`, each with the architectures on which it can run."""
    chosen: dict[tuple[int, ...], tuple[Config, list[int]]] = {}
    for sm in SMS:
        if sm < kernel.least_sm(dtype):
            continue
        space = Space(kernel, sm, limits(sm), dtype, layout)
        for config, sms in chosen.values():
            if space.find([config])[0] >= 0:
                sms.append(sm)
        seen = {config.get("vector") for config, sms in chosen.values() if sm in sms}
        for row in space.variants.rows.tolist():
            config = space.config(row)
            if config.get("vector") not in seen:
                seen.add(config.get("vector"))
                chosen[tuple(config.values())] = (config, [sm])
    return chosen


def compiled(kernel: Kernel, place: int, number: int, folder: Path) -> None:
    """Compile a variant for dtype number `place`, and fail on any warning. Dtypes alternate between the layouts and
    between the oldest and newest architecture. A kernel with one dtype is compiled for both architectures."""
    dtype, layout = kernel.dtypes[place], kernel.layouts[place % len(kernel.layouts)]
    chosen = list(variants(kernel, dtype, layout).values())
    config, sms = chosen[number % len(chosen)]
    ends = sorted({sms[0], sms[-1]})
    source = folder / "variant.cu"
    dims = {"heads": 2, "queries": 64, "head_dim": 64}
    if kernel.op != "attention":
        dims = OPS[kernel.op].dims(kernel.name, dtype)[0]
    problem = find_op(kernel.op).problem(dtype, layout, **dims)
    source.write_text(variant_source(kernel, config, problem), encoding="utf-8")
    taken = ends if len(kernel.dtypes) == 1 else [ends[place % len(ends)]]
    targets = [target_name(kernel.source, sm).removeprefix("sm_") for sm in taken]
    assert complaints(source, targets) == "", f"{kernel.name} {dict(config)} {dtype} {layout}"


def test_variants_cover_every_architecture():
    for kernel, dtype, layout in CASES:
        chosen = variants(kernel, dtype, layout).values()
        assert {sm for _, sms in chosen for sm in sms} == {sm for sm in SMS if kernel.runs_on(dtype, sm)}


@pytest.mark.slow
@pytest.mark.every(4)
@pytest.mark.parametrize("number", [_case(number) for number in range(len(DTYPES))])
def test_every_kernel_and_dtype_compiles_without_warnings(number, tmp_path):
    """The dtypes of a kernel alternate between its vector widths."""
    compiled(*DTYPES[number], number, tmp_path)


@pytest.fixture
def answer(recommender):
    return recommender.recommend("softmax", "l4", "rows=64,columns=512", "f16")


def test_emit_refuses_requests_that_the_format_cannot_express(answer, refuses):
    cases = [("ptz", 1), ("cuda", 2), ("ptx", 2), ("ptx:8.0", 1), ("cubin", 1), ("cmake", 1)]
    refuses(lambda form, problems: emit([answer] * problems, form), cases)


def test_ptx_states_how_to_launch_its_kernels(answer):
    pytest.importorskip("cupy", reason="compiling needs CuPy")
    (text,) = emit([answer], "ptx").values()
    assert "softmax_rows<<<dim3(" in text.decode()
    assert set(parse(text.decode()).entries) >= {launch.entry for launch in answer.best.launches}
