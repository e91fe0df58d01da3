"""Textures and surfaces of the engine against the NumPy functions of the emulator."""

from itertools import product

import numpy as np
import pytest

from kernrec.ptx.execution.engine import load
from kernrec.ptx.instructions.images import GEOMETRIES, _level_of, _places
from kernrec.ptx.state.textures import ELEMENTS, Image, Sampler, corners, read_texels

engine = load()
pytestmark = pytest.mark.skipif(engine is None, reason="the engine is not compiled")

_EXTENTS = {"1d": (13,), "2d": (9, 7), "3d": (5, 6, 4), "a1d": (13,), "a2d": (9, 7), "cube": (8, 8), "acube": (8, 8)}
_PTX_NAMES = {"i8": "s8", "i16": "s16", "i32": "s32"}


def _image(
    generator: np.random.Generator, shape: str, sampler: Sampler, element: str
) -> tuple[Image, object, np.ndarray]:
    layers = {"acube": 12, "cube": 6, "a1d": 3, "a2d": 3}.get(shape, 1)
    channels = int(generator.choice([1, 2, 4]))
    image = Image("b", _EXTENTS[shape], element, channels, layers, 3, sampler)
    data = generator.integers(0, 256, image.bytes).astype(np.uint8)
    if image.dtype.kind == "f":
        data = generator.standard_normal(image.bytes // image.dtype.itemsize).astype(image.dtype).view(np.uint8)
    made = engine.image(
        data, list(image.extents), _PTX_NAMES.get(element, element), [channels, layers, 3], sampler.address,
        [sampler.filter == "linear", sampler.normalized, sampler.unit_range],
    )  # fmt: skip
    return image, made, data


@pytest.mark.parametrize("shape", GEOMETRIES)
@pytest.mark.parametrize("mode", ["wrap", "clamp", "mirror", "border"])
def test_fetches_equal_the_emulator(shape: str, mode: str) -> None:
    generator = np.random.default_rng(5)
    geometry = GEOMETRIES[shape]
    for linear, normalized, element in product((False, True), (False, True), ("f32", "f16", "u8", "i16")):
        unit_range = element in ("u8", "i16") and linear
        sampler = Sampler("linear" if linear else "point", mode, normalized, unit_range)
        image, made, data = _image(generator, shape, sampler, element)
        whole = not (normalized or linear or geometry.cube) and bool(generator.integers(2))
        scale = 1.5 if normalized or geometry.cube else 15
        rows = [(generator.standard_normal(24) * scale).astype(np.float32) for _ in range(geometry.axes)]
        rows[0][:3] = [np.nan, np.inf, -1e30]
        if geometry.cube:
            rows[0][:3] = 0
        if whole:
            rows = [np.nan_to_num(row, nan=0, posinf=90, neginf=-90).clip(-90, 90).astype(np.int32) for row in rows]
        layer = generator.integers(0, 5, 24).astype(np.uint32) if geometry.layered else None
        level = int(generator.integers(3))
        with np.errstate(all="ignore"):
            number, places = _places(image, geometry, layer, rows, np.arange(24))
            read = corners(image, level, places, linear and not whole, whole)
            parts = [
                read_texels(image, data, image.texel(c.coordinates, number, level), c.inside) for c in read
            ]  # (texels, 4)
        expected = parts[0] if len(read) == 1 else 0.0
        if len(read) > 1:
            for part, corner in zip(parts, read, strict=True):
                expected = expected + part * np.asarray(corner.weight)[:, None]
        stored = np.stack([np.where(c.inside, image.stored_at(c.coordinates, number, level), -1) for c in read], 1)
        for i in range(24):
            place = [float(row[i]) for row in rows] + [0.0] * (3 - len(rows))
            values, bytes_read = engine.fetch(
                made, shape, place, 0 if layer is None else int(layer[i]), [0.0] * 3, float(level), whole
            )
            assert np.array_equal(values, expected[i], equal_nan=True)
            assert bytes_read == stored[i].tolist()


@pytest.mark.parametrize("shape", ["2d", "a2d", "cube", "acube"])
def test_gathers_equal_the_emulator(shape: str) -> None:
    generator = np.random.default_rng(6)
    geometry = GEOMETRIES[shape]
    image, made, data = _image(generator, shape, Sampler("linear", "clamp", True), "f32")
    rows = [generator.standard_normal(20).astype(np.float32) for _ in range(geometry.axes)]
    number, places = _places(image, geometry, None, rows, np.arange(20))
    read = corners(image, 0, places, True, False)
    texels = [read_texels(image, data, image.texel(c.coordinates, number, 0), c.inside) for c in read]
    for i, channel in product(range(20), range(image.channels)):
        place = [float(row[i]) for row in rows] + [0.0] * (3 - len(rows))
        values, _ = engine.gather(made, shape, place, 0, channel)
        assert values == [texels[corner][i, channel] for corner in (1, 3, 2, 0)]


def test_gradients_give_the_level_of_the_emulator() -> None:
    generator = np.random.default_rng(7)
    image, made, _ = _image(generator, "2d", Sampler("point", "clamp", True), "f32")
    slopes = generator.standard_normal((2, 2, 50)).astype(np.float32)
    expected = _level_of(image, [list(slope) for slope in slopes])
    result = [
        engine.level_of_gradients(made, *([float(axis[i]) for axis in slope] + [0.0] for slope in slopes))
        for i in range(50)
    ]
    assert np.allclose(result, expected, rtol=1e-15)


def test_surface_places_stay_inside_their_buffer() -> None:
    generator = np.random.default_rng(8)
    assert set(ELEMENTS) >= {"u8", "u32"}
    image, made, _ = _image(generator, "2d", Sampler(), "u32")
    row = 9 * image.texel_bytes
    for x, y in generator.integers(-20, 60, (200, 2)).tolist():
        x *= 4
        inside = 0 <= x <= row - 4 and 0 <= y < 7
        if inside:
            assert engine.surface_place(made, [x, y, 0], 0, 4, 0)[0] == y * row + x
        else:
            with pytest.raises(ValueError, match="is outside of the surface"):
                engine.surface_place(made, [x, y, 0], 0, 4, 0)
        nearest = min(max(y, 0), 6) * row + min(max(x, 0), row - 4)
        assert engine.surface_place(made, [x, y, 0], 0, 4, 1)[0] == nearest
        assert engine.surface_place(made, [x, y, 0], 0, 4, 2)[2] is not inside
    with pytest.raises(ValueError, match="x is not a multiple of 4 bytes"):
        engine.surface_place(made, [2, 0, 0], 0, 4, 0)
