"""Test `wgmma` products against NumPy in every type, layout and swizzle mode, and missing waits. The tests build
shared-memory images element by element from the manual, independently of the emulator."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from kernrec.ptx import Counts, EmulationError, KernelLaunch, emulate, parse
from tests.helpers.matrix_tiles import SIZES, numbers, packed, random_bits, store


def kernel(body: str, registers: int, inputs: int, image_bytes: int) -> str:
    """Return a kernel whose warpgroup copies the image to shared memory, loads A, runs `body` and stores %d0, ..."""
    return "\n".join(
        [
            ".version 8.7\n.target sm_90a\n.address_size 64",
            ".visible .entry k(.param .u64 image, .param .u64 a, .param .u64 o, .param .u64 pa, .param .u64 pb)\n{",
            f".reg .pred %p<8>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .b32 %d<{registers}>; .reg .b32 %a<8>;",
            f".shared .align 1024 .b8 memory[{image_bytes}];",
            "mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [image]; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [o];",
            "ld.param.u64 %rd10, [pa]; ld.param.u64 %rd11, [pb]; mov.u32 %r1, memory; mov.u32 %r2, %r0;",
            f"COPY: setp.ge.u32 %p0, %r2, {image_bytes // 16}; @%p0 bra DONE; mul.wide.u32 %rd3, %r2, 16;",
            "add.u64 %rd3, %rd0, %rd3; ld.global.v4.b32 {%r3, %r5, %r6, %r7}, [%rd3]; shl.b32 %r4, %r2, 4;",
            "add.u32 %r4, %r4, %r1; st.shared.v4.b32 [%r4], {%r3, %r5, %r6, %r7}; add.u32 %r2, %r2, 128; bra COPY;",
            "DONE: shl.b32 %r8, %r0, 2; add.u32 %r8, %r8, %r1; setp.eq.u32 %p1, %r0, %r0;",
            "fence.proxy.async.shared::cta; bar.sync 0;",
            f"mul.wide.u32 %rd4, %r0, {4 * max(inputs, 1)}; add.u64 %rd4, %rd1, %rd4;",
            *(f"ld.global.b32 %a{i}, [%rd4+{4 * i}];" for i in range(inputs)),
            f"mul.wide.u32 %rd5, %r0, {4 * registers}; add.u64 %rd5, %rd2, %rd5;",
            *(f"mov.b32 %d{i}, 0;" for i in range(registers)),
            body,
            *(f"st.global.b32 [%rd5+{4 * i}], %d{i};" for i in range(registers)),
            "ret;\n}",
        ]
    )


def vector(name: str, count: int) -> str:
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"


def d_matrix(words: np.ndarray, n: int, dtype: str) -> np.ndarray:
    """Return D (64 x n) from the words of 128 threads (PTX ISA, figures of the fragment of D)."""
    out = np.zeros((64, n), dtype)
    values = words.view(dtype).reshape(128, -1)
    for thread in range(128):
        for i, value in enumerate(values[thread]):
            row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2 % 2)
            out[row, i // 4 * 8 + thread % 4 * 2 + i % 2] = value
    return out


def a_words(matrix: np.ndarray) -> np.ndarray:
    """Return the words of A (64 x K) for 128 threads (PTX ISA, figures of the fragment of A)."""
    per = 4 // matrix.dtype.itemsize
    out = np.zeros((128, 4 * per), matrix.dtype)
    for thread in range(128):
        for i in range(4 * per):
            word, e = divmod(i, per)
            row = thread // 32 * 16 + thread % 32 // 4 + 8 * (word % 2)
            out[thread, i] = matrix[row, word // 2 * 4 * per + thread % 4 * per + e]
    return out.view(np.uint32)


class Case(NamedTuple):
    d: str = "f32"
    a: str = "f16"
    b: str = "f16"
    n: int = 32
    row: int = 128
    majors: tuple[bool, bool] = (False, False)
    in_registers: bool = False


PLAIN = "wgmma.fence.sync.aligned; X wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
SCALES = "1, 1, 1"


def multiply(
    case: Case,
    body: str = PLAIN,
    mutate: Callable[[str], str] = str,
    describe: Callable[[int], int] = int,
    scales: str = SCALES,
) -> tuple[np.ndarray, np.ndarray, Counts]:
    """Return D, the expected D and the counts. `body` has X in place of the multiplication. `mutate` changes the
    kernel's text, and `describe` changes the descriptor of B. `scales` has scale-d, then optionally imm-scale-a and
    imm-scale-b."""
    size_a, size_b = SIZES.get(case.a, 1), SIZES.get(case.b, 1)
    a, b = random_bits(case.a, (64, 32 // size_a)), random_bits(case.b, (case.n, 32 // size_b))
    tile_a = packed(0, case.row, 64, size_a, case.majors[0])
    tile_b = packed(8192, case.row, case.n, size_b, case.majors[1])
    image = np.zeros(8192 + max(case.n, 64) * 128, np.uint8)
    store(image, tile_b, b)
    if not case.in_registers:
        store(image, tile_a, a)
    count = case.n // (4 if case.d == "f16" else 2)
    flags = [int(major) for major in case.majors[case.in_registers :]] if case.a in ("f16", "bf16") else []
    operands = [vector("d", count), vector("a", 4) if case.in_registers else "%rd10", "%rd11"]
    operands += [scales if case.d != "s32" else scales.split(",")[0], *map(str, flags)]
    name = f"wgmma.mma_async.sync.aligned.m64n{case.n}k{32 // size_a}.{case.d}.{case.a}.{case.b}"
    text = kernel(body.replace("X", f"{name} {', '.join(operands)};"), count, 4 * case.in_registers, len(image))
    out = np.zeros((128, count), np.uint32)
    buffers = {"image": image, "a": a_words(a) if case.in_registers else np.zeros(128, np.uint32), "o": out}
    arguments = ["image", "a", "o", np.uint64(tile_a.wgmma), np.uint64(describe(tile_b.wgmma))]
    counts = emulate(parse(mutate(text)), KernelLaunch("k", (1,), (128,), arguments, buffers), check_races=True)
    expected = numbers(case.a, a) @ numbers(case.b, b).T
    return d_matrix(out, case.n, {"f16": "f2", "f32": "f4", "s32": "i4"}[case.d]), expected, counts


@pytest.mark.parametrize("case", [
    Case("f32", "f16", "f16", 64, 128), Case("f32", "bf16", "bf16", 8, 64), Case("f16", "f16", "f16", 24, 32),
    Case("f32", "tf32", "tf32", 16, 16), Case("f32", "e4m3", "e5m2", 32, 128), Case("f16", "e5m2", "e4m3", 16, 64),
    Case("s32", "s8", "u8", 48, 32), Case("s32", "u8", "u8", 256, 16),
])  # fmt: skip
@pytest.mark.parametrize("in_registers", [False, True])
def test_wgmma_matches_numpy(case, in_registers):
    d, expected, counts = multiply(case._replace(in_registers=in_registers))
    assert np.array_equal(d, expected)
    counted, share = {"e4m3": ("f16", 2), "e5m2": ("f16", 2), "s8": ("i8", 1), "u8": ("i8", 1)}.get(case.a, (case.a, 1))
    operations = 2 * 64 * case.n * (32 // SIZES.get(case.a, 1)) // share
    assert counts[f"mma.{counted}"] == counts[f"wgmma.{counted}"] == operations
    assert counts["wgmma.shared_bytes"] == 32 * (case.n + (0 if in_registers else 64))
    assert counts["wgmma.waits"] == 1


@pytest.mark.parametrize("row", [16, 32, 64, 128])
@pytest.mark.parametrize("majors", [(True, False), (False, True), (True, True)])
def test_16_bit_matrices_may_be_transposed(row, majors):
    case = Case(row=row, n=64, majors=majors)
    d, expected, _ = multiply(case)
    assert np.array_equal(d, expected)
    flags = ", ".join(str(int(major)) for major in majors) + ";"
    d, expected, _ = multiply(case, mutate=lambda text: text.replace(f"1, 1, {flags}", "1, 1, 0, 0;"))
    assert not np.array_equal(d, expected)


def test_operands_control_accumulation_and_signs():
    twice = PLAIN.replace("X", "X X")  # no fence is needed between products of equal shape and registers
    d, expected, _ = multiply(Case(), twice)
    assert np.array_equal(d, 2 * expected)
    d, expected, _ = multiply(Case(), twice, scales="0, 1, -1")
    assert np.array_equal(d, -expected)
    d, expected, _ = multiply(Case(), twice, scales="!%p1, -1, -1")
    assert np.array_equal(d, expected)


def test_integers_saturate_on_request():
    full = str(0x7FFFFFFF)
    preset = lambda text: text.replace("mov.b32 %d0, 0", f"mov.b32 %d0, {full}")  # noqa: E731
    case = Case("s32", "u8", "u8", 8, 16)
    assert multiply(case, mutate=preset)[0].min() < 0
    d, _, _ = multiply(case, mutate=lambda text: preset(text).replace("s32.u8.u8", "satfinite.s32.u8.u8", 1))
    assert d.min() >= 0
    assert d.max() == 0x7FFFFFFF


@pytest.mark.parametrize(("wrong", "why"), [
    (lambda bits: bits ^ 3 << 62, "the swizzle mode"), (lambda bits: bits + (1 << 32), "the stride offset"),
    (lambda bits: bits + 1, "the start"), (lambda bits: bits | 1 << 49, "the base offset"),
])  # fmt: skip
def test_wrong_matrix_descriptor_reads_other_data(wrong, why):
    d, expected, _ = multiply(Case(n=64, row=64), describe=wrong)
    assert not np.array_equal(d, expected), why


def test_invalid_descriptor_is_an_error(refuses):
    refuses(lambda wrong: multiply(Case(), describe=wrong), [
        lambda bits: bits | 1 << 14, lambda bits: bits | 1 << 53, lambda bits: bits & ~(3 << 62) | 1 << 49,
        lambda bits: bits | 0x3FFF,
    ])  # fmt: skip


WAIT = "wgmma.wait_group.sync.aligned 0;"
COMMIT = "wgmma.commit_group.sync.aligned;"
FENCE = "wgmma.fence.sync.aligned;"


def test_missing_fence_or_wait_is_an_error(refuses):
    refuses(lambda body: multiply(Case(in_registers=True), body), [
        PLAIN.replace(WAIT, ""), PLAIN.replace(COMMIT, ""), PLAIN.replace("0;", "1;"),
        PLAIN.replace(WAIT, f"mov.b32 %r9, %d3; {WAIT}"), PLAIN.replace(WAIT, f"mov.b32 %a1, 0; {WAIT}"),
        PLAIN.replace(FENCE, ""), PLAIN.replace("X", "mov.b32 %d5, 1; X"), PLAIN.replace("X", "mov.b32 %a2, 1; X"),
        PLAIN.replace(WAIT, f"bar.sync 0; st.shared.b32 [%r8+8192], %r0; {WAIT}"),
        PLAIN.replace("X", "st.shared.b32 [%r8+8192], %r0; bar.sync 0; X"),
        PLAIN.replace("X", "st.shared.b32 [%r8+8192], %r0; fence.proxy.async; X"),
    ])  # fmt: skip


@pytest.mark.parametrize("body", [
    PLAIN.replace("X", f"X {COMMIT} X").replace(WAIT, f"wgmma.wait_group.sync.aligned 1; {WAIT}"),
    PLAIN.replace("X", "st.shared.b32 [%r8+8192], %r0; bar.sync 0; fence.proxy.async; X"),
    PLAIN + "bar.sync 0; st.shared.b32 [%r8+8192], %r0;",
])  # fmt: skip
def test_fenced_and_awaited_wgmma_is_accepted(body):
    multiply(Case(in_registers=True), body)


def test_descriptor_may_be_overwritten_during_its_operation():
    def sums_first(text: str) -> str:
        """Declare the sums first, so that they get the lowest 32-bit registers."""
        return text.replace(
            "mov.u32 %r0, %tid.x;", "".join(f"mov.b32 %d{i}, 0;" for i in range(16)) + "mov.u32 %r0, %tid.x;"
        )

    result, expected, _ = multiply(Case(), PLAIN.replace(WAIT, f"mov.b64 %rd10, 0; {WAIT}"), sums_first)
    assert np.allclose(result, expected, rtol=1e-3, atol=1e-3)


def test_incomplete_warpgroup_is_an_error():
    part = "setp.lt.u32 %p2, %r0, 96; @!%p2 bra AFTER; " + PLAIN + "AFTER:"
    with pytest.raises(EmulationError, match="not all 128 threads of the warpgroup"):
        multiply(Case(), part)


def test_sparse_matrix_is_refused_by_name():
    with pytest.raises(EmulationError, match="a sparse matrix A"):
        multiply(Case(), mutate=lambda text: text.replace("mma_async.sync", "mma_async.sp.sync"))
