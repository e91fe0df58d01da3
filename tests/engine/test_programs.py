"""Test that whole programs, also on tensor cores, give the recorded results, counts, races and errors."""

import random
import tomllib
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernrec.ptx import EmulationError, KernelLaunch, emulate, parse
from kernrec.ptx.execution.emulator import Emulation
from kernrec.ptx.execution.watched import EmulationOptions
from tests.engine.expected import check, digest, one_nan
from tests.helpers.paths import beside

HEADER = beside(__file__, "header.ptx")
FOOTER = """
bar.sync 0;
ld.shared.u32 %r5, [%s1]; add.u32 %r4, %r4, %r5; xor.b32 %r4, %r4, %r2;
st.global.u32 [%a3], %r4;
ret;
}
"""


class Text:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._labels = 0
        self._depth = 0

    def add(self, statement: Any) -> None:
        kind, *arguments = statement
        getattr(self, f"_{kind}")(*arguments)

    def _label(self) -> str:
        self._labels += 1
        return f"L{self._labels}"

    def _add(self, d: int, a: int) -> None:
        self.lines.append(f"mad.lo.u32 %r{d}, %r{a}, 1664525, %r0; add.u32 %r4, %r4, %r{d};")

    def _if(self, bits: int, yes: list[Any], no: list[Any]) -> None:
        other, end = self._label(), self._label()
        self.lines.append(f"and.b32 %r5, %r4, {bits}; setp.eq.u32 %p1, %r5, 0; @%p1 bra {other};")
        for statement in yes:
            self.add(statement)
        self.lines.append(f"add.u32 %r4, %r4, 7; bra {end};\n{other}:")
        for statement in no:
            self.add(statement)
        self.lines.append(f"add.u32 %r4, %r4, 3;\n{end}:")

    def _loop(self, most: int, body: list[Any]) -> None:
        if self._depth >= 2:
            return
        self._depth += 1
        counter, label = f"%i{self._depth}", self._label()
        self.lines.append(f"and.b32 {counter}, %r4, {most};\n{label}:")
        for statement in body:
            self.add(statement)
        self.lines.append(f"sub.u32 {counter}, {counter}, 1; setp.gt.s32 %p2, {counter}, 0; @%p2 bra {label};")
        self._depth -= 1

    def _load(self, mask: int) -> None:
        self.lines.append(
            f"and.b32 %r5, %r4, {mask}; mul.wide.u32 %a2, %r5, 4; ld.param.u64 %a4, [x]; add.u64 %a4, %a4, %a2;"
            " ld.global.u32 %r6, [%a4]; add.u32 %r4, %r4, %r6;"
        )

    def _atomic(self, place: int) -> None:
        self.lines.append(f"red.global.add.u32 [%a1+{4096 + 4 * place}], %r0; atom.shared.add.u32 %r6, [tile+4032], 1;")

    def _leave(self, bits: int) -> None:
        self.lines.append(f"and.b32 %r5, %r4, 31; setp.eq.u32 %p3, %r5, {bits}; @%p3 ret;")

    def _barrier(self) -> None:
        self.lines.append("bar.sync 0; st.shared.u32 [%s1], %r4; bar.sync 0;")
        self.lines.append("xor.b32 %r5, %s1, 64; ld.shared.u32 %r6, [%r5]; add.u32 %r4, %r4, %r6; bar.sync 0;")

    def _shuffle(self, mode: str, by: int) -> None:
        clamp = 0 if mode == "up" else 31
        self.lines.append(f"activemask.b32 %r7; shfl.sync.{mode}.b32 %r6|%p4, %r4, {by}, {clamp}, %r7;")
        self.lines.append("@%p4 add.u32 %r4, %r4, %r6;")

    def _vote(self, form: str) -> None:
        target = "%r6" if form.startswith("ballot") else "%p5"
        self.lines.append(f"activemask.b32 %r7; setp.lt.u32 %p4, %r4, 2000000000; vote.sync.{form} {target}, %p4, %r7;")
        use = "add.u32 %r4, %r4, %r6;" if target == "%r6" else "@%p5 add.u32 %r4, %r4, 11;"
        self.lines.append(use)

    def _redux(self, form: str) -> None:
        self.lines.append(f"activemask.b32 %r7; redux.sync.{form} %r6, %r4, %r7; add.u32 %r4, %r4, %r6;")


def outcome(text: str, grid: int, block: int, races: bool, lanes: int = 1024) -> tuple[Any, np.ndarray[Any, Any]]:
    """Emulate a program. Return its counts, or its error message, and its output buffer."""
    x, y = np.random.default_rng(7).integers(0, 1 << 32, grid * block + 64, np.uint32), np.zeros(2048, np.uint32)
    launch = KernelLaunch("k", (grid,), (block,), ["x", "y"], {"x": x, "y": y})
    options = EmulationOptions(grid, check_races=races, budget=200_000, batch_lanes=lanes)
    try:
        return Emulation(parse(text), launch, options).run(range(grid)), y
    except EmulationError as error:
        return str(error), y


def _random(chance: random.Random, whole: bool, depth: int = 0) -> tuple[Any, ...]:
    """Return a random statement. Shuffles need a `whole` warp, because lanes that exited cannot be read."""
    kinds = ("add", "if", "loop", "load", "atomic", *(() if whole else ("leave",)))
    kinds += () if depth else ("barrier", "vote", "redux", *(("shuffle",) if whole else ()))
    kind, number = chance.choice(kinds), chance.randrange
    some = [_random(chance, whole, depth + 1) for _ in range(number(3))] if depth < 3 and kind in ("if", "loop") else []
    arguments: dict[str, tuple[Any, ...]] = {
        "add": (number(2, 5), number(2, 5)), "if": (number(1, 32), some, some[1:]), "loop": (number(1, 8), some),
        "load": (number(64),), "atomic": (number(8),), "leave": (number(1, 32),), "barrier": (),
        "shuffle": (chance.choice(("up", "down", "bfly", "idx")), number(32)),
        "vote": (chance.choice(("ballot.b32", "any.pred", "all.pred")),),
        "redux": (chance.choice(("add.u32", "min.s32", "xor.b32")),),
    }  # fmt: skip
    return kind, *arguments[kind]


def program(chance: random.Random, whole: bool) -> str:
    text = Text()
    for _ in range(chance.randrange(2, 9)):
        text.add(_random(chance, whole))
    return HEADER + "\n".join(text.lines) + FOOTER


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from((32, 48, 96, 128)), st.booleans())
def test_emulation_batch_size_does_not_change_results(seed, grid, block, races):
    text = program(random.Random(seed), bool(seed % 2))
    (counts, y), (alone, y_alone) = (outcome(text, grid, block, races, lanes) for lanes in (1024, 32))
    assert isinstance(counts, str) == isinstance(alone, str)
    if not isinstance(counts, str):
        assert counts == alone
        assert (y == y_alone).all()


def test_random_programs_compute_the_recorded_results():
    chance = random.Random(11)
    for number in range(100):
        text = program(chance, number % 4 > 1)
        grid, block = chance.randrange(1, 6), chance.choice((32, 64, 96, 128) if number % 4 > 1 else (32, 48, 80, 128))
        counts, y = outcome(text, grid, block, bool(number % 2))
        check(f"random program {number}", counts if isinstance(counts, str) else digest(counts, y))


ERRORS, COUNTED = tomllib.loads(beside(__file__, "programs.toml")).values()


@pytest.mark.parametrize("name", ERRORS)
def test_emulation_error_matches_the_recorded_error(name):
    message, _ = outcome(HEADER + ERRORS[name] + FOOTER, 3, 96, True)
    assert isinstance(message, str)
    check(f"error {name}", message)


@pytest.mark.parametrize("name", COUNTED)
def test_program_results_and_counts_equal_the_recorded_ones(name):
    counts, y = outcome(HEADER + COUNTED[name] + FOOTER, 3, 96, False)
    assert not isinstance(counts, str), counts
    check(f"counts {name}", [digest(y), dict(sorted(counts.items()))])


def _listed(first: int, count: int, letter: str = "r") -> str:
    return "{" + ", ".join(f"%{letter}{i}" for i in range(first, first + count)) + "}"


def _mma(form: str, a: int, b: int, c: int, d: int, more: str = "", letter: str = "r") -> str:
    """Return PTX in which each thread loads the operands of an `mma`, runs the `mma` and stores the result."""
    size = 8 if letter == "d" else 4
    loads = [f"ld.global.b{8 * size} %{letter}{1 + i}, [%a2+{size * i % 64}];" for i in range(a + b + c)]
    first_d = 1 + a + b + c
    operands = [
        _listed(first_d, d, letter), _listed(1, a, letter), _listed(1 + a, b, letter), _listed(1 + a + b, c, letter),
    ]  # fmt: skip
    stores = [f"st.global.b{8 * size} [%a3+{size * i}], %{letter}{first_d + i};" for i in range(d)]
    return "\n".join([*loads, f"mma.sync.aligned.{form} {', '.join(operands)}{more};", *stores])


def _wmma(shape: str, kind: str, registers: int, layout: str, space: str) -> str:
    """Return PTX that loads an accumulator and stores it by columns. Shared memory is read with a 32-bit address."""
    registers_listed = _listed(1, registers)
    fill = "mov.u32 %r30, tile; mad.lo.u32 %r31, %r0, 32, %r30;" + "".join(
        f"ld.global.b32 %r32, [%a2+{4 * i}]; st.shared.b32 [%r31+{4 * i}], %r32;" for i in range(8)
    )
    source = "%r30" if space == "shared" else "%a0"
    load = f"wmma.load.c.sync.aligned.{layout}.{shape}.{space}.{kind} {registers_listed}, [{source}], %r39;"
    store = f"wmma.store.d.sync.aligned.col.{shape}.global.{kind} [%a1], {registers_listed}, 32;"
    return f"{fill} bar.sync 0; {load} {store}"


_PROGRAMS = {
    "mma f16": _mma("m16n8k16.row.col.f32.f16.f16.f32", 4, 2, 4, 4),
    "mma f16 in f16": _mma("m16n8k8.row.col.f16.f16.f16.f16", 2, 1, 2, 2),
    "mma s8": _mma("m16n8k32.row.col.satfinite.s32.s8.u8.s32", 4, 2, 4, 4),
    "mma b1": _mma("m16n8k256.row.col.s32.b1.b1.s32.xor.popc", 4, 2, 4, 4),
    "mma f64": _mma("m8n8k4.row.col.f64.f64.f64.f64", 1, 1, 2, 2, letter="d"),
    "mma e4m3": _mma("m16n8k32.row.col.f32.e4m3.e5m2.f32", 4, 2, 4, 4),
    "mma f8f6f4": _mma("m16n8k32.row.col.kind::f8f6f4.f32.e3m2.e2m1.f32", 4, 2, 4, 4),
    "mma mxf4nvf4": _mma(
        "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3",
        4, 2, 4, 4, ", %r1, {0, 1}, %r2, {0, 3}",
    ),
    "mma of half a warp": "setp.lt.u32 %p1, %r0, 16; @%p1 bra A; bra B; A:\n"
    + _mma("m16n8k8.row.col.f16.f16.f16.f16", 2, 1, 2, 2)
    + "\nB:",
    **{
        f"wmma {kind} {layout} {space}": _wmma("m16n16k16", kind, registers, layout, space)
        for kind, registers in (("f32", 8), ("f16", 4), ("s32", 8))
        for layout in ("row", "col")
        for space in ("global", "shared")
    },
    "wmma outside": _wmma("m16n16k16", "f32", 8, "row", "global").replace("[%a0]", "[%a0+4080]"),
    "wmma misaligned": _wmma("m16n16k16", "f32", 8, "row", "global").replace("[%a0]", "[%a0+2]"),
}  # fmt: skip


@pytest.mark.parametrize("name", _PROGRAMS)
def test_matmul_result_is_bitwise_equal_to_the_recorded_one(name):
    module = parse(beside(__file__, "programs_head.ptx") + _PROGRAMS[name] + "\nret;\n}\n")
    values = np.random.default_rng(13).standard_normal(64 * 32).astype(np.float16)
    buffers = {"x": values, "y": np.zeros(64 * 64, np.uint8), "n": np.zeros(4, np.uint8)}
    try:
        counts = emulate(module, KernelLaunch("k", (1,), (64,), ["x", "y", 16], buffers))
    except EmulationError as error:
        check(name, str(error))
        return
    kind = {"mma f64": "f64", "mma e4m3": "f32", "mma f8f6f4": "f32"}.get(name, "b32")
    check(name, digest(counts, one_nan(kind, buffers["y"])))
