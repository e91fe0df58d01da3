"""Test that barriers divide a kernel into phases, and that waits overlap only with work of their own phase."""

import numpy as np
import pytest

from kernrec.ptx import parse
from kernrec.ptx.analysis.barrier_phases import (
    MOST,
    barrier_phases,
    grouped_loads,
    issued_by_stretch,
    of_slowest_warps,
    overlapped_waits,
    waits_for_loads,
)
from kernrec.ptx.analysis.lowering import lowered
from kernrec.ptx.ir.program import Function
from tests.helpers.paths import beside

HEAD = beside(__file__, "barrier_phases_head.ptx")
LOAD, STORE, WORK, BARRIER = (
    "ld.global.f32 %f1, [%rd1];", "st.shared.f32 [tile], %f1;", "fma.rn.f32 %f2, %f2, %f2, %f2;" * 50, "bar.sync 0;",
)  # fmt: skip
AGAIN = "add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 8; @%p1 bra LOOP;"


def kernel(body: str) -> Function:
    return parse(f"{HEAD}{body}\nret;\n}}\n").functions["k"]


def overlapped(body: str, trips: int = 1000) -> float:
    """Return the share of waits that overlap with work, for a loop of `trips` trips."""
    function = kernel(body)
    labels = {block.index: bool(block.labels) for block in function.blocks}
    inside, ran = False, {}
    for block in function.blocks:
        inside = inside or labels[block.index]
        ran[block.index] = trips if inside else 1
        inside = inside and block.instructions[-1].opcode != "bra"
    pieces = [[block] for block in function.blocks]
    runs = np.array([[ran[block.index]] for block in function.blocks])
    waits = [float(waits_for_loads(grouped_loads(piece), runs)[0]) for piece in pieces]
    return overlapped_waits(function, pieces, waits, ran)


def test_all_load_waits_overlap_without_barriers():
    assert overlapped(f"LOOP: {LOAD} {WORK} {AGAIN}") == 1.0


def test_barrier_prevents_overlap_of_one_in_four_load_waits():
    chase = "ld.global.u64 %rd1, [%rd1];" * 4
    assert overlapped(f"LOOP: {chase} {WORK} {BARRIER} {AGAIN}") == pytest.approx(0.75, abs=0.01)


def test_barrier_prevents_overlap_of_loads_with_arithmetic_after_it():
    apart = f"LOOP: {LOAD} {STORE} {AGAIN} {BARRIER} {WORK * 200}"
    mixed = f"LOOP: {LOAD} {STORE} {AGAIN} {WORK * 200} {BARRIER}"
    assert overlapped(apart, trips=100) < 0.1
    assert overlapped(mixed, trips=100) > 0.9


def test_two_barriers_divide_a_loop_into_two_phases():
    function = kernel(f"LOOP: {LOAD} {STORE} {BARRIER} {WORK} {BARRIER} {AGAIN}")
    phases = barrier_phases(function)
    assert [[block.index for block in phase] for phase in phases] == [[0, 1, 3, 4], [2]]


def test_barrier_phase_takes_as_long_as_its_slowest_warp():
    """A producer works before the barrier, and a consumer behind it."""
    function = kernel(f"{WORK} {BARRIER} {WORK}")
    pieces = [[block] for block in function.blocks]
    producer_first, both = [np.array([90.0, 0.0]), np.array([0.0, 60.0])], [np.array([50.0, 50.0])] * 2
    assert of_slowest_warps(function, pieces, producer_first) == 150.0
    assert of_slowest_warps(function, pieces, both) == 100.0
    without = kernel(f"{WORK} setp.eq.u32 %p1, %r1, 0; @%p1 bra END; {WORK} END: ")
    assert of_slowest_warps(without, [[block] for block in without.blocks], [*producer_first, np.zeros(2)]) == 90.0


COMPUTING = beside(__file__, "computing.ptx")
FLOATS, DOUBLES = "fma.rn.f32 %f2, %f2, %f2, %f2;", "fma.rn.f64 %fd1, %fd1, %fd1, %fd1;"
STORES = "st.global.f32 [%rd1], %f2; st.global.f64 [%rd1+8], %fd1;"


def stretches(body: str, warps: int = 1) -> list[dict[str, float]]:
    """Return the instruction counts of each code section between barriers of a kernel with `warps` warps."""
    function = parse(f"{COMPUTING}{body} {STORES} ret;\n}}\n").functions["k"]
    ran = {block.index: warps for block in function.blocks}
    return issued_by_stretch(function, lowered(function), ran)


def test_barrier_ends_a_code_section():
    first, second = stretches(f"{FLOATS} bar.sync 0; {DOUBLES}")
    assert (first["fma32"], second["f64"]) == (1, 1)
    assert "f64" not in first
    assert "fma32" not in second


def test_code_sections_contain_all_instructions_of_all_warps():
    for length in (10, 100, 3000):
        parts = stretches(FLOATS * length + DOUBLES * 7, warps=3)
        assert sum(part.get("fma32", 0) for part in parts) == 3 * length
        assert round(sum(part.get("f64", 0) for part in parts)) == 3 * 7
        assert len(parts) <= MOST + 2
    assert len(stretches(f"{FLOATS} bar.sync 0;" * 200)) <= 2 * MOST
