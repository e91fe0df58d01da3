"""Test what watched blocks record: words of each buffer, request order, L1 clocks and turns of atomics."""

import numpy as np
import pytest

from kernrec.ptx import KernelLaunch, parse
from kernrec.ptx.execution.emulator import Emulation
from kernrec.ptx.execution.watched import BlockAccesses, EmulationOptions, Touched

TEXT = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x)
{{
.reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<4>;
mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %laneid;
ld.param.u64 %d0, [x]; mul.wide.u32 %d1, %r1, 4096; add.u64 %d0, %d0, %d1;
{body}
ret;
}}
"""
AT = "mul.wide.u32 %d2, {lane}, {step}; add.u64 %d2, %d0, %d2;"


def accesses(
    body: str, blocks: int = 2, threads: int = 32, size: int = 1 << 16
) -> tuple[dict[int, BlockAccesses], dict]:
    launch = KernelLaunch("k", (blocks,), (threads,), ["x"], {"x": np.zeros(size, np.uint8)})
    options = EmulationOptions(blocks, watched=range(blocks))
    emulation = Emulation(parse(TEXT.format(body=body)), launch, options)
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
def test_l1_processes_the_busiest_bank_or_four_tags_per_clock(step, start, clk):
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


def test_trace_separates_blocks_warps_and_steps():
    body = f"""{AT.format(lane="%r0", step=4)} ld.global.u32 %r3, [%d2];
    bra NEXT;
NEXT: setp.gt.u32 %p1, %r0, 39; @%p1 st.global.u32 [%d2+64], %r3;"""
    watched, _ = accesses(body, threads=64)
    trace, origin = watched[1].trace, ((1 << 40) + 4096) // 32
    assert trace.step.tolist() == [1] * 8 + [2] * 3
    assert trace.warp.tolist() == [0] * 4 + [1] * 7
    assert (trace.sector - origin).tolist() == [*range(8), 7, 8, 9]
    assert trace.is_read.tolist() == [True] * 8 + [False] * 3
    assert watched[1].read["x"].words.tolist() == list(range(1024, 1088))
    assert watched[1].written["x"].words.tolist() == list(range(1024 + 40 + 16, 1024 + 64 + 16))


def bytes_of(first: int, size: int, rows: int = 1, pitch: int = 1 << 16) -> Touched:
    """Return the bytes of a block that accesses `rows` rows of `size` bytes each, starting at byte `first`."""
    starts = first + pitch * np.arange(rows)
    return Touched(np.concatenate([np.arange(start // 4, (start + size) // 4) for start in starts]), True)


@pytest.mark.parametrize("place", range(4))
def test_tile_moves_its_own_bytes_at_any_sector_offset(place):
    first, following = bytes_of(24 * place, 24, 8), bytes_of(24 * (place + 1), 24, 8)
    assert first.new_bytes(following) == 24 * 8
    assert following.new_bytes(first) == 24 * 8
