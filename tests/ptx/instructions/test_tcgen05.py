"""Test that `tcgen05` products, moves and copies match the manual, and that missing waits are detected."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from kernrec.ptx import Counts, EmulationError, KernelLaunch, emulate, parse
from tests.helpers.matrix_tiles import RNG, SIZES, numbers, packed, random_bits, store

FENCED = "tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;"
COMMIT = "@%first tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar];"
AFTER = "tcgen05.fence::after_thread_sync;"
WAIT = f"WAIT: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0; @!%done bra WAIT; {AFTER}"
DEALLOC = "bar.sync 0; @%warp0 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, COLUMNS;"
LOADED = "tcgen05.wait::ld.sync.aligned;"
STORED = "tcgen05.wait::st.sync.aligned;"


def registers(name: str, count: int) -> str:
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"


def kernel(body: str, image_bytes: int, count: int, columns: int) -> str:
    """Return a kernel of 128 threads that copies an image to shared memory, allocates `columns` of tensor memory,
    loads `count` words as %i0, ..., runs `body`, and stores each thread's %o0, ..."""
    return "\n".join(
        [
            ".version 8.7\n.target sm_100a\n.address_size 64",
            ".visible .entry k(.param .u64 image, .param .u64 in, .param .u64 out, .param .u64 a, .param .u64 b,",
            ".param .u32 says)\n{",
            ".reg .pred %p<8>; .reg .pred %first; .reg .pred %warp0; .reg .pred %done; .reg .b32 %r<20>;",
            f".reg .b64 %rd<20>; .reg .b32 %i<{count + 1}>; .reg .b32 %o<{count + 1}>; .reg .b32 %bar;",
            ".reg .b32 %base; .reg .b32 %mine; .reg .b32 %says; .reg .b64 %a; .reg .b64 %b;",
            f".shared .align 1024 .b8 memory[{image_bytes}]; .shared .align 8 .b8 barrier[8]; .shared .b32 place;",
            "mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [image]; ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];",
            "ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; ld.param.u32 %says, [says]; mov.u32 %r1, memory;",
            "mov.u32 %bar, barrier; mov.u32 %r9, place; setp.eq.u32 %first, %r0, 0; setp.lt.u32 %warp0, %r0, 32;",
            "@%first mbarrier.init.shared::cta.b64 [%bar], 1; mov.u32 %r2, %r0;",
            f"@%warp0 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r9], {columns};",
            "@%warp0 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
            f"COPY: setp.ge.u32 %p0, %r2, {image_bytes // 16}; @%p0 bra DONE; mul.wide.u32 %rd3, %r2, 16;",
            "add.u64 %rd3, %rd0, %rd3; ld.global.v4.b32 {%r3, %r5, %r6, %r7}, [%rd3]; shl.b32 %r4, %r2, 4;",
            "add.u32 %r4, %r4, %r1; st.shared.v4.b32 [%r4], {%r3, %r5, %r6, %r7}; add.u32 %r2, %r2, 128; bra COPY;",
            "DONE: fence.proxy.async.shared::cta; bar.sync 0; ld.shared.b32 %base, [%r9]; and.b32 %r8, %r0, 96;",
            f"shl.b32 %r8, %r8, 16; add.u32 %mine, %base, %r8; mul.wide.u32 %rd4, %r0, {4 * count};",
            "add.u64 %rd5, %rd1, %rd4; add.u64 %rd6, %rd2, %rd4;",
            *(f"ld.global.b32 %i{i}, [%rd5+{4 * i}]; mov.b32 %o{i}, 0;" for i in range(count)),
            body,
            *(f"st.global.b32 [%rd6+{4 * i}], %o{i};" for i in range(count)),
            DEALLOC.replace("COLUMNS", str(columns)),
            "ret;\n}",
        ]
    )


def run(
    body: str,
    words: np.ndarray,
    image: np.ndarray | None = None,
    descriptors: Sequence[int] = (0, 0, 0),
    columns: int = 512,
    mutate: Callable[[str], str] = str,
) -> tuple[np.ndarray, Counts]:
    """Run a body. Return the words of each thread (128, n) and the counts."""
    image = np.zeros(16, np.uint8) if image is None else image
    count = words.shape[1]
    out = np.zeros((128, count), np.uint32)
    text = mutate(kernel(body, len(image), count, columns))
    a, b, says = descriptors
    arguments = ["image", "in", "out", np.uint64(a), np.uint64(b), np.uint32(says)]
    buffers = {"image": image, "in": np.ascontiguousarray(words), "out": out}
    counts = emulate(parse(text), KernelLaunch("k", (1,), (128,), arguments, buffers), check_races=True)
    return out, counts


def random_words(count: int) -> np.ndarray:
    return RNG.integers(0, 1 << 32, (128, count), dtype=np.uint32)


def place(shape: str, t: int, r: int) -> tuple[int, int]:
    """Return lane and column of a register (PTX ISA, figures of the matrix fragments of `tcgen05.ld`)."""
    group, pair = divmod(t, 4)
    if shape == "16x256b":  # fragment of D of mma.m16n8, in groups of eight columns
        return group + 8 * (r // 2 % 2), r // 4 * 8 + pair * 2 + r % 2
    if shape == "16x128b":  # fragment of A of a tf32 mma.m16n8k4
        return group + 8 * (r % 2), r // 2 * 4 + pair
    return group + 8 * (pair % 2), r * 2 + pair // 2


@pytest.mark.parametrize(("shape", "times", "count"), [("16x64b", 4, 4), ("16x128b", 2, 4), ("16x256b", 2, 8)])
@pytest.mark.parametrize("half", [0, 16])
def test_tensor_memory_shapes_have_the_documented_layout(shape, times, count, half):
    words = random_words(16)
    body = (
        f"tcgen05.st.sync.aligned.32x32b.x16.b32 [%mine], {registers('i', 16)}; {STORED}"
        f"tcgen05.ld.sync.aligned.{shape}.x{times}.b32 {registers('o', count)}, [%mine+{half << 16}]; {LOADED}"
    )
    out, counts = run(body, words)
    for t in range(128):
        for r in range(count):
            lane, column = place(shape, t % 32, r)
            assert out[t, r] == words[t // 32 * 32 + half + lane, column]
    assert counts["tensor_memory.store_bytes"] == 128 * 16 * 4
    assert counts["tensor_memory.load_bytes"] == 128 * count * 4
    assert counts["tcgen05.waits"] == 8


@pytest.mark.parametrize("shape", ["32x32b.x8", "16x64b.x8", "16x128b.x4", "16x256b.x2", "16x32bx2.x8"])
def test_tensor_memory_store_is_read_back_unchanged(shape):
    words = random_words(8)
    split = ", 8" if "bx2" in shape else ""
    body = (
        f"tcgen05.st.sync.aligned.{shape}.b32 [%mine+4]{split}, {registers('i', 8)}; {STORED}"
        f"tcgen05.ld.sync.aligned.{shape}.b32 {registers('o', 8)}, [%mine+4]{split}; {LOADED}"
    )
    assert np.array_equal(run(body, words)[0], words)


def test_tensor_memory_packs_and_unpacks_16_bit_values():
    words = random_words(4)
    body = (
        f"tcgen05.st.sync.aligned.32x32b.x2.unpack::16b.b32 [%mine], {registers('i', 2)}; {STORED}"
        f"tcgen05.ld.sync.aligned.32x32b.x4.b32 {registers('o', 4)}, [%mine]; {LOADED}"
    )
    out, _ = run(body, words)
    assert np.array_equal(out, np.ascontiguousarray(words[:, :2]).view(np.uint16).astype(np.uint32))
    body = (
        f"tcgen05.st.sync.aligned.32x32b.x4.b32 [%mine], {registers('i', 4)}; {STORED}"
        f"tcgen05.ld.sync.aligned.32x32b.x2.pack::16b.b32 {registers('o', 2)}, [%mine]; {LOADED}"
    )
    out, _ = run(body, words)
    assert np.array_equal(np.ascontiguousarray(out[:, :2]).view(np.uint16), (words & 0xFFFF).astype(np.uint16))


@pytest.mark.parametrize(("shape", "lanes", "rows"), [
    ("128x256b", range(128), range(128)),
    ("128x128b", range(128), range(128)),
    ("4x256b", range(0, 128, 32), range(4)),
    ("64x128b.warpx2::02_13", range(128), [r % 64 for r in range(128)]),
    ("64x128b.warpx2::01_23", range(128), [r % 32 + r // 64 * 32 for r in range(128)]),
    ("32x128b.warpx4", range(128), [r % 32 for r in range(128)]),
    ("warpx4.32x128b", range(128), [r % 32 for r in range(128)]),  # Triton writes this form
])  # fmt: skip
def test_rows_are_copied_from_shared_memory(shape, lanes, rows):
    width = 32 if "256b" in shape else 16
    matrix = RNG.integers(0, 256, (128, width), dtype=np.uint8)
    image = np.zeros(128 * 64, np.uint8)
    tile = packed(0, 64, 128, 1, False)
    store(image, tile, matrix)
    body = (
        f"@%first tcgen05.cp.cta_group::1.{shape} [%base], %a; {COMMIT} {WAIT}"
        f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {registers('o', 8)}, [%mine]; {LOADED}"
    )
    out, counts = run(body, random_words(8), image, (tile.tcgen05, 0, 0))
    words = matrix.view(np.uint32)
    for lane, row in zip(lanes, rows, strict=True):
        assert np.array_equal(out[lane, : width // 4], words[row])
    assert counts["tcgen05.shared_bytes"] == len(set(rows)) * width


class Case(NamedTuple):
    kind: str = "f16"
    a: str = "f16"
    b: str = "f16"
    d: str = "f32"
    m: int = 128
    n: int = 32
    row: int = 128
    majors: tuple[bool, bool] = (False, False)
    in_tensor: bool = False

    @property
    def says(self) -> int:
        types = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "u8": 0, "s8": 1}
        result = {"f16": 0, "f32": 1, "s32": 2}[self.d]
        shape = self.n >> 3 << 17 | self.m >> 4 << 24
        return (
            result << 4 | types[self.a] << 7 | types[self.b] << 10 | self.majors[0] << 15 | self.majors[1] << 16 | shape
        )


MULTIPLY = f"@%first X {COMMIT} {WAIT}"


def multiply(
    case: Case,
    body: str = MULTIPLY,
    mutate: Callable[[str], str] = str,
    describe: Callable[[int], int] = int,
    says: Callable[[int], int] = int,
    enable: str = "0",
) -> tuple[np.ndarray, np.ndarray, Counts]:
    """Run `body`, where X stands for a multiplication. Return D, the expected D and the counts. `mutate`, `describe`
    and `says` change the PTX, the descriptor of B and the instruction descriptor."""
    a = random_bits(case.a, (case.m, 32 // SIZES.get(case.a, 1)))
    b = random_bits(case.b, (case.n, 32 // SIZES.get(case.b, 1)))
    tile_a = packed(0, case.row, case.m, SIZES.get(case.a, 1), case.majors[0])
    tile_b = packed(16384, case.row, case.n, SIZES.get(case.b, 1), case.majors[1])
    image = np.zeros(16384 + max(case.n, 96) * 128, np.uint8)
    store(image, tile_a, a)
    store(image, tile_b, b)
    words = np.zeros((128, case.n), np.uint32)
    lanes = np.arange(case.m) if case.m == 128 else np.arange(64) // 16 * 32 + np.arange(64) % 16
    operand = "%a"
    if case.in_tensor:
        operand = "[%base+256]"
        words[lanes, :8] = a.view(np.uint32)
        body = f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%mine+256], {registers('i', 8)}; {STORED} {FENCED}" + body
    instruction = f"tcgen05.mma.cta_group::1.kind::{case.kind} [%base], {operand}, %b, %says, {enable};"
    load = f"tcgen05.ld.sync.aligned.32x32b.x{case.n}.b32 {registers('o', case.n)}, [%mine]; {LOADED}"
    descriptors = tile_a.tcgen05, describe(tile_b.tcgen05), says(case.says)
    out, counts = run(body.replace("X", instruction) + load, words, image, descriptors, mutate=mutate)
    cells = np.ascontiguousarray(out[lanes])
    if case.d == "f16":
        d = (cells & 0xFFFF).astype(np.uint16).view(np.float16)
    else:
        d = cells.view(np.float32 if case.d == "f32" else np.int32)
    return d, numbers(case.a, a) @ numbers(case.b, b).T, counts


@pytest.mark.parametrize("case", [
    Case(), Case(a="bf16", b="bf16", m=64, row=64), Case(d="f16", n=16, row=32, m=64),
    Case("tf32", "tf32", "tf32", n=64, row=16), Case("f8f6f4", "e4m3", "e5m2", row=64),
    Case("f8f6f4", "e5m2", "e4m3", "f16", row=16), Case("i8", "s8", "u8", "s32"),
])  # fmt: skip
@pytest.mark.parametrize("in_tensor", [False, True])
def test_tcgen05_mma_matches_numpy(case, in_tensor):
    d, expected, counts = multiply(case._replace(in_tensor=in_tensor))
    assert np.array_equal(d, expected)
    counted, share = {"e4m3": ("f16", 2), "e5m2": ("f16", 2), "s8": ("i8", 1)}.get(case.a, (case.a, 1))
    operations = 2 * case.m * case.n * (32 // SIZES.get(case.a, 1)) // share
    assert counts[f"mma.{counted}"] == counts[f"tcgen05.{counted}"] == operations
    assert counts["tcgen05.shared_bytes"] == 32 * (case.n + (0 if in_tensor else case.m))
    assert counts["tensor_memory.mma_bytes"] == 4 * case.m * case.n + 32 * case.m * in_tensor


@pytest.mark.parametrize(
    ("kind", "dtype", "row"), [("f16", "f16", 16), ("f16", "bf16", 128), ("f8f6f4", "e4m3", 128), ("tf32", "tf32", 32)]
)
def test_matrices_may_be_mn_major(kind, dtype, row):
    case = Case(kind, dtype, dtype, m=64, row=row, majors=(True, True))
    d, expected, _ = multiply(case)
    assert np.array_equal(d, expected)
    d, expected, _ = multiply(case, says=lambda bits: bits & ~(1 << 15))
    assert not np.array_equal(d, expected)


@pytest.mark.parametrize(("enable", "factor"), [("%first", 2), ("!%first", 1), ("%first, 1", 1.5)])
def test_enable_operand_controls_accumulation(enable, factor):
    def repeat(text: str) -> str:
        start = text.index("tcgen05.mma")
        instruction = text[start : text.index(";", start) + 1]
        return text.replace("AGAIN", instruction.replace(", 0;", f", {enable};"))

    d, expected, _ = multiply(Case(), f"@%first X @%first AGAIN {COMMIT} {WAIT}", repeat)
    assert np.array_equal(d, factor * expected)


def test_instruction_descriptor_negates_a_matrix():
    d, expected, _ = multiply(Case(), says=lambda bits: bits | 1 << 13)
    assert np.array_equal(d, -expected)


def test_disabled_lanes_keep_their_values():
    body = "mov.b32 %r19, 0; mov.b32 %r18, 5; " + MULTIPLY
    d, expected, _ = multiply(Case(), body, enable="{%r19, %r19, %r18, %r19}, 0")
    assert np.isnan(d[[64, 66]]).all()
    assert np.array_equal(np.delete(d, [64, 66], 0), np.delete(expected, [64, 66], 0))


def test_unsupported_or_missing_memory_is_an_error(refuses):
    refuses(lambda body: multiply(Case(), body), [
        MULTIPLY.replace(WAIT, ""), MULTIPLY.replace(COMMIT, "").replace(WAIT, ""), MULTIPLY.replace(COMMIT, ""),
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [%mine], {%i0};" + MULTIPLY,
        "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%o0}, [%mine];" + MULTIPLY,
        MULTIPLY.replace(WAIT, "st.shared.b32 [%r1+16384], %r0;" + WAIT),
        "@%first st.shared.b32 [%r1], %r0; bar.sync 0;" + MULTIPLY,
        MULTIPLY + "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%o0}, [%base];",
        MULTIPLY + "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%o0}, [%mine+512];",
        MULTIPLY.replace("X", "tcgen05.mma.sp.cta_group::1.kind::f16 [%base], %a, %b, %says, 0;"),
    ])  # fmt: skip


BEFORE = "tcgen05.fence::before_thread_sync;"
STORE_FIRST = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%mine], {%i0};" + STORED
LOAD_FIRST = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%o0}, [%mine];" + LOADED


@pytest.mark.parametrize("first", [STORE_FIRST, LOAD_FIRST])
def test_warps_sharing_tensor_memory_need_fences_around_their_barrier(first):
    case = Case()
    d, expected, _ = multiply(case, first + FENCED + MULTIPLY)
    assert np.array_equal(d, expected)
    did = "stored" if first is STORE_FIRST else "loaded"
    with pytest.raises(EmulationError, match=rf"tcgen05\.mma.* warp 1 {did} with no .*before_thread_sync since"):
        multiply(case, first + FENCED.replace(BEFORE, "") + MULTIPLY)
    with pytest.raises(EmulationError, match=rf"tcgen05\.mma.* warp 1 {did} with no .*after_thread_sync since"):
        multiply(case, first + FENCED.replace(AFTER, "") + MULTIPLY)
    with pytest.raises(EmulationError, match=r"tcgen05\.ld.* warp 0 computed with no .*after_thread_sync since"):
        multiply(case, first + FENCED + MULTIPLY.replace(AFTER, ""))


def test_fences_are_not_required_in_barrier_only_kernels():
    d, expected, _ = multiply(Case(), STORE_FIRST + "bar.sync 0;" + MULTIPLY.replace(AFTER, ""))
    assert np.array_equal(d, expected)


def test_columns_are_allocated_and_released(refuses):
    refuses(lambda old, new: multiply(Case(), mutate=lambda text: text.replace(old, new)), [
        (DEALLOC.replace("COLUMNS", "512"), ""), ("%base, 512", "%base, 256"), ("[%r9], 512", "[%r9], 96"),
        ("[%r9], 512;", "[%r9], 512; X".replace("X", "@%warp0 tcgen05.alloc.cta_group::1.sync.aligned.b32 [%r9], 32;")),
        ("bar.sync 0; ld.shared.b32 %base", "ld.shared.b32 %base"),
    ])  # fmt: skip


def test_invalid_instruction_descriptor_is_an_error(refuses):
    refuses(lambda says: multiply(Case(), says=says), [
        lambda bits: bits | 1 << 6, lambda bits: bits | 1 << 2, lambda bits: bits | 5 << 7,
        lambda bits: bits + (1 << 24),
    ])  # fmt: skip


def test_invalid_matrix_descriptor_is_an_error(refuses):
    refuses(lambda describe: multiply(Case(), describe=describe), [
        lambda bits: bits ^ 1 << 46, lambda bits: bits | 3 << 61, lambda bits: bits | 0x3FFF,
    ])  # fmt: skip


@pytest.mark.parametrize("wrong", [lambda bits: bits ^ 6 << 61, lambda bits: bits + (1 << 32), lambda bits: bits + 1])
def test_wrong_matrix_descriptor_reads_other_data(wrong):
    d, expected, _ = multiply(Case(m=64), describe=wrong)
    assert not np.array_equal(d, expected)


def scaled_operand(kind: str, rows: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random numbers (rows, depth), and the 32 bytes of each row in shared memory."""
    if kind == "e2m1":
        codes = RNG.integers(0, 16, (rows, depth), dtype=np.uint8)
        value = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[codes & 7] * np.where(codes > 7, -1, 1)
        if depth == 64:  # two codes per byte
            return value, codes[:, ::2] | codes[:, 1::2] << 4
        padded = np.zeros((rows, 2, 16), np.uint8)
        padded[:, :, :8] = (codes[:, ::2] | codes[:, 1::2] << 4).reshape(rows, 2, 8)
        return value, padded.reshape(rows, 32)
    if kind == "e3m2":
        codes = RNG.integers(0, 64, (rows, depth), dtype=np.uint8)
        exponent, mantissa = (codes >> 2 & 7).astype(int), codes & 3
        value = np.where(exponent == 0, mantissa / 16.0, (4 + mantissa) * 2.0 ** (exponent - 5))
        padded = np.zeros((rows, 2, 16), np.uint8)
        for i in range(16):
            for bit in range(6):
                position = 6 * i + bit
                padded[:, :, position // 8] |= (codes.reshape(rows, 2, 16)[:, :, i] >> bit & 1) << position % 8
        return value * np.where(codes > 31, -1, 1), padded.reshape(rows, 32)
    codes = random_bits(kind, (rows, depth))
    return numbers(kind, codes), codes


@pytest.mark.parametrize(("kind", "a", "b", "vector", "scale"), [
    ("mxf8f6f4", "e4m3", "e5m2", 32, "ue8m0"), ("mxf8f6f4", "e2m1", "e3m2", 32, "ue8m0"),
    ("mxf4", "e2m1", "e2m1", 32, "ue8m0"), ("mxf4nvf4", "e2m1", "e2m1", 16, "ue4m3"),
])  # fmt: skip
def test_block_scaled_mma_matches_numpy(kind, a, b, vector, scale):
    m, n, depth = 128, 32, 64 if "mxf4" in kind else 32
    count = depth // vector
    (left, left_bytes), (right, right_bytes) = scaled_operand(a, m, depth), scaled_operand(b, n, depth)
    first = 2 if kind == "mxf8f6f4" else 0  # first used byte of a column
    codes = [RNG.integers(125, 130, (rows, 4), dtype=np.uint8) for rows in (m, n)]
    factors = [np.exp2(c.astype(float) - 127) for c in codes]
    if scale == "ue4m3":
        codes = [RNG.integers(0x30, 0x48, (rows, 4), dtype=np.uint8) for rows in (m, n)]
        factors = [numbers("e4m3", c) for c in codes]
    words = np.zeros((128, n), np.uint32)
    for row in range(m):
        words[row % 32 :: 32, row // 32] = codes[0].view(np.uint32)[row]
    words[:, 4] = np.tile(codes[1].view(np.uint32)[:, 0], 4)
    image = np.zeros(16384 + 8192, np.uint8)
    tiles = packed(0, 128, m, 1, False), packed(16384, 128, n, 1, False)
    store(image, tiles[0], left_bytes)
    store(image, tiles[1], right_bytes)
    types = {"e4m3": 0, "e5m2": 1, "e3m2": 4, "e2m1": 1 if "mxf4" in kind else 5}
    says = (
        types[a] << 7
        | types[b] << 10
        | n >> 3 << 17
        | (scale == "ue8m0") << 23
        | m >> 4 << 24
        | first << 29
        | first << 4
    )
    body = (
        f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%mine+256], {registers('i', 8)}; {STORED} {FENCED}"
        f"@%first tcgen05.mma.cta_group::1.kind::{kind}.block_scale.block{vector} [%base], %a, %b, %says, [%base+256],"
        f" [%base+260], 0; {COMMIT} {WAIT}"
        f"tcgen05.ld.sync.aligned.32x32b.x{n}.b32 {registers('o', n)}, [%mine]; {LOADED}"
    )
    out, counts = run(body, words, image, (tiles[0].tcgen05, tiles[1].tcgen05, says))
    scaled = [
        value * np.repeat(factor[:, first : first + count], vector, axis=1)
        for value, factor in zip((left, right), factors, strict=True)
    ]
    assert np.allclose(out.view(np.float32), scaled[0] @ scaled[1].T, rtol=1e-6, atol=1e-6)
    assert counts["mma.f16"] == 2 * m * n * depth // (4 if "mxf4" in kind else 2)


@pytest.mark.parametrize("m", [128, 256])
def test_pair_of_thread_blocks_multiplies_together(m):
    n, half = 32, m // 2
    a, b = random_bits("f16", (m, 16)), random_bits("f16", (n, 16))
    tiles = packed(0, 32, half, 2, False), packed(8192, 32, n // 2, 2, False)
    image = np.zeros((2, 12288), np.uint8)
    for block in range(2):
        store(image[block], tiles[0], a[block * half : (block + 1) * half])
        store(image[block], tiles[1], b[block * n // 2 : (block + 1) * n // 2])
    columns = n if m == 256 else n // 2
    body = (
        "mov.u32 %r10, %cluster_ctarank; setp.eq.u32 %p1, %r10, 0; and.pred %p1, %p1, %first; mov.b16 %h, 3;"
        "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
        "@%p1 tcgen05.mma.cta_group::2.kind::f16 [%base], %a, %b, %says, 0;"
        "@%p1 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%bar], %h;"
        f"{WAIT} tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {registers('o', columns)}, [%mine]; {LOADED}"
        "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    )
    text = kernel(body, image.shape[1], n, 32).replace("cta_group::1", "cta_group::2")
    text = text.replace(".reg .b64 %a;", ".reg .b64 %a; .reg .b16 %h;")
    text = text.replace("ld.param.u64 %rd2, [out];", "ld.param.u64 %rd2, [out]; mov.u32 %r11, %ctaid.x; SHIFT")
    text = text.replace(
        "SHIFT",
        f"mul.wide.u32 %rd7, %r11, {image.shape[1]}; add.u64 %rd0, %rd0, %rd7; mul.wide.u32 %rd8, %r11, {128 * n * 4};"
        "add.u64 %rd1, %rd1, %rd8; add.u64 %rd2, %rd2, %rd8;",
    )
    out = np.zeros((2, 128, n), np.uint32)
    says = 1 << 4 | n >> 3 << 17 | m >> 4 << 24
    arguments = ["image", "in", "out", np.uint64(tiles[0].tcgen05), np.uint64(tiles[1].tcgen05), np.uint32(says)]
    buffers: dict[str, np.ndarray] = {"image": image, "in": np.zeros_like(out), "out": out}
    counts = emulate(parse(text), KernelLaunch("k", (2,), (128,), arguments, buffers, cluster=(2,)), check_races=True)
    d = out[:, :, :columns].view(np.float32)
    if m == 128:
        d = np.concatenate([d[:, :64], d[:, 64:]], axis=2)
    assert np.array_equal(d.reshape(m, n), numbers("f16", a) @ numbers("f16", b).T)
    assert counts["tcgen05.f16"] == 2 * m * n * 16
