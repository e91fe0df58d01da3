"""Test the effects and costs of loads, stores and asynchronous copies, and which of them are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.ptx import Counts, EmulationError, KernelLaunch, emulate, parse
from kernrec.ptx.ir.special_registers import registers_at_launch
from tests.helpers.paths import beside
from tests.helpers.ptx_text import cuda, run

THREAD = "mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [x];"


def read(address: str, load: str, **options: object) -> Counts:
    """Return the counts of one load by 32 lanes. `address` sets %rd2 from the lane number %r1 and the buffer %rd1."""
    buffer = np.zeros(1 << 16, np.uint8)
    return run(THREAD + address + load, "u64 x", ["x"], {"x": buffer}, **options)  # type: ignore[arg-type]


def strided(stride: int, base: int = 0) -> str:
    return f"mul.wide.u32 %rd2, %r1, {stride}; add.u64 %rd2, %rd2, %rd1; add.u64 %rd2, %rd2, {base};"


@pytest.mark.parametrize(("stride", "base", "load", "sectors"), [
    (4, 0, "ld.global.b32 %r2, [%rd2];", 4),  # coalesced into 128 bytes
    (4, 4, "ld.global.b32 %r2, [%rd2];", 5),  # shifted by one word
    (4, 128, "ld.global.nc.b32 %r2, [%rd2];", 4),
    (8, 0, "ld.global.b32 %r2, [%rd2];", 8),  # every second word
    (32, 0, "ld.global.b32 %r2, [%rd2];", 32),
    (128, 0, "ld.global.b32 %r2, [%rd2];", 32),
    (0, 0, "ld.global.b32 %r2, [%rd2];", 1),  # all lanes read one word
    (16, 0, "ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd2];", 16),
    (8, 0, "ld.global.v2.b32 {%r2, %r3}, [%rd2+64];", 8),
    (8, 0, "ld.global.b64 %rd3, [%rd2];", 8),
    (1, 0, "ld.global.u8 %r2, [%rd2];", 1),
    (2, 0, "ld.global.u16 %r2, [%rd2];", 2),
])  # fmt: skip
def test_load_request_counts_the_sectors_it_touches(stride, base, load, sectors):
    counts = read(strided(stride, base), load)
    assert counts["global.x.read_sectors"] == sectors
    assert counts["global.x.read_requests"] == 1
    assert counts["issue.ld_global"] == 1


@given(
    words=st.lists(st.integers(0, 999), min_size=32, max_size=32), on=st.lists(st.booleans(), min_size=32, max_size=32)
)
def test_random_access_costs_its_sectors_and_bank_conflicts(words, on):
    table = np.array(words, np.uint32) * 4
    mask = np.array(on, np.uint32)
    data = np.arange(1000, dtype=np.uint32)
    out = np.full(32, 7, np.uint32)
    body = beside(__file__, "any_pattern_costs_its_distinct_sectors_and_bank_words.ptx")
    buffers = {"t": table, "m": mask, "x": data, "o": out}
    counts = run(body, "u64 t, u64 m, u64 x, u64 o", list(buffers), buffers, shared_bytes=4000)
    active = {w for w, flag in zip(words, on, strict=True) if flag}
    banks = [sum(1 for w in active if w % 32 == bank) for bank in range(32)]
    assert counts["global.x.read_sectors"] == len({w // 8 for w in active})
    assert counts["global.x.read_bytes"] == 4 * sum(on)
    assert counts["shared.load_wavefronts"] == counts["shared.store_wavefronts"] == max(banks)
    assert counts["shared.load_ideal"] == bool(active)
    np.testing.assert_array_equal(out, np.where(on, words, 7))


@pytest.mark.parametrize("ways", [1, 2, 4, 8, 16, 32])
def test_stride_of_n_words_has_n_way_conflicts(ways):
    body = f"mov.u32 %r1, %tid.x; mul.lo.u32 %r2, %r1, {4 * ways}; st.shared.u32 [%r2], %r1; ld.shared.u32 %r3, [%r2];"
    counts = run(body, shared_bytes=4 * 32 * 32, block=(64,), grid=(3,)) if ways < 17 else run(body, shared_bytes=4096)
    warps = 6 if ways < 17 else 1
    assert counts["shared.load_wavefronts"] == counts["shared.store_wavefronts"] == ways * warps
    assert counts["shared.load_ideal"] == counts["shared.store_ideal"] == warps


@pytest.mark.parametrize(("stride", "load", "wavefronts", "ideal"), [
    (0, "ld.shared.u32 %r3, [%r2];", 1, 1),  # a broadcast of one word
    (33 * 4, "ld.shared.u32 %r3, [%r2];", 1, 1),  # a padded column
    (1, "ld.shared.u8 %r3, [%r2];", 1, 1),  # four lanes share a word
    (8, "ld.shared.b64 %rd3, [%r2];", 2, 2),  # split into two half warps
    (8, "ld.shared.v2.b32 {%r3, %r4}, [%r2];", 2, 2),
    (16, "ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];", 4, 4),  # four quarter warps
    (16, "ld.shared.v2.b64 {%rd3, %rd4}, [%r2];", 4, 4),
    (0, "ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];", 2, 2),  # one address: each wavefront loads two registers
    (0, "ld.shared.b64 %rd3, [%r2];", 1, 1),
    (32, "ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];", 8, 4),  # 32-byte stride: two-way conflict in each quarter
    (128, "ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];", 32, 4),
    (16, "ld.shared.b64 %rd3, [%r2];", 4, 2),
    (144, "ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];", 4, 4),  # padded by 16 bytes
])  # fmt: skip
def test_wide_accesses_take_the_documented_wavefronts(stride, load, wavefronts, ideal):
    counts = run(f"mov.u32 %r1, %tid.x; mul.lo.u32 %r2, %r1, {stride};" + load, shared_bytes=8192)
    assert (counts["shared.load_wavefronts"], counts["shared.load_ideal"]) == (wavefronts, ideal)


@pytest.mark.parametrize(("quad", "wavefronts"), [
    # Lanes agree if they access the same 16 bytes. n^2 is n XOR 2.
    ("shr.u32 %r2, %r1, 1;", 2),  # n and n^1 agree, so there are 16 distinct accesses
    ("and.b32 %r3, %r1, 1; shr.u32 %r2, %r1, 2; shl.b32 %r2, %r2, 1; or.b32 %r2, %r2, %r3;", 2),  # n and n^2 agree
    ("and.b32 %r2, %r1, 29;", 4),  # n and n^2 agree, but the quads of a half warp conflict
    ("shr.u32 %r2, %r1, 2;", 2),  # n, n^1 and n^2 agree
    ("and.b32 %r2, %r1, 27;", 4),  # n and n^4 agree but are not merged
    ("and.b32 %r2, %r1, 15;", 4),
    ("shr.u32 %r2, %r1, 1; shl.b32 %r2, %r2, 1;", 4),  # n and n^1 agree, but each pair conflicts with another pair
])  # fmt: skip
def test_wide_shared_load_is_twice_as_fast_if_lane_pairs_share_addresses(quad, wavefronts):
    body = f"mov.u32 %r1, %tid.x; {quad} shl.b32 %r2, %r2, 4;"
    loaded = run(body + "ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];", shared_bytes=8192)
    assert loaded["shared.load_wavefronts"] == wavefronts
    stored = run(body + "st.shared.v4.b32 [%r2], {%r1, %r1, %r1, %r1};", shared_bytes=8192)
    assert stored["shared.store_ideal"] == 4


@pytest.mark.parametrize(("address", "wavefronts"), [
    ("shl.b32 %r2, %r1, 2;", 1),
    ("shl.b32 %r2, %r1, 3;", 2),
    ("mov.u32 %r2, 0;", 32),  # unlike loads, atomics on one word are not merged
    ("and.b32 %r2, %r1, 3; shl.b32 %r2, %r2, 2;", 8),
])  # fmt: skip
def test_shared_memory_atomics_in_one_bank_are_serialized(address, wavefronts):
    counts = run(f"mov.u32 %r1, %tid.x; {address} atom.shared.add.u32 %r3, [%r2], %r1;", shared_bytes=256)
    assert (counts["shared.atomic_wavefronts"], counts["shared.atomic_ideal"]) == (wavefronts, 1)


@pytest.mark.parametrize(("operation", "wavefronts", "repeats"), [
    ("atom.shared.add.u32 %r3, [%r2], 1;", 1, 31),
    ("atom.shared.inc.u32 %r3, [%r2], -1;", 1, 31),
    ("atom.shared.add.u32 %r3, [%r2], 2;", 32, 0),
    ("atom.shared.add.u32 %r3, [%r2], 1; st.shared.u32 [%r2], %r3;", 32, 0),  # the code uses the old values
])  # fmt: skip
def test_atomic_increments_of_one_word_are_merged(operation, wavefronts, repeats):
    counts = run(f"mov.u32 %r1, %tid.x; mov.u32 %r2, 0; {operation}", shared_bytes=256)
    assert (counts["shared.atomic_wavefronts"], counts["shared.atomic_repeats"]) == (wavefronts, repeats)


def test_narrow_loads_extend_and_stores_truncate():
    x = np.array([-1, 77] * 16, np.int8)
    out = np.zeros((32, 4), np.int32)
    body = (
        THREAD
        + strided(1)
        + """ld.global.s8 %r2, [%rd2]; ld.global.u8 %r3, [%rd2]; ld.global.s8 %rs1, [%rd2];
      cvt.s32.s16 %r4, %rs1; ld.global.u8 %rs2, [%rd2]; cvt.s32.s16 %r5, %rs2; ld.param.u64 %rd4, [o];
      mul.wide.u32 %rd5, %r1, 16; add.u64 %rd4, %rd4, %rd5; st.global.v4.u32 [%rd4], {%r2, %r3, %r4, %r5};"""
    )
    run(body, "u64 x, u64 o", ["x", "o"], {"x": x, "o": out})
    np.testing.assert_array_equal(out, np.stack([x, x.view(np.uint8), x, x.view(np.uint8)], axis=1))
    small = np.zeros(32, np.uint8)
    run(THREAD + strided(1) + "add.u32 %r2, %r1, 1000; st.global.u8 [%rd2], %r2;", "u64 x", ["x"], {"x": small})
    np.testing.assert_array_equal(small, ((np.arange(32) + 1000) & 255).astype(np.uint8))


def test_generic_addresses_reach_every_space():
    out = np.zeros((32, 3), np.uint32)
    body = beside(__file__, "generic_addresses_reach_every_space.ptx")
    run(body, "u64 o", ["o"], {"o": out}, globals_=".const .align 4 .u32 c[2] = {11, 22};")
    lane = np.arange(32)
    np.testing.assert_array_equal(out, np.stack([lane, lane + 100, 0 * lane + 22], axis=1))


def test_lanes_of_one_instruction_may_access_different_buffers():
    a, b, out = np.arange(32, dtype=np.uint32), np.arange(100, 132, dtype=np.uint32), np.zeros(32, np.uint32)
    body = """mov.u32 %r1, %tid.x; mul.wide.u32 %rd5, %r1, 4; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];
      and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 1; selp.b64 %rd3, %rd1, %rd2, %p1; add.u64 %rd3, %rd3, %rd5;
      ld.global.u32 %r3, [%rd3]; ld.param.u64 %rd4, [o]; add.u64 %rd4, %rd4, %rd5; st.global.u32 [%rd4], %r3;"""
    counts = run(body, "u64 a, u64 b, u64 o", ["a", "b", "o"], {"a": a, "b": b, "o": out})
    np.testing.assert_array_equal(out, np.where(np.arange(32) % 2, a, b))
    assert (counts["global.a.read_bytes"], counts["global.b.read_bytes"]) == (64, 64)


def test_module_variables_and_struct_parameters_are_readable():
    out = np.zeros(2, np.uint32)
    body = """ld.param.u64 %rd1, [o]; ld.param.v2.u32 {%r1, %r2}, [s+8]; ld.global.u32 %r3, [g+4];
      ld.global.u64 %rd2, [p]; ld.global.u32 %r4, [%rd2]; add.u32 %r1, %r1, %r3; add.u32 %r2, %r2, %r4;
      st.global.v2.u32 [%rd1], {%r1, %r2};"""
    variables = ".global .align 4 .u32 g[2] = {5, 6};\n.global .align 8 .u64 p = g;"
    module = parse(
        f".version 8.0\n.target sm_80\n.address_size 64\n{variables}\n"
        ".entry k(.param .u64 o, .param .align 8 .b8 s[16])\n"
        "{ .reg .b32 %r<9>; .reg .b64 %rd<9>;\n" + body + "\nret; }"
    )
    emulate(module, KernelLaunch("k", (1,), (1,), ["o", np.array([1, 2, 3, 4], np.uint32)], {"o": out}))
    assert out.tolist() == [3 + 6, 4 + 5]


def test_unwritten_shared_memory_is_not_zero():
    out = np.zeros(32, np.float32)
    body = THREAD + strided(4) + "mov.u32 %r3, 0; ld.shared.b32 %r2, [%r3]; st.global.b32 [%rd2], %r2;"
    run(body, "u64 x", ["x"], {"x": out}, shared_bytes=16)
    assert np.isnan(out).all()


ASYNC = """mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 16; shl.b32 %r2, %r1, 4; ld.param.u64 %rd1, [x];
  add.u64 %rd1, %rd1, %rd2; ld.param.u64 %rd3, [o]; add.u64 %rd3, %rd3, %rd2; """
OUT = "ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r2]; st.global.v4.b32 [%rd3], {%r4, %r5, %r6, %r7};"


def copied(body: str, lanes: int = 32) -> tuple[np.ndarray, np.ndarray, Counts]:
    x, out = np.arange(2 * lanes * 4, dtype=np.uint32), np.zeros(lanes * 4, np.uint32)
    counts = run(ASYNC + body + OUT, "u64 x, u64 o", ["x", "o"], {"x": x, "o": out}, block=(lanes,), shared_bytes=4096)
    return x[: 4 * lanes], out, counts


def test_async_copy_is_visible_after_its_wait():
    start = "cp.async.cg.shared.global [%r2], [%rd1], 16; cp.async.commit_group;"
    for wait in ("cp.async.wait_group 0;", "cp.async.wait_all;"):
        x, out, counts = copied(start + wait)
        np.testing.assert_array_equal(out, x)
    assert counts["issue.cp_async"] == 3
    assert counts["global.x.read_sectors"] == 16
    assert counts["shared.store_wavefronts"] == 4


def test_missing_wait_leaves_stale_data():
    start = "cp.async.ca.shared.global [%r2], [%rd1], 16; cp.async.commit_group;"
    for wait in ("", "cp.async.wait_group 1;"):
        _, out, _ = copied(start + wait)
        assert (out == 0xFFFFFFFF).all()
    _, out, _ = copied("cp.async.ca.shared.global [%r2], [%rd1], 16; cp.async.wait_group 0;")
    assert (out == 0xFFFFFFFF).all()  # the kernel never committed its copy


@pytest.mark.parametrize("taken", [0, 4, 8, 12, 16])
def test_cp_async_pads_a_short_source_with_zeros(taken):
    body = f"mov.u32 %r9, {taken}; cp.async.cg.shared.global [%r2], [%rd1], 16, %r9; cp.async.wait_all;"
    x, out, counts = copied(body)
    want = x.reshape(-1, 4).copy()
    want[:, taken // 4 :] = 0
    np.testing.assert_array_equal(out, want.ravel())
    assert counts["global.x.read_bytes"] == 32 * taken


def test_invalid_access_error_names_address_and_thread(refuses):
    refuses(lambda address, access: read(address, access, shared_bytes=100), [
        (strided(4, 65536 - 64), "ld.global.b32 %r2, [%rd2];"), (strided(4), "ld.global.b32 %r2, [%rd2+-8];"),
        (strided(2), "ld.global.b32 %r2, [%rd2];"), (strided(4), "ld.global.v2.b32 {%r2, %r3}, [%rd2];"),
        ("mov.u64 %rd2, 64;", "st.global.b32 [%rd2], %r1;"),
        ("mov.u64 %rd2, 0x900000000000000;", "st.b32 [%rd2], %r1;"),
        ("mul.lo.u32 %r3, %r1, 8;", "st.shared.b32 [%r3], %r1;"), ("mov.u32 %r3, 0;", "ld.shared.b32 %r2, [%r3+-4];"),
        (".local .align 4 .b8 l[8];", "ld.local.b32 %r2, [l+8];"),
        ("mov.u64 %rd2, 0x300000000000000;", "ld.b32 %r2, [%rd2+64];"),
        (strided(16, 65536 - 256), "cp.async.cg.shared.global [0], [%rd2], 16;"),
    ])  # fmt: skip


@pytest.mark.parametrize(("access", "site"), [
    ("st.global.b32 [%rd2], %r1;", "x"), ("st.b32 [%rd2], %r1;", "x"), ("red.global.add.u32 [%rd2], %r1;", "x"),
    ("mov.u64 %rd3, c; cvta.const.u64 %rd3, %rd3; st.b32 [%rd3], %r1;", "constant memory"),
])  # fmt: skip
def test_write_to_read_only_memory_is_an_error(access, site):
    x = np.arange(32, dtype=np.uint32)
    body, options = THREAD + strided(4) + access, {"globals_": ".const .align 4 .u32 c[2] = {11, 22};"}
    x.flags.writeable = False
    with pytest.raises(EmulationError, match=rf"PTX line .* thread \(0, 0, 0\) writes to {site}, which is read-only"):
        run(body, "u64 x", ["x"], {"x": x}, **options)  # type: ignore[arg-type]
    assert x.tolist() == list(range(32))
    run(THREAD + strided(4) + "ld.global.b32 %r2, [%rd2];", "u64 x", ["x"], {"x": x})


@pytest.mark.parametrize(("access", "sectors", "size"), [
    ("st.local.b32 [l+4], %r1;", 4, 4),  # one word per lane makes 128 bytes
    ("st.local.v4.b32 [l], {%r1, %r1, %r1, %r1};", 16, 16),
    ("st.local.b64 [l+8], %rd1;", 8, 8),
    ("st.local.u8 [l+3], %r1;", 4, 1),
    ("and.b32 %r2, %r1, 1; mul.wide.u32 %rd5, %r2, 4; add.u64 %rd4, %rd4, %rd5; st.local.b32 [%rd4], %r1;", 8, 4),
    ("setp.lt.u32 %p1, %r1, 8; @%p1 st.local.b32 [l], %r1;", 1, 4),
    ("cvta.local.u64 %rd5, %rd4; st.b32 [%rd5+8], %r1;", 4, 4),
])  # fmt: skip
def test_local_memory_is_interleaved_by_lane(access, sectors, size):
    body = ".local .align 16 .b8 l[32]; mov.u32 %r1, %tid.x; mov.u64 %rd1, 0; mov.u64 %rd4, l;"
    counts = run(body + access, block=(64,) if "setp" not in access else (32,))
    warps = 1 if "setp" in access else 2
    lanes = 8 if "setp" in access else 64
    assert counts["local.write_sectors"] == warps * sectors
    assert counts["local.write_requests"] == warps
    assert counts["local.write_bytes"] == lanes * size
    assert counts["local.read_requests"] == 0


def test_inactive_lanes_may_hold_any_address():
    body = strided(65536) + "setp.eq.u32 %p1, %r1, 0; @%p1 ld.global.b32 %r2, [%rd2];"
    assert read(body, "")["global.x.read_bytes"] == 4
    with pytest.raises(EmulationError, match=r"thread \(31, 0, 0\)"):
        read(strided(65536) + "setp.eq.u32 %p1, %r1, 31; @%p1 ld.global.b32 %r2, [%rd2];", "")


def launch(less: int, more: int) -> np.ndarray:
    """Return the output of a block in which two warpgroups request registers and a third releases some."""
    out = np.zeros(384, np.int32)
    program = cuda(beside(__file__, "memory.cu").replace("LESS", str(less)).replace("MORE", str(more)), "sm_90a")
    emulate(program, KernelLaunch("k", (1,), (384,), ["o"], {"o": out}))
    return out


def test_setmaxnreg_accepts_registers_that_the_block_has():
    np.testing.assert_array_equal(launch(40, 232), np.arange(384))


def test_invalid_setmaxnreg_counts_are_refused(refuses):
    refuses(lambda less, more: launch(less, more), [(48, 232), (40, 240), (20, 232), (40, 160)])


def test_launch_registers_follow_kernel_attributes():
    assert registers_at_launch({"maxntid": (384, 1, 1), "minnctapersm": (1,)}) == 168
    assert registers_at_launch({"maxntid": (512, 1, 1)}) == 128
    assert registers_at_launch({"maxntid": (256,), "minnctapersm": (2,)}) == 128
    assert registers_at_launch({"maxntid": (256,), "maxnreg": (90,)}) == 96
    assert registers_at_launch({"maxntid": (32,)}) == 256
    assert registers_at_launch({}) is None
