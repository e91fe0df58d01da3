"""Tensor maps, barriers and reductions of the engine against the Python functions of the emulator."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from kernrec.ptx.execution.engine import load
from kernrec.ptx.instructions.atomics import combination
from kernrec.ptx.state.mbarriers import BarrierMisuseError, Mbarriers
from kernrec.ptx.state.tensor_maps import ELEMENT_TYPES, TensorMap, TensorMapError, decode, four_rows, replaced
from kernrec.ptx.state.types import DTYPES

engine = load()
pytestmark = pytest.mark.skipif(engine is None, reason="the engine is not compiled")


def _random_map(generator: np.random.Generator, rank: int) -> TensorMap:
    kind = ELEMENT_TYPES[generator.integers(len(ELEMENT_TYPES))]
    size = TensorMap(16, kind, (1,), (), (1,)).element_bytes
    swizzle = int(generator.choice([0, 32, 64, 128]))
    row = int(generator.integers(1, (swizzle or 128) // 16 + 1)) * 16 // size
    steps = (1, *(int(x) for x in generator.integers(1, 4, rank - 1)))
    return TensorMap(
        4096,
        kind,
        tuple(int(x) for x in generator.integers(1, 40, rank)),
        tuple(int(x) * 16 for x in generator.integers(1, 50, rank - 1)),
        (row, *(int(x) for x in generator.integers(1, 7, rank - 1))),
        swizzle,
        steps,
        bool(generator.integers(2)),
    )


def _raw(tensor: TensorMap) -> np.ndarray:
    return np.frombuffer(tensor.encode(4096), np.uint8).copy()


def _same_elements(result: tuple[list[int], list[bool]], expected: tuple[np.ndarray, np.ndarray | None]) -> None:
    offsets, inside = expected
    assert np.array_equal(result[0], offsets)
    assert np.array_equal(result[1], np.ones(len(offsets), np.bool_) if inside is None else inside)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_boxes_of_tensor_maps_equal_the_emulator(rank: int) -> None:
    generator = np.random.default_rng(1)
    for _ in range(60):
        tensor = _random_map(generator, rank)
        raw = _raw(tensor)
        corner = tuple(int(x) for x in generator.integers(-20, 50, rank))
        _same_elements(engine.box_elements(raw, [*corner, *[0] * (5 - rank)]), tensor.elements(corner))
        start = int(generator.integers(0, 100)) * 128
        assert np.array_equal(engine.shared_elements(raw, start), tensor.shared_offsets(start) + start)
        assert engine.tensor_map_sizes(raw) == (tensor.box_bytes, tensor.shared_bytes, tensor.fill)


def test_four_rows_equal_the_emulator() -> None:
    generator = np.random.default_rng(2)
    for _ in range(60):
        tensor = _random_map(generator, 2)
        tensor = TensorMap(
            4096, tensor.type, tensor.extents, tensor.strides, (tensor.box[0], 1), tensor.swizzle, (1, 1)
        )
        rows = [int(x) for x in generator.integers(-5, 45, 5)]
        result = engine.row_elements(_raw(tensor), rows)
        _same_elements(result, four_rows(tensor).rows(rows[0], tuple(rows[1:])))


@pytest.mark.parametrize("seed", range(4))
def test_replaced_fields_and_refused_maps_equal_the_emulator(seed: int) -> None:
    generator = np.random.default_rng(seed)
    fields = ("global_address", "rank", "elemtype", "interleave_layout", "swizzle_mode", "fill_mode", "global_dim")
    fields = (*fields, "global_stride", "box_dim", "element_stride", "nothing")
    for _ in range(200):
        tensor = _random_map(generator, int(generator.integers(1, 6)))
        raw = _raw(tensor)
        field, ordinal = str(generator.choice(fields)), int(generator.integers(-1, 6))
        value = int(generator.choice([0, 1, 2, 3, 5, 9, 16, 24, 257, 1 << 33]))
        try:
            expected = replaced(raw.tobytes(), field, ordinal, value)
        except TensorMapError as error:
            with pytest.raises(ValueError, match=re.escape(str(error))):
                engine.replace_tensor_map_field(raw, field, ordinal, value)
            continue
        engine.replace_tensor_map_field(raw, field, ordinal, value)
        assert raw.tobytes() == expected
        try:
            checked = decode(expected)
            checked.check()
        except TensorMapError as error:
            with pytest.raises(ValueError, match=re.escape(str(error))):
                engine.tensor_map_sizes(raw)
        else:
            assert engine.tensor_map_sizes(raw) == (checked.box_bytes, checked.shared_bytes, checked.fill)


def _barrier_acts(
    old: Mbarriers, new: object, generator: np.random.Generator
) -> list[tuple[Callable[[], object], ...]]:
    """Random acts on one barrier: on the emulator's, and on the engine's."""
    place, count = int(generator.choice([0, 8, 24])), int(generator.integers(0, 4))
    drop, completes = bool(generator.integers(4) == 0), bool(generator.integers(4))
    amount = int(generator.choice([16, -16, 32, -32, 1 << 20]))
    return [
        (lambda: old.initialize(place, count), lambda: new.initialize(place, count)),
        (lambda: old.invalidate(place), lambda: new.invalidate(place)),
        (lambda: old.expect(place, amount), lambda: new.expect(place, amount)),
        (
            lambda: old.arrive(place, count, drop=drop, completes=completes),
            lambda: new.arrive(place, count, drop, completes),
        ),
        (lambda: old.await_more(place, count), lambda: new.await_more(place, count)),
        (
            lambda: bool(old.passed(np.array([place]), np.array([count & 1]))[0]),
            lambda: new.passed(place, count & 1),
        ),
    ]


def test_barriers_go_through_the_phases_of_the_emulator() -> None:
    generator = np.random.default_rng(3)
    memory = np.full(64, 0xFF, np.uint8)
    old_memory = memory.copy()
    completed: list[int] = []
    old, new = Mbarriers(old_memory.view(np.uint64), completed.append), engine.BarrierArray(memory)
    outcomes = {"refused": 0, "done": 0}
    for _ in range(4000):
        acts = _barrier_acts(old, new, generator)
        expected, act = acts[int(generator.choice(6, p=[0.1, 0.02, 0.2, 0.5, 0.08, 0.1]))]
        try:
            value = expected()
        except BarrierMisuseError as error:
            outcomes["refused"] += 1
            with pytest.raises(ValueError, match=re.escape(str(error))):
                act()
        else:
            outcomes["done"] += 1
            assert act() == value
        assert np.array_equal(memory, old_memory)
    assert new.completed == completed
    assert min(outcomes.values()) > 500
    assert len(completed) > 50


_NUMBERS = ("u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64")
_REDUCTIONS = [
    *(f"{name}.{kind}" for name in ("add", "min", "max") for kind in _NUMBERS),
    *(f"{name}.{kind}" for name in ("and", "or", "xor", "inc", "dec") for kind in ("u32", "u64")),
]


@pytest.mark.parametrize("form", _REDUCTIONS)
def test_reductions_equal_the_emulator(form: str) -> None:
    name, kind = form.split(".")
    generator = np.random.default_rng(4)
    dtype = DTYPES[kind]
    bits = generator.integers(0, 1 << 63, (2, 500), np.uint64) << np.uint64(1)
    old, value = (x.astype(f"u{dtype.itemsize}") for x in (bits >> np.uint64(64 - 8 * dtype.itemsize)))
    if "f" in kind:
        wide = np.dtype("f4") if kind == "bf16" else dtype
        numbers = (generator.standard_normal((2, 500)) * 2.0 ** generator.integers(-8, 8, (2, 500))).astype(wide)
        numbers[:, :4] = [[0, np.inf, 1, -np.inf], [np.nan, 1, np.nan, 2]]
        unsigned = numbers.view(f"u{wide.itemsize}")
        old, value = (unsigned >> 16).astype(np.uint16) if kind == "bf16" else unsigned
    with np.errstate(all="ignore"):
        expected = combination(name, kind)(old.view(dtype), value.view(dtype), value.view(dtype))
    expected = expected.view(f"u{dtype.itemsize}")
    result = [engine.reduce(name, kind, int(a), int(b)) for a, b in zip(old, value, strict=True)]
    same = np.array(result, np.uint64) == expected
    if kind[0] == "f":
        same |= np.isnan(expected.view(dtype)) & np.isnan(np.array(result, expected.dtype).view(dtype))
    assert same.all()


def test_addresses_of_a_cluster_name_a_rank() -> None:
    for address in (0, 1024, (1 << 56) + 64):
        assert engine.rank_of_address(address, 3) == 3
        for rank in (0, 7, 15):
            mapped = engine.map_to_rank(address, rank)
            assert engine.rank_of_address(mapped, 3) == rank
            assert mapped == address | (rank + 1) << 24
            assert engine.map_to_rank(mapped, 2) == address | 3 << 24
