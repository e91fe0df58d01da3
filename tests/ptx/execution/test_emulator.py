"""Test control flow, barriers, counts and watched blocks on kernels small enough to count by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.kernel import find_kernel
from kernrec.profile.emulated_launch import emulate_config
from kernrec.ptx import EmulationError, KernelLaunch, emulate, parse
from kernrec.ptx.execution.emulator import Emulation
from kernrec.ptx.execution.watched import BlockAccesses, EmulationOptions
from kernrec.ptx.ir.program import ParseError
from kernrec.util.engine import module as engine
from tests.helpers.kernel_code import module_of
from tests.helpers.paths import beside
from tests.helpers.products import matmul, mma_config, whole_numbers
from tests.helpers.ptx_text import module, run
from tests.helpers.trial import unwritten
from tests.helpers.work import calls

GLOBAL_THREAD = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.s32 %r4, %r1, %r2, %r3;"
COPY = f"""
{GLOBAL_THREAD}
ld.param.u32 %r5, [n]; setp.ge.u32 %p1, %r4, %r5; @%p1 bra DONE;
ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y];
mul.wide.u32 %rd3, %r4, 4; add.s64 %rd1, %rd1, %rd3; add.s64 %rd2, %rd2, %rd3;
ld.global.b32 %r6, [%rd1]; st.global.b32 [%rd2], %r6;
DONE:
"""


def copy(n: int, block: int, grid: int) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    x, y = np.arange(n, dtype=np.float32), np.full(n, -1, np.float32)
    counts = run(COPY, "u64 x, u64 y, u32 n", ["x", "y", np.uint32(n)], {"x": x, "y": y}, grid=(grid,), block=(block,))
    return x, y, counts


@pytest.mark.parametrize(
    ("n", "block", "grid"), [(64, 64, 1), (1, 32, 1), (1000, 96, 11), (333, 33, 11), (5000, 256, 20)]
)
def test_guarded_copy_copies_everything(n, block, grid):
    x, y, _ = copy(n, block, grid)
    np.testing.assert_array_equal(x, y)


def test_every_counter_of_a_copy_matches_manual_counts():
    # Two blocks of 64 threads cover 100 elements: warps 0 to 2 are full, and warp 3 has 4 active threads.
    _, _, counts = copy(100, 64, 2)
    assert counts["global.x.read_requests"] == 4
    assert counts["global.x.read_sectors"] == 3 * 4 + 1
    assert counts["global.x.read_bytes"] == 400
    assert counts["global.y.write_sectors"] == 13
    # A warp issues 7 instructions up to the branch, 9 instructions behind the branch, and `ret`. PTX has 7 instructions
    # behind the branch, but two 64-bit additions issue twice.
    assert counts["issue.wide64"] == 4 * 4
    assert counts["issue.ld_const"] == 4 * 3
    assert counts["issue.branch"] == 4 * 2
    assert counts["issue"] == 4 * (7 + 9 + 1)
    assert counts["lanes"] == 128 * 7 + 100 * 9 + 128
    assert counts["barriers"] == 0


def test_counts_do_not_depend_on_block_batching():
    together = run_blocks(None)
    apart: dict[str, int] = {}
    for block in range(40):
        for name, value in run_blocks([block]).items():
            apart[name] = apart.get(name, 0) + value
    assert together == apart


def run_blocks(blocks: list[int] | None) -> dict[str, int]:
    n = 40 * 100 - 37
    buffers = {"x": np.zeros(n, np.float32), "y": np.zeros(n, np.float32)}
    return dict(
        run(COPY, "u64 x, u64 y, u32 n", ["x", "y", np.uint32(n)], buffers, grid=(40,), block=(100,), blocks=blocks)
    )


def test_emulator_runs_only_the_selected_blocks():
    y = np.full(128, -1, np.int32)
    body = GLOBAL_THREAD + "ld.param.u64 %rd1, [y]; mul.wide.u32 %rd2, %r4, 4; add.s64 %rd1, %rd1, %rd2;"
    run(body + "st.global.u32 [%rd1], %r1;", "u64 y", ["y"], {"y": y}, grid=(4,), blocks=[2, 0])
    assert y.reshape(4, 32)[:, 0].tolist() == [0, -1, 2, -1]


def loop(trips: str) -> str:
    """Return a kernel with a counting loop. `trips` is code that sets %r5, a thread's number of trips."""
    return f"""{GLOBAL_THREAD} {trips}
      mov.u32 %r6, 0; mov.u32 %r7, 0; setp.eq.u32 %p1, %r5, 0; @%p1 bra OUT;
      LOOP: add.u32 %r7, %r7, %r6; add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, %r5; @%p2 bra LOOP;
      OUT: ld.param.u64 %rd1, [y]; mul.wide.u32 %rd2, %r4, 4; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r7;"""


def test_divergent_loop_costs_the_longest_lane_of_each_warp():
    y = np.zeros(64, np.uint32)
    # Thread t makes t trips, so warp 0 runs the body 31 times, and warp 1 runs it 63 times.
    counts = run(loop("mov.u32 %r5, %r4;"), "u64 y", ["y"], {"y": y}, block=(64,))
    t = np.arange(64)
    np.testing.assert_array_equal(y, t * (t - 1) // 2)
    assert counts["issue.setp"] == 2 + 31 + 63
    none = run(loop("mov.u32 %r5, 0;"), "u64 y", ["y"], {"y": y}, block=(64,))
    assert counts["lanes"] - none["lanes"] == 4 * t.sum()


def test_threads_that_return_early_do_not_block_a_barrier():
    y = np.zeros(96, np.int32)
    body = """ld.param.u64 %rd1, [y]; mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 70; @%p1 exit; bar.sync 0;
      mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], 1;"""
    counts = run(body, "u64 y", ["y"], {"y": y}, block=(96,))
    assert y.sum() == 70
    assert counts["barriers"] == 1
    assert counts["issue.bar"] == 3


def test_jump_table_sends_each_lane_to_its_target():
    y = np.zeros(32, np.int32)
    body = """ld.param.u64 %rd1, [y]; mov.u32 %r1, %tid.x; rem.u32 %r2, %r1, 3;
      TABLE: .branchtargets A, B, C;
      brx.idx %r2, TABLE;
      A: mov.u32 %r3, 10; bra.uni END; B: mov.u32 %r3, 20; bra.uni END; C: mov.u32 %r3, 30;
      END: mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r3;"""
    run(body, "u64 y", ["y"], {"y": y})
    assert y[:6].tolist() == [10, 20, 30, 10, 20, 30]


# The emulator batches instructions of one kind. Batching must keep the order of dependent instructions.


def test_instructions_emulated_together_respect_dependences():
    rng = np.random.default_rng(7)
    for _ in range(30):
        registers = rng.integers(1, 100, 12).astype(np.float32)
        lines, model = [], registers.copy()
        for _ in range(60):
            name = rng.choice(["fma", "add", "mul", "mov"])
            d, a, b, c = rng.integers(0, 12, 4)
            if name == "fma":
                lines.append(f"fma.rn.f32 %f{d}, %f{a}, %f{b}, %f{c};")
                model[d] = np.float32(np.float64(model[a]) * np.float64(model[b]) + np.float64(model[c]))
            elif name == "mov":
                lines.append(f"mov.f32 %f{d}, %f{a};")
                model[d] = model[a]
            else:
                lines.append(f"{name}.f32 %f{d}, %f{a}, %f{b};")
                model[d] = model[a] + model[b] if name == "add" else model[a] * model[b]
            # Values stay small, because infinite values would hide errors.
            lines.append(f"min.f32 %f{d}, %f{d}, 0f42C80000;")
            model[d] = min(model[d], np.float32(100))
        x, y = registers.copy(), np.zeros(12, np.float32)
        load = "".join(f"ld.global.f32 %f{i}, [%rd1+{4 * i}];" for i in range(12))
        store = "".join(f"st.global.f32 [%rd2+{4 * i}], %f{i};" for i in range(12))
        head = "ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y];"
        run(head + load + "".join(lines) + store, "u64 x, u64 y", ["x", "y"], {"x": x, "y": y})
        np.testing.assert_array_equal(y, model)


def test_moves_emulated_together_keep_program_order():
    rng = np.random.default_rng(8)
    laws = {"add.s32": np.add, "sub.s32": np.subtract, "mul.lo.s32": np.multiply, "max.s32": np.maximum}
    for _ in range(40):
        registers = rng.integers(-(2**31), 2**31, 10).astype(np.int32)
        lines, model = [], registers.copy()
        for _ in range(120):
            d, a, b = rng.integers(0, 10, 3)
            if rng.random() < 0.5:
                lines.append(f"mov.b32 %r{d}, %r{a};")
                model[d] = model[a]
            else:
                name = rng.choice(list(laws))
                lines.append(f"{name} %r{d}, %r{a}, %r{b};")
                model[d : d + 1] = laws[name](model[a : a + 1], model[b : b + 1])
        y = np.zeros(10, np.int32)
        load = "".join(f"ld.global.s32 %r{i}, [%rd1+{4 * i}];" for i in range(10))
        store = "".join(f"st.global.s32 [%rd2+{4 * i}], %r{i};" for i in range(10))
        body = "ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y];" + load + "".join(lines) + store
        run(body, "u64 x, u64 y", ["x", "y"], {"x": registers, "y": y})
        np.testing.assert_array_equal(y, model)


def test_unknown_instruction_is_named_only_when_reached():
    body = "\nmov.u32 %r1, %tid.x;\nsetp.eq.u32 %p1, %r1, 99;\n@!%p1 bra OVER;\nfrobnicate.u32 %r1, %r1;\nOVER:\n"
    run(body)
    with pytest.raises(EmulationError, match=r"PTX line \d+, `frobnicate.u32 %r1, %r1`: .*not support frobnicate.u32"):
        run(body.replace("@!%p1", "@%p1"))


@pytest.mark.parametrize("text", [
    "add.cc.u16 %rs1, %rs1, %rs1;", "call foo;", "mma.sync.foo %r1, %r2;", "mov.b128 %r1, %r2;",
    "add.f32 %f1, %q1, %f2;",
])  # fmt: skip
def test_unsupported_instruction_variants_raise_errors(text):
    with pytest.raises((EmulationError, ParseError), match=r"PTX line"):
        run(text)


def test_barrier_that_some_threads_miss_is_a_deadlock():
    body = """mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 40; @%p1 bra ONE; bar.sync 1; bra.uni END;
      ONE: bar.sync 2;
      END:"""
    with pytest.raises(EmulationError, match=r"deadlock: \d+ of 64 live threads of block \(0, 0, 0\) wait at barrier"):
        run(body, block=(64,))


def test_endless_loop_stops_at_the_budget():
    with pytest.raises(EmulationError, match="endless loop near PTX line"):
        run("L: bra L;", budget=1000)


def test_trap_is_an_error():
    with pytest.raises(EmulationError, match=r"block \(1, 0, 0\) thread \(3, 0, 0\) trapped"):
        run("setp.eq.u32 %p1, %ctaid.x, 1; setp.eq.and.u32 %p2, %tid.x, 3, %p1; @%p2 trap;", grid=(2,))


@pytest.mark.parametrize(("directive", "block", "says"), [
    (".maxntid 64, 2, 1", (129,), "has 129 threads, but k was compiled for at most 128 (__launch_bounds__)"),
    (".maxntid 64, 2, 1", (128,), None),
    (".reqntid 16, 4", (64,), "has 64 threads, but k was compiled for blocks of 16x4 (__block_size__)"),
    (".reqntid 16, 4", (16, 4, 1), None),
])  # fmt: skip
def test_block_size_that_contradicts_the_code_is_refused(directive, block, says):
    code = parse(f".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{directive}\n{{\nret;\n}}\n")
    launch = KernelLaunch("k", (1,), block, [], {})
    if says is None:
        emulate(code, launch)
        return
    with pytest.raises(UsageError) as error:
        emulate(code, launch)
    assert says in str(error.value)


def test_invalid_launch_is_refused(refuses):
    def refused(change: dict[str, object]) -> None:
        fields: dict[str, object] = {"entry": "k", "grid": (1,), "block": (32,), "arguments": ["y"]}
        fields |= {"buffers": {"y": np.zeros(4)}} | change
        blocks = fields.pop("blocks", None)
        emulate(module("", "u64 y"), KernelLaunch(**fields), blocks=blocks)  # type: ignore[arg-type]

    refuses(refused, [
        {"entry": "kk"}, {"arguments": []}, {"arguments": ["z"]}, {"arguments": [np.int32(3)]}, {"arguments": [1.5]},
        {"block": (2000,)}, {"grid": (0,)}, {"grid": (1, 1, 1, 1)}, {"blocks": [9]},
        {"buffers": {"y": np.zeros((4, 4))[:, ::2]}},
    ])  # fmt: skip


@pytest.mark.parametrize("offset", ["9" * 23, "-" + "9" * 23, str(2**64 - 1)])
def test_offset_beyond_64_bits_wraps_and_is_out_of_bounds(offset):
    code = f"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 x) {{
    .reg .b64 %rd<2>; .reg .b32 %r<2>;
    ld.param.u64 %rd1, [x];
    ld.global.u32 %r1, [%rd1+{offset}];
    st.global.u32 [%rd1], %r1;
    ret;
}}"""
    launch = KernelLaunch("k", (1,), (32,), ["x"], {"x": np.zeros(8, np.uint32)})
    with pytest.raises(EmulationError, match="accesses 4 bytes at global address"):
        emulate(parse(code), launch)


def test_clock_advances_with_each_instruction():
    ptx = beside(__file__, "clock.ptx")
    out = np.zeros(3, np.uint64)
    emulate(parse(ptx), KernelLaunch("k", (1,), (1,), ["out"], {"out": out}))
    assert out.tolist() == [1, 2, 0]


def test_environment_registers_contain_the_grid_barrier_address():
    ptx = beside(__file__, "environment_registers.ptx")
    buffers = {"out": np.zeros(1, np.uint32), "barrier": np.array([8, 0], np.uint32)}
    emulate(parse(ptx), KernelLaunch("k", (1,), (1,), ["out"], buffers, grid_barrier=2 << 40))
    assert buffers["barrier"].tolist() == [8, 7]


KERNEL = find_kernel("matmul_mma")
CONFIG = mma_config(128, 128, 32, 64, 32, vector=8, stages=3)


def calls_for(m: int, k: int) -> int:
    problem = matmul("bf16", "nn", m=m, n=128, k=k)
    module = module_of(KERNEL, CONFIG, "bf16", "nn", 86)
    tensors = whole_numbers(problem) | unwritten(problem)
    return calls(lambda: emulate_config(KERNEL, CONFIG, problem, 86, module, tensors))


def test_second_tensor_core_block_needs_few_function_calls():
    for m in (128, 256):  # fill the caches of compiled code and block programs
        calls_for(m, 96)
    once = calls_for(128, 96)
    assert (calls_for(128, 192) - once) / 3 < 2000  # calls per 32 elements of k
    assert calls_for(256, 96) - once < 100


def test_emulation_runs_again_after_a_failed_copy():
    # Only the first of eight warps copies, and the copy of block 1 begins at the end of the buffer.
    body = """
    .shared .b32 s; ld.param.u64 %rd1, [x]; mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd2, %r1, 4096;
    add.u64 %rd1, %rd1, %rd2; mov.u32 %r2, %tid.x; setp.lt.u32 %p1, %r2, 32;
    @%p1 cp.async.ca.shared.global [s], [%rd1], 4; cp.async.wait_all; bar.sync 0;
    """
    launch = KernelLaunch("k", (2,), (256,), ["x"], {"x": np.zeros(1024, np.uint32)})
    emulation = Emulation(module(body, "u64 x"), launch, EmulationOptions())
    with pytest.raises(EmulationError, match="4 bytes at offset 4096 of x"):
        emulation.run([1])
    assert emulation.run([0])["barriers"] == 1


AT = "mul.wide.u32 %d2, {lane}, {step}; add.u64 %d2, %d0, %d2;"


def accesses(
    body: str, blocks: int = 2, threads: int = 32, size: int = 1 << 16
) -> tuple[dict[int, BlockAccesses], dict]:
    launch = KernelLaunch("k", (blocks,), (threads,), ["x"], {"x": np.zeros(size, np.uint8)})
    options = EmulationOptions(blocks, watched=range(blocks))
    emulation = Emulation(parse(beside(__file__, "accesses.ptx").format(body=body)), launch, options)
    counts = emulation.run(range(blocks))
    return emulation.accesses(), counts


@pytest.mark.parametrize(("step", "start", "clk"), [
    (4, 0, 1),  # a row of words
    (4, 64, 1),  # a row over two cache lines
    (0, 0, 1),
    (4096, 0, 32),  # a column in one bank
    (4100, 0, 8),  # a diagonal over 32 banks, limited to four tags a clock
    (16, 0, 4),  # every fourth word
])  # fmt: skip
def test_l1_passes_depend_on_the_busiest_bank_and_on_cache_line_tags(step, start, clk):
    load = AT.format(lane="%r2", step=step) + f"ld.global.u32 %r3, [%d2+{start}];"
    assert accesses(load, 1, size=1 << 18)[1]["global.x.read_passes"] == clk


@pytest.mark.parametrize(
    ("lane", "step", "kind", "turns"),
    [("%r2", 0, "u32", 32), ("%r2", 4, "u32", 4), ("%r2", 32, "u32", 32), ("%r3", 4, "u32", 16), ("%r2", 8, "u64", 8)],
)
def test_atomics_on_one_element_are_serialized_per_sector(lane, step, kind, turns):
    body = f"shr.u32 %r3, %r2, 4; {AT.format(lane=lane, step=step)} mov.u64 %d3, 1; mov.u32 %r4, 1;"
    watched, counts = accesses(f"{body} red.global.add.{kind} [%d2], {'%r4' if kind == 'u32' else '%d3'};", 1)
    assert counts["global.x.atomic_turns"] == turns
    lanes = np.arange(32) // (16 if lane == "%r3" else 1)
    assert (watched[0].atomics == (1 << 40) + lanes * step).all()
    assert watched[0].read.keys() == watched[0].written.keys() == {"x"}
    assert not len(watched[0].trace.step)


def test_memory_trace_separates_blocks_warps_and_steps():
    body = f"""{AT.format(lane="%r0", step=4)} ld.global.u32 %r3, [%d2];
    bra NEXT;
NEXT: setp.gt.u32 %p1, %r0, 39; @%p1 st.global.u32 [%d2+64], %r3;"""
    watched, _ = accesses(body, threads=64)
    trace, origin = watched[1].trace, ((1 << 40) + 4096) // 32
    assert trace.step.tolist() == [1] * 8 + [2] * 3
    assert trace.warp.tolist() == [0] * 4 + [1] * 7
    assert (trace.sector - origin).tolist() == [*range(8), 7, 8, 9]
    assert trace.is_read.tolist() == [True] * 8 + [False] * 3
    for touched, expected in (
        (watched[1].read["x"], bytes_of(4096, 256)),
        (watched[1].written["x"], bytes_of(4096 + 160 + 64, 96)),
    ):
        assert touched.sectors == expected.sectors
        assert touched.new_bytes(expected) == expected.new_bytes(touched) == 0


def bytes_of(first: int, size: int, rows: int = 1, pitch: int = 1 << 16) -> Any:
    """Return the bytes of a block that accesses `rows` rows of `size` bytes each, starting at byte `first`."""
    starts = first + pitch * np.arange(rows)
    return engine().Touched(np.concatenate([np.arange(start // 4, (start + size) // 4) for start in starts]))


@pytest.mark.parametrize("place", range(4))
def test_unaligned_tile_counts_only_its_own_bytes(place):
    first, following = bytes_of(24 * place, 24, 8), bytes_of(24 * (place + 1), 24, 8)
    assert first.new_bytes(following) == 24 * 8
    assert following.new_bytes(first) == 24 * 8


RUNS = st.lists(st.tuples(st.integers(0, 3 * 4096), st.integers(1, 70)), max_size=6)


@given(RUNS, RUNS)
def test_new_words_beside_a_block_count_four_bytes_and_others_whole_sectors(runs, next_runs):
    own, following = (
        {word for start, size in each for word in range(start, start + size)} for each in (runs, next_runs)
    )
    new = following - own
    sectors = {word // 8 for word in following} - {word // 8 for word in own}
    beside = max(
        sum(word - 1 not in new and word - 1 in own for word in new),
        sum(word + 1 not in new and word + 1 in own for word in new),
    )
    share = beside / max(sum(word - 1 not in new for word in new), 1)
    expected = share * len(new) * 4 + (1 - share) * len(sectors) * 32
    first, second = (engine().Touched(np.array(sorted(each), np.int64)) for each in (own, following))
    assert first.new_bytes(second) == expected
    assert second.sectors == len({word // 8 for word in following})
