"""Test tensor-core instructions: fragments and matrix moves match the PTX manual's layout tables, which the tests spell
out element by element, and products are rounded once."""

from collections.abc import Callable

import numpy as np
import pytest

from kernrec.ptx import Counts, EmulationError, KernelLaunch, emulate
from tests.helpers.narrow_floats import bf16_bits, bf16_values
from tests.helpers.paths import beside
from tests.helpers.ptx_text import LANE_POINTERS, cuda, run

Place = Callable[[int, int, int], tuple[int, int]]  # (group, thread in group, element) -> (row, column)

A_PLACES: dict[tuple[str, int], Place] = {
    ("m16n8k8", 2): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ("m16n8k16", 2): lambda g, t, i: (
        g if 0 <= i < 2 or 4 <= i < 6 else g + 8,
        t * 2 + (i & 1) if i < 4 else t * 2 + (i & 1) + 8,
    ),
    ("m16n8k4", 4): lambda g, t, i: (g if i == 0 else g + 8, t),
    ("m16n8k8", 4): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4),
    ("m8n8k16", 1): lambda g, t, i: (g, t * 4 + (i & 3)),
    ("m16n8k16", 1): lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3)),
    ("m16n8k32", 1): lambda g, t, i: (
        g if 0 <= i < 4 or 8 <= i < 12 else g + 8,
        t * 4 + (i & 3) if i < 8 else t * 4 + (i & 3) + 16,
    ),
    ("m8n8k4", 8): lambda g, t, i: (g, t),
    ("m16n8k4", 8): lambda g, t, i: (g if i == 0 else g + 8, t),
    ("m16n8k8", 8): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4),
    ("m16n8k16", 8): lambda g, t, i: (g if i % 2 == 0 else g + 8, i * 2 + t if i % 2 == 0 else i * 2 - 2 + t),
}
B_PLACES: dict[tuple[str, int], Place] = {
    ("m16n8k8", 2): lambda g, t, i: (t * 2 + (i & 1), g),
    ("m16n8k16", 2): lambda g, t, i: (t * 2 + (i & 1) if i < 2 else t * 2 + (i & 1) + 8, g),
    **dict.fromkeys((("m16n8k4", 4), ("m8n8k4", 8), ("m16n8k4", 8)), lambda g, t, i: (t, g)),
    **dict.fromkeys((("m16n8k8", 4), ("m16n8k8", 8)), lambda g, t, i: (t if i == 0 else t + 4, g)),
    **dict.fromkeys((("m8n8k16", 1), ("m16n8k16", 1)), lambda g, t, i: (t * 4 + (i & 3), g)),
    ("m16n8k32", 1): lambda g, t, i: (t * 4 + (i & 3) if i < 4 else t * 4 + (i & 3) + 16, g),
    ("m16n8k16", 8): lambda g, t, i: (i * 4 + t, g),
}


def c_place(g: int, t: int, i: int) -> tuple[int, int]:
    return (g if i < 2 else g + 8, t * 2 + (i & 1))


def packed(matrices: np.ndarray, place: Place, register_bytes: int) -> np.ndarray:
    """Pack matrices (warps, rows, columns) into the registers of the lanes: (warps * 32, registers)."""
    warps = len(matrices)
    elements = matrices[0].size // 32
    out = np.zeros((warps, 32, elements), matrices.dtype)
    for lane in range(32):
        for i in range(elements):
            out[:, lane, i] = matrices[:, *place(lane // 4, lane % 4, i)]
    return out.reshape(warps * 32, -1).view(f"u{register_bytes}")


STORED = {"f16": "f2", "bf16": "u2", "tf32": "u4", "s8": "i1", "u8": "u1", "f64": "f8", "f32": "f4", "s32": "i4"}


def bits(values: np.ndarray, kind: str) -> np.ndarray:
    """Return the values as the emulator finds them in registers."""
    if kind == "bf16":
        return bf16_bits(values.astype(np.float32))
    return values.astype(np.float32).view(np.uint32) if kind == "tf32" else values.astype(STORED[kind])


def source_of(shape: str, types: tuple[str, str, str, str], registers: tuple[int, int, int, int], marks: str) -> str:
    """Return a CUDA kernel whose lanes load A, B and C into registers, multiply, and store D."""
    wide = types[1] == "f64"
    kind, letter = ("unsigned long long", "d") if wide else ("unsigned", "r")
    d, a, b, c = registers
    names = [[f"%{sum(registers[:i]) + j}" for j in range(n)] for i, n in enumerate(registers)]
    text = ", ".join("{" + ", ".join(part) + "}" for part in names)
    cast = "__longlong_as_double" if wide else ""
    outputs = ", ".join(f'"={letter}"(r[{i}])' for i in range(d))
    inputs = ", ".join(
        f'"{letter}"({cast}({name}[t * {n} + {i}]))' for name, n in (("a", a), ("b", b), ("c", c)) for i in range(n)
    )
    out = f"{'double' if wide else 'unsigned'} r[{d}];"
    return f"""
    typedef {kind} R;
    extern "C" __global__ void k(const R* a, const R* b, const R* c, R* d) {{
        int t = blockIdx.x * blockDim.x + threadIdx.x; {out}
        asm volatile("mma.sync.aligned.{shape}.row.col{marks}.{".".join(types)} {text};" : {outputs} : {inputs});
        for (int i = 0; i < {d}; i++) d[t * {d} + i] = {"__double_as_longlong(r[i])" if wide else "r[i]"};
    }}
    """


def multiply(
    shape: str,
    types: tuple[str, str, str, str],
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    arch: str,
    marks: str = "",
) -> tuple[np.ndarray, Counts]:
    """Run `mma` in a compiled kernel on matrices of shape (4 warps in 2 blocks, rows, columns)."""
    d_type, a_type, b_type, c_type = types
    size = np.dtype(STORED[a_type]).itemsize
    width = 8 if a_type == "f64" else 4
    c_bits = bits(c, c_type)
    buffers = {
        "a": packed(bits(a, a_type), A_PLACES[shape, size], width),
        "b": packed(bits(b, b_type), B_PLACES[shape, size], width),
        "c": packed(c_bits, c_place, width),
    }
    d = np.zeros(c.shape, STORED[d_type])
    buffers["d"] = packed(d, c_place, width)
    registers = tuple(buffers[name].shape[1] for name in "dabc")
    kernel = cuda(source_of(shape, types, registers, marks), arch)  # type: ignore[arg-type]
    counts = emulate(kernel, KernelLaunch("k", (2,), (64,), ["a", "b", "c", "d"], buffers))
    elements = buffers["d"].view(d.dtype).reshape(len(c), 32, -1)
    for lane in range(32):
        for i in range(elements.shape[2]):
            d[:, *c_place(lane // 4, lane % 4, i)] = elements[:, lane, i]
    return d, counts


HALF = [("f32", "f16", "f16", "f32"), ("f16", "f16", "f16", "f16")]
BF16, TF32 = ("f32", "bf16", "bf16", "f32"), ("f32", "tf32", "tf32", "f32")
INTEGER = [("s32", x, y, "s32") for x in ("s8", "u8") for y in ("s8", "u8")]
CASES = [
    *((shape, types, "sm_80") for shape in ("m16n8k8", "m16n8k16") for types in (*HALF, BF16)),
    *(("m16n8k8", types, "sm_75") for types in HALF),
    *((shape, TF32, "sm_80") for shape in ("m16n8k4", "m16n8k8")),
    *((shape, types, "sm_80") for shape in ("m8n8k16", "m16n8k16", "m16n8k32") for types in INTEGER),
    ("m8n8k16", INTEGER[0], "sm_75"),
    ("m8n8k4", ("f64",) * 4, "sm_80"),
    *((shape, ("f64",) * 4, "sm_90") for shape in ("m16n8k4", "m16n8k8", "m16n8k16")),
]


@pytest.mark.parametrize(("shape", "types", "arch"), CASES)
def test_every_fragment_has_the_documented_layout(shape, types, arch):
    m, k = int(shape[1 : shape.index("n")]), int(shape[shape.index("k") + 1 :])
    rng = np.random.default_rng(m * k)
    ranges = {"s8": (-90, 91), "u8": (0, 200)}
    a = rng.integers(*ranges.get(types[1], (-8, 9)), (4, m, k))
    b = rng.integers(*ranges.get(types[2], (-8, 9)), (4, k, 8))
    c = rng.integers(-99, 99, (4, m, 8))
    d, counts = multiply(shape, types, a, b, c, arch)
    np.testing.assert_array_equal(d, a @ b + c)
    name = {"s8": "i8", "u8": "i8"}.get(types[1], types[1])
    assert counts["issue.mma"] == 4
    assert counts[f"mma.{name}"] == 4 * 2 * m * 8 * k


@pytest.mark.parametrize("types", [*HALF, BF16, TF32])
def test_mma_sums_exactly_and_rounds_once(types):
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((4, 16, 8)), rng.standard_normal((4, 8, 8))
    c = rng.standard_normal((4, 16, 8))
    if types[1] == "bf16":
        a, b = bf16_values(bits(a, "bf16")), bf16_values(bits(b, "bf16"))
    elif types[1] == "tf32":
        a, b = ((bits(x, "tf32") & 0xFFFFE000).view(np.float32) for x in (a, b))
    else:
        a, b = a.astype(np.float16), b.astype(np.float16)
    c = c.astype(STORED[types[3]])
    exact = c.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)
    d, _ = multiply("m16n8k8", types, a, b, c, "sm_80")
    np.testing.assert_array_equal(d, exact.astype(STORED[types[0]]))
    if types[1] == "tf32":  # the hardware ignores the last 13 bits of an operand
        noisy = (a.view(np.uint32) | 0x1FFF).view(np.float32)
        np.testing.assert_array_equal(multiply("m16n8k8", types, noisy, b, c, "sm_80")[0], d)


# The emulator runs many instructions in one step, which must keep their order and dependences.


def test_independent_mma_instructions_respect_their_dependences():
    rng = np.random.default_rng(11)
    for _ in range(20):
        # Registers %r0 to %r15 hold pairs of bf16 (8 x 8 matrices by lane). %f0 to %f15 hold sums.
        halves = bf16_bits(rng.integers(-3, 4, (16, 64)).astype(np.float32)).reshape(16, 32, 2).copy()
        sums = rng.integers(-9, 10, (16, 32)).astype(np.float32)
        lines, model, totals = [], halves.copy(), sums.copy()
        for _ in range(30):
            if rng.random() < 0.25:
                d, s = rng.integers(0, 16, 2)
                lines.append(f"mov.b32 %r{d}, %r{s};")
                model[d] = model[s]
                continue
            a, b = rng.choice(16, 2, replace=False), rng.integers(0, 16)
            c, d = (rng.choice(4) * 4 + np.arange(4) for _ in range(2))
            lines.append(
                f"mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {{{', '.join(f'%f{i}' for i in d)}}}, "
                f"{{%r{a[0]}, %r{a[1]}}}, {{%r{b}}}, {{{', '.join(f'%f{i}' for i in c)}}};"
            )
            left = np.concatenate([bf16_values(model[i]).reshape(8, 8) for i in a]).astype(np.float64)
            right = bf16_values(model[b]).reshape(8, 8).T
            start = totals[c].reshape(2, 2, 8, 4).transpose(0, 2, 3, 1).reshape(16, 8)
            result = (start + left @ right).reshape(2, 8, 4, 2).transpose(0, 3, 1, 2).reshape(4, 32)
            totals[d] = result
        out = np.zeros((16, 32), np.float32)
        head = "mov.u32 %r50, %tid.x; mul.wide.u32 %rd3, %r50, 4; " + "".join(
            f"ld.param.u64 %rd{i}, [{name}]; add.u64 %rd{i}, %rd{i}, %rd3; " for i, name in enumerate(("x", "s", "o"))
        )
        load = "".join(
            f"ld.global.b32 %r{i}, [%rd0+{128 * i}]; ld.global.f32 %f{i}, [%rd1+{128 * i}];" for i in range(16)
        )
        store = "".join(f"st.global.f32 [%rd2+{128 * i}], %f{i};" for i in range(16))
        buffers = {"x": halves, "s": sums, "o": out}
        run(head + load + "".join(lines) + store, "u64 x, u64 s, u64 o", list(buffers), buffers)
        np.testing.assert_array_equal(out, totals)


@pytest.mark.parametrize("pairs", [[(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)], [(0, 0), (1, 1), (2, 0)]])
def test_warp_tile_matmuls_are_exact_for_any_choice_of_tile_pairs(pairs):
    rng = np.random.default_rng(2)
    warps = 3
    x = rng.integers(-4, 5, (8, warps, 8, 8)).astype(np.float32)  # x[:6]: halves of three A tiles, x[6:]: two B tiles
    data = bf16_bits(x).reshape(8, -1, 2)
    out = np.zeros((len(pairs), 4, warps, 8, 4), np.float32)
    body = LANE_POINTERS + "".join(f"ld.global.b32 %r{i}, [%rd0+{128 * warps * i}];" for i in range(8))
    body += "".join(f"mov.b32 %f{i}, 0f3F800000;" for i in range(4 * len(pairs)))
    for n, (i, j) in enumerate(pairs):
        own = ", ".join(f"%f{4 * n + e}" for e in range(4))
        body += f"mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {{{own}}}, {{%r{2 * i}, %r{2 * i + 1}}}, "
        body += f"{{%r{6 + j}}}, {{{own}}};"
    body += "".join(f"st.global.f32 [%rd1+{128 * warps * i}], %f{i};" for i in range(4 * len(pairs)))
    counts = run(body, "u64 x, u64 o", ["x", "o"], {"x": data, "o": out}, block=(32 * warps,))
    got = out.reshape(len(pairs), 2, 2, warps, 8, 4).transpose(0, 3, 1, 4, 5, 2).reshape(len(pairs), warps, 16, 8)
    for n, (i, j) in enumerate(pairs):
        left = np.concatenate([x[2 * i], x[2 * i + 1]], axis=1)
        np.testing.assert_array_equal(got[n], 1 + left @ x[6 + j].transpose(0, 2, 1))
    assert counts["mma.bf16"] == len(pairs) * warps * 2 * 16 * 8 * 8
    assert counts["issue.mma"] == len(pairs) * warps


ONE = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1}, {%r2}, {%f0, %f1, %f2, %f3};"


def test_predicated_mma_runs_for_whole_active_warps():
    out = np.zeros((2, 32), np.float32)
    body = f"""{LANE_POINTERS.replace("ld.param.u64 %rd0, [x];", "mov.u64 %rd0, 0;")}
      mov.b32 %r0, 0x3C003C00; mov.b32 %r1, %r0; mov.b32 %r2, %r0; mov.b32 %f0, 0f00000000; mov.b32 %f1, %f0;
      mov.b32 %f2, %f0; mov.b32 %f3, %f0; setp.lt.u32 %p1, %r50, 32; @%p1 {ONE} st.global.f32 [%rd1], %f0;"""
    counts = run(body, "u64 o", ["o"], {"o": out}, block=(64,))
    assert out.tolist() == [[8.0] * 32, [0.0] * 32]
    assert counts["issue.mma"] == 2
    assert counts["mma.f16"] == 2 * 16 * 8 * 8


@pytest.mark.parametrize("text", [ONE, "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [0];"])
def test_incomplete_warp_is_an_error(text):
    message = r"not all 32 threads of the warp of block \(0, 0, 0\) thread \(32, 0, 0\)"
    with pytest.raises(EmulationError, match=message):
        run(text, block=(48,), shared_bytes=128)
    with pytest.raises(EmulationError, match=message):
        run("mov.u32 %r9, %tid.x; setp.lt.u32 %p1, %r9, 40; @%p1 " + text, block=(64,), shared_bytes=128)


def test_unknown_shapes_and_types_are_named(refuses):
    refuses(lambda text: run(text, shared_bytes=256), [
        ONE.replace("m16n8k8", "m16n8k4"), ONE.replace("row.col", "col.row"), ONE.replace("{%r0, %r1}", "{%r0}"),
        ONE.replace("f32.f16.f16.f32", "f32.f16.bf16.f32"), ONE.replace("f16.f16", "e4m3.e4m3").replace("k8", "k32"),
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r3}, [0];",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r3}, [0];", "movmatrix.sync.aligned.m8n8.b16 %r1, %r2;",
    ])  # fmt: skip


def test_lanes_of_a_warp_converge_before_an_mma():
    body = f"""mov.u32 %r9, %tid.x; mov.u32 %r8, 0; bra.uni HEAD;
      AFTER: {ONE} ret;
      HEAD: setp.ge.u32 %p1, %r8, %r9; @%p1 bra AFTER; add.u32 %r8, %r8, 1; bra.uni HEAD;"""
    assert run(body)["issue.mma"] == 1


def load_matrices(number: int, trans: bool, rows: np.ndarray, arch: str) -> tuple[np.ndarray, np.ndarray, Counts]:
    """Load matrices with the byte offset of each thread in `rows`. Return data, registers and counts."""
    x = np.arange(3 * 2048, dtype=np.uint16)
    out = np.zeros((3, 2, 32, number), np.uint32)
    source = beside(__file__, "move.cu").format(
        n=number,
        trans=".trans" if trans else "",
        names="{" + ", ".join(f"%{i}" for i in range(number)) + "}",
        outputs=", ".join(f'"=r"(r[{i}])' for i in range(number)),
    )
    buffers = {"x": x, "out": out, "at": rows.astype(np.uint32)}
    counts = emulate(cuda(source, arch), KernelLaunch("k", (3,), (64,), list(buffers), buffers))
    return x.reshape(3, 2048), out, counts


@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_loaded_matrices_equal_direct_loads(number, trans, arch):
    rng = np.random.default_rng(number)
    # Rows have random offsets, and unused lanes have addresses out of bounds.
    starts = rng.permutation(256)[:64].reshape(2, 32) * 16
    starts[:, 8 * number :] = 1 << 20
    x, out, _ = load_matrices(number, trans, starts.reshape(-1), arch)
    for warp in range(2):
        for matrix in range(number):
            rows = starts[warp, 8 * matrix : 8 * matrix + 8] // 2
            elements = x[:, rows[:, None] + np.arange(8)]
            if trans:
                elements = elements.transpose(0, 2, 1)
            want = np.ascontiguousarray(elements).reshape(3, 64).view(np.uint32)
            np.testing.assert_array_equal(out[:, warp, :, matrix], want)


@pytest.mark.parametrize(("place", "per_matrix"), [
    (lambda row: row * 16, 1),  # eight adjacent rows use all banks once
    (lambda row: row * 128, 8),  # all rows use the same four banks
    (lambda row: row * 64, 4),
    (lambda row: row * 144, 1),  # rows padded by 16 bytes use all banks once
    (lambda row: row * 128 + (row ^ 5) % 8 * 16, 1),  # swizzled rows use all banks once
    (lambda row: row * 64 + ((row >> 1) & 3) * 16, 1),
    (lambda row: row * 0, 1),  # all lanes load the same row
])  # fmt: skip
def test_matrix_load_takes_the_wavefronts_of_its_busiest_bank(place, per_matrix):
    for number in (1, 2, 4):
        starts = np.array([place(lane % 8) + lane // 8 % 4 * 1024 for lane in range(64)])
        _, _, counts = load_matrices(number, False, starts, "sm_80")
        warps = 6
        assert counts["issue.ld_shared"] == warps
        assert counts["shared.load_ideal"] == warps * number
        assert counts["shared.load_wavefronts"] == warps * number * per_matrix


def test_matrix_load_from_outside_is_an_error():
    with pytest.raises(EmulationError, match=r"thread \(5, 0, 0\) .*ldmatrix|ldmatrix.*thread \(5, 0, 0\)"):
        load_matrices(1, False, np.where(np.arange(64) == 5, 4096, 0), "sm_80")
    with pytest.raises(EmulationError, match="not a multiple of 16"):
        load_matrices(1, False, np.full(64, 8), "sm_80")


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_matrix_store_is_the_inverse_of_the_load(number, trans):
    x = np.random.default_rng(0).integers(0, 1 << 32, (number, 64)).astype(np.uint32)
    out = np.zeros_like(x)
    registers = "{" + ", ".join(f"%r{i}" for i in range(1, number + 1)) + "}"
    back = "{" + ", ".join(f"%r{i}" for i in range(11, number + 11)) + "}"
    body = f"""{LANE_POINTERS} shl.b32 %r40, %r50, 4; mad.lo.u32 %r41, %r50, 16, 0;
      {"".join(f"ld.global.b32 %r{1 + i}, [%rd0+{256 * i}];" for i in range(number))}
      stmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16 [%r40], {registers}; bar.sync 0;
      ldmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16 {back}, [%r41];
      {"".join(f"st.global.b32 [%rd1+{256 * i}], %r{11 + i};" for i in range(number))}"""
    counts = run(body, "u64 x, u64 o", ["x", "o"], {"x": x, "o": out}, block=(64,), shared_bytes=1024)
    np.testing.assert_array_equal(out, x)
    assert counts["shared.store_wavefronts"] == counts["shared.load_wavefronts"] == 2 * number
    assert (counts["issue.st_shared"], counts["issue.ld_shared"]) == (2, 2)


def test_matrix_row_accesses_are_checked_for_races():
    body = """mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31; shl.b32 %r2, %r2, 2; setp.lt.u32 %p1, %r1, 32;
      @%p1 st.shared.u32 [%r2], %r1; SYNC and.b32 %r3, %r1, 7; shl.b32 %r3, %r3, 4;
      ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r3];"""
    options = {"block": (64,), "shared_bytes": 128, "check_races": True}
    run(body.replace("SYNC", "bar.sync 0;"), **options)  # type: ignore[arg-type]
    with pytest.raises(EmulationError, match=r"ldmatrix.*race: warp 1 .*reads byte 0 .*warp 0 wrote"):
        run(body.replace("SYNC", ""), **options)  # type: ignore[arg-type]
