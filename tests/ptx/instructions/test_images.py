"""Test textures and surfaces against a texel-by-texel reference of the CUDA guide."""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from kernrec.errors import UsageError
from kernrec.ptx import Counts, EmulationError, Image, KernelLaunch, Sampler, emulate, parse
from tests.helpers.paths import beside
from tests.helpers.ptx_text import cuda

RNG = np.random.default_rng(5)
LANES = 256


def reference_index(i: int, n: int, sampler: Sampler) -> int | None:
    """Return the texel index for number `i` along an axis of `n` texels, or None for the border."""
    mode = sampler.address
    if not sampler.normalized and mode in ("wrap", "mirror"):
        mode = "clamp"
    if mode == "wrap":
        return i % n
    if mode == "mirror":
        period, rest = divmod(i, n)
        return rest if period % 2 == 0 else n - 1 - rest
    if mode == "border":
        return i if 0 <= i < n else None
    return min(max(i, 0), n - 1)


def reference_fetch(texels: np.ndarray, sampler: Sampler, places: Sequence[float]) -> np.ndarray:
    """Return the texture value at `places` (x, y, z). `texels` is an array of shape ([z,] [y,] x, channels)."""
    axes = []
    for place, n in zip(places, texels.shape[-2::-1], strict=False):
        x = float(place) * n if sampler.normalized else float(place)
        if sampler.filter == "point":
            axes.append([(reference_index(math.floor(x), n, sampler), 1.0)])
        else:
            first = math.floor(x - 0.5)
            share = math.floor((x - 0.5 - first) * 256 + 0.5) / 256
            axes.append([(reference_index(first + i, n, sampler), share if i else 1 - share) for i in (0, 1)])
    total = np.zeros(texels.shape[-1])
    for corner in product(*axes):
        index = tuple(i for i, _ in reversed(corner))
        weight = math.prod(w for _, w in corner)
        if all(i is not None for i in index):
            total = total + weight * texels[index].astype(np.float64)
    return total


def reference_fetches(texels: np.ndarray, sampler: Sampler, places: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([reference_fetch(texels, sampler, point) for point in zip(*places, strict=True)])


def fetch(
    instruction: str, image: Image, data: np.ndarray, inputs: Sequence[np.ndarray], result: str = "f32", **options: Any
) -> tuple[np.ndarray, Counts]:
    """Return the texels (lanes, 4). The instruction names its result {d}, the image {t} and inputs {0}, {1}, ..."""
    names = [f"in{i}" for i in range(len(inputs))]
    lines = ["mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 4; ld.param.u64 %rd0, [t];"]
    for i, name in enumerate(names):
        lines.append(f"ld.param.u64 %rd1, [{name}]; add.u64 %rd1, %rd1, %rd2; ld.global.b32 %i{i}, [%rd1];")
    registers = "{%o0, %o1, %o2, %o3}"
    lines.append(instruction.format(*(f"%i{i}" for i in range(len(inputs))), d=registers, t="%rd0") + ";")
    lines.append("ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r0, 16; add.u64 %rd1, %rd1, %rd2;")
    lines.append(f"st.global.v4.b32 [%rd1], {registers};")
    parameters = ", ".join(f".param .u64 {name}" for name in ("t", *names, "out"))
    module = parse(
        f".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k({parameters})\n"
        "{\n.reg .b64 %rd<4>; .reg .b32 %r<4>, %i<9>, %o<5>;\n" + "\n".join(lines) + "\nret;\n}\n"
    )
    out = np.zeros((LANES, 4), {"f32": "f4", "u32": "u4", "s32": "i4"}[result])
    buffers = {**dict(zip(names, inputs, strict=True)), "texels": data, "out": out}
    launch = KernelLaunch("k", (1,), (LANES,), ["picture", *names, "out"], buffers, images={"picture": image})
    return out, emulate(module, launch, **options)


def coordinates(axes: int, extents: Sequence[int], normalized: bool) -> list[np.ndarray]:
    """Return coordinates inside and outside the image, integers and fractions."""
    places = [RNG.uniform(-1.5, 2.5, LANES) for _ in range(axes)]
    for place in places:
        place[:40] = np.round(place[:40] * 8) / 8
    scale = [1 if normalized else extent for extent in extents]
    return [(place * factor).astype(np.float32) for place, factor in zip(places, scale, strict=True)]


SAMPLERS = [
    Sampler(f, a, n) for f, a, n in product(("point", "linear"), ("clamp", "border", "wrap", "mirror"), (False, True))
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: f"{s.filter}-{s.address}-{s.normalized}")
@pytest.mark.parametrize("extents", [(13,), (12, 7), (5, 4, 3)], ids=str)
def test_texture_fetch_filters_and_addresses_as_documented(sampler, extents):
    channels = len(extents) if len(extents) < 3 else 4
    texels = RNG.standard_normal((*reversed(extents), channels)).astype(np.float32)
    places = coordinates(len(extents), extents, sampler.normalized)
    inside = ", ".join(f"{{{i}}}" for i in range(len(extents))) + (", {2}" if len(extents) == 3 else "")
    got, _ = fetch(
        f"tex.{len(extents)}d.v4.f32.f32 {{d}}, [{{t}}, {{{{{inside}}}}}]",
        Image("texels", extents, channels=channels, sampler=sampler), texels, places,
    )  # fmt: skip
    expected = reference_fetches(texels, sampler, places)
    np.testing.assert_allclose(got[:, :channels], expected, rtol=1e-6, atol=1e-6)
    assert not got[:, channels:].any()


@pytest.mark.parametrize(("element", "most"), [("u8", 255), ("i8", 127), ("u16", 65535), ("i16", 32767)])
def test_integers_are_read_raw_or_normalized(element, most):
    kind = {"u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2"}[element]
    texels = RNG.integers(np.iinfo(kind).min, most + 1, (9, 8, 2)).astype(kind)
    places = coordinates(2, (8, 9), False)
    instruction = "tex.2d.v4.{}.f32 {{d}}, [{{t}}, {{{{{{0}}, {{1}}}}}}]"
    signed = "s32" if element[0] == "i" else "u32"
    got, _ = fetch(instruction.format(signed), Image("texels", (8, 9), element, 2), texels, places, signed)
    shares, _ = fetch(
        instruction.format("f32"), Image("texels", (8, 9), element, 2, sampler=Sampler("linear", unit_range=True)),
        texels, places,
    )  # fmt: skip
    numbers = np.maximum(texels.astype(np.float64) / most, -1)
    np.testing.assert_array_equal(got[:, :2], reference_fetches(texels, Sampler(), places))
    np.testing.assert_allclose(shares[:, :2], reference_fetches(numbers, Sampler("linear"), places), atol=1e-6)


def test_halves_are_read_as_numbers_and_as_packed_pairs():
    texels = RNG.standard_normal((16, 4)).astype(np.float16)
    places = [np.arange(LANES, dtype=np.int32) % 16]
    got, _ = fetch("tex.1d.v4.f32.s32 {d}, [{t}, {{{0}}}]", Image("texels", (16,), "f16", 4), texels, places)
    np.testing.assert_array_equal(got, texels[places[0]].astype(np.float32))
    pairs = "tex.1d.v2.f16x2.s32 {{%o0, %o1}}, [{t}, {{{0}}}]; mov.b32 %o2, %o0; mov.b32 %o3, %o1"
    got, _ = fetch(pairs, Image("texels", (16,), "f16", 4), texels, places, "u32")
    np.testing.assert_array_equal(got[:, :2].copy().view(np.float16), texels[places[0]])


def test_integer_coordinates_outside_the_image_read_zero():
    texels = np.arange(1, 11, dtype=np.uint32)
    places = [np.arange(-5, LANES - 5, dtype=np.int32)]
    got, counts = fetch("tex.1d.v4.u32.s32 {d}, [{t}, {{{0}}}]", Image("texels", (10,), "u32"), texels, places, "u32")
    np.testing.assert_array_equal(got[:, 0], [w + 1 if 0 <= w < 10 else 0 for w in places[0]])
    assert counts["global.texels.read_sectors"] == 2  # the texels span 40 bytes
    assert counts["global.texels.read_requests"] == LANES // 32


def test_layered_texture_clamps_the_layer_index():
    texels = RNG.standard_normal((3, 4, 6, 1)).astype(np.float32)
    places = coordinates(2, (6, 4), True)
    layer = RNG.integers(0, 5, LANES).astype(np.uint32)
    sampler = Sampler("linear", "wrap", normalized=True)
    image = Image("texels", (6, 4), layers=3, sampler=sampler)
    got, _ = fetch("tex.a2d.v4.f32.f32 {d}, [{t}, {{{0}, {1}, {2}, {2}}}]", image, texels, [layer, *places])
    for lane in range(LANES):
        expected = reference_fetch(texels[min(layer[lane], 2)], sampler, [w[lane] for w in places])
        np.testing.assert_allclose(got[lane, 0], expected[0], atol=1e-6)
    rows = RNG.standard_normal((3, 6, 1)).astype(np.float32)
    got, _ = fetch(
        "tex.a1d.v4.f32.f32 {d}, [{t}, {{{0}, {1}}}]", Image("texels", (6,), layers=3), rows, [layer, places[0]]
    )
    for lane in range(LANES):
        assert got[lane, 0] == reference_fetch(rows[min(layer[lane], 2)], Sampler(), [places[0][lane]])[0]


FACES = {  # face: (axis of the largest coordinate, its sign, s, t), as in the guide's table
    0: (0, 1, lambda x, y, z: -z, lambda x, y, z: -y), 1: (0, -1, lambda x, y, z: z, lambda x, y, z: -y),
    2: (1, 1, lambda x, y, z: x, lambda x, y, z: z), 3: (1, -1, lambda x, y, z: x, lambda x, y, z: -z),
    4: (2, 1, lambda x, y, z: x, lambda x, y, z: -y), 5: (2, -1, lambda x, y, z: -x, lambda x, y, z: -y),
}  # fmt: skip


@pytest.mark.parametrize("layered", [False, True])
def test_direction_selects_a_cube_face_and_position(layered):
    cubes = 2 if layered else 1
    texels = RNG.standard_normal((cubes * 6, 8, 8, 1)).astype(np.float32)
    direction = [RNG.uniform(-1, 1, LANES).astype(np.float32) for _ in range(3)]
    cube = (np.arange(LANES) % cubes).astype(np.uint32)
    sampler = Sampler("linear", "clamp", normalized=True)
    image = Image("texels", (8, 8), layers=6 * cubes, sampler=sampler)
    if layered:
        got, _ = fetch("tex.acube.v4.f32.f32 {d}, [{t}, {{{0}, {1}, {2}, {3}}}]", image, texels, [cube, *direction])
    else:
        got, _ = fetch("tex.cube.v4.f32.f32 {d}, [{t}, {{{0}, {1}, {2}, {2}}}]", image, texels, direction)
    for lane in range(LANES):
        x, y, z = (float(axis[lane]) for axis in direction)
        axis = int(np.argmax(np.abs([x, y, z])))
        face, (_, _, s, t) = next(
            (face, row) for face, row in FACES.items() if row[0] == axis and row[1] * (x, y, z)[axis] > 0
        )
        m = abs((x, y, z)[axis])
        place = [(s(x, y, z) / m + 1) / 2, (t(x, y, z) / m + 1) / 2]
        expected = reference_fetch(texels[6 * int(cube[lane]) + face], sampler, place)
        np.testing.assert_allclose(got[lane, 0], expected[0], atol=1e-5)


def test_level_of_detail_is_explicit_or_from_gradients():
    levels = [RNG.standard_normal((max(8 >> i, 1), 16 >> i, 1)).astype(np.float32) for i in range(3)]
    data = np.concatenate([level.reshape(-1) for level in levels])
    sampler = Sampler("linear", "clamp", normalized=True)
    image = Image("texels", (16, 8), levels=3, sampler=sampler)
    places = coordinates(2, (16, 8), True)
    lod = RNG.uniform(-1, 4, LANES).astype(np.float32)
    leveled, _ = fetch("tex.level.2d.v4.f32.f32 {d}, [{t}, {{{0}, {1}}}], {2}", image, data, [*places, lod])
    slope = (2.0**lod / 16).astype(np.float32)  # 2**lod texels as a fraction of the image width
    none = np.zeros(LANES, np.float32)
    followed, _ = fetch(
        "tex.grad.2d.v4.f32.f32 {d}, [{t}, {{{0}, {1}}}], {{{2}, {3}}}, {{{3}, {3}}}",
        image,
        data,
        [*places, slope, none],
    )
    for lane in range(LANES):
        level = int(np.clip(np.floor(lod[lane] + 0.5), 0, 2))
        expected = reference_fetch(levels[level], sampler, [w[lane] for w in places])
        np.testing.assert_allclose(leveled[lane, 0], expected[0], atol=1e-6)
        if abs(lod[lane] % 1 - 0.5) > 1e-3:
            assert followed[lane, 0] == leveled[lane, 0]


def test_gather_returns_one_channel_of_four_texels():
    texels = RNG.standard_normal((5, 6, 2)).astype(np.float32)
    x, y = (RNG.integers(1, n - 1, LANES).astype(np.float32) for n in (6, 5))  # halfway between two texels
    got, _ = fetch("tld4.g.2d.v4.f32.f32 {d}, [{t}, {{{0}, {1}}}]", Image("texels", (6, 5), channels=2), texels, [x, y])
    i, j = x.astype(int), y.astype(int)
    expected = np.stack([texels[j, i - 1, 1], texels[j, i, 1], texels[j - 1, i, 1], texels[j - 1, i - 1, 1]], axis=1)
    np.testing.assert_array_equal(got, expected)


def test_kernel_reads_the_extents_of_its_image():
    source = (
        "txq.width.b32 %o0, [{t}]; txq.height.b32 %o1, [{t}]; suq.depth.b32 %o2, [{t}]; txq.array_size.b32 %o3, [{t}]"
    )
    got, _ = fetch(source, Image("texels", (4, 3, 2), "u8"), np.zeros(24, np.uint8), [], "u32")
    assert got[0].tolist() == [4, 3, 2, 1]


def test_fetch_counts_the_sectors_of_its_texels():
    # The 32 lanes of a warp read 33 x 2 texels. A sector holds 4 x 2 texels of 4 bytes each.
    x = (np.arange(LANES) % 32 + 1).astype(np.float32)
    y = np.full(LANES, 1.0, np.float32)
    image = Image("texels", (64, 8), sampler=Sampler("linear"))
    _, counts = fetch("tex.2d.v4.f32.f32 {d}, [{t}, {{{0}, {1}}}]", image, np.zeros((8, 64), np.float32), [x, y])
    assert counts["global.texels.read_requests"] == LANES // 32
    assert counts["global.texels.read_sectors"] == LANES // 32 * 9
    assert counts["global.texels.read_bytes"] == LANES * 4 * 4


SURFACES = beside(__file__, "surfaces.cu")


def surface_launch(width: int) -> tuple[KernelLaunch, np.ndarray, np.ndarray]:
    texels = RNG.integers(0, 256, (6, 40, 4)).astype(np.uint8)
    out = np.zeros_like(texels)
    images = {"from": Image("texels", (40, 6), "u8", 4), "to": Image("out", (40, 6), "u8", 4)}
    arguments = ["from", "to", np.int32(width), np.int32(6)]
    return KernelLaunch("k", (2, 6), (32,), arguments, {"texels": texels, "out": out}, images=images), texels, out


def test_surface_reads_beyond_an_edge_return_zero_or_the_nearest_texel():
    launch, texels, out = surface_launch(40)
    counts = emulate(cuda(SURFACES), launch)
    expected = np.zeros_like(texels)
    expected[:, 2:] = texels[:, :-2]
    expected[:, :, 0] += texels[:, np.minimum(np.arange(40) + 3, 39), 1]
    np.testing.assert_array_equal(out, expected)
    assert counts["global.out.write_bytes"] == out.nbytes
    assert counts["issue.st_global"] == 2 * 6


def test_trapping_access_outside_a_surface_is_an_error():
    with pytest.raises(EmulationError, match=r"sust.*block \(1, 0, 0\) thread \(8, .*\(160, 0\) is outside"):
        emulate(cuda(SURFACES), surface_launch(41)[0])


def test_surfaces_support_atomic_addition():
    module = parse(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 s)\n{"
        " .reg .b64 %rd; .reg .b32 %r<3>; ld.param.u64 %rd, [s]; mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 12;"
        " sured.b.add.1d.u32.zero [%rd, {%r1}], %r0; ret; }"
    )
    total = np.zeros(3, np.uint32)
    counts = emulate(
        module, KernelLaunch("k", (1,), (64,), ["s"], {"total": total}, images={"s": Image("total", (3,), "u32")})
    )
    lanes = np.arange(64)
    assert total.tolist() == [int(lanes[(lanes & 12) == 4 * i].sum()) for i in range(3)]  # index 3 is outside
    assert counts["atomic.total"] == 48


TEXTURE_OBJECT = """
extern "C" __global__ void k(cudaTextureObject_t image, float* out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    out[y * width + x] = tex2D<float>(image, (x + 0.25f) / width, (y + 0.75f) / height);
}
"""


def test_kernel_with_a_texture_object_reads_its_image():
    texels, out = RNG.standard_normal((6, 32, 1)).astype(np.float32), np.zeros((6, 32), np.float32)
    sampler = Sampler("linear", "wrap", normalized=True)
    images = {"picture": Image("texels", (32, 6), sampler=sampler)}
    arguments = ["picture", "out", np.int32(32), np.int32(6)]
    emulate(
        cuda(TEXTURE_OBJECT), KernelLaunch("k", (1, 6), (32,), arguments, {"texels": texels, "out": out}, images=images)
    )
    for y in range(6):
        for x in range(32):
            place = [
                np.float32(np.float32(x + 0.25) / np.float32(32)),
                np.float32(np.float32(y + 0.75) / np.float32(6)),
            ]
            np.testing.assert_allclose(out[y, x], reference_fetch(texels, sampler, place)[0], atol=2e-2)


LEGACY = beside(__file__, "legacy.ptx")


def test_texture_variable_uses_the_image_of_its_name():
    texels, out = RNG.standard_normal(20).astype(np.float32), np.zeros(32, np.float32)
    launch = KernelLaunch(
        "k", (1,), (32,), ["out"], {"texels": texels, "out": out}, images={"picture": Image("texels", (20,))}
    )
    emulate(parse(LEGACY), launch)
    np.testing.assert_array_equal(out, texels[np.minimum(np.arange(32), 19)])
    without = KernelLaunch("k", (1,), (32,), ["out"], {"out": out})
    with pytest.raises(EmulationError, match="0x0, which is not the handle of a texture"):
        emulate(parse(LEGACY), without)


def test_impossible_image_is_refused_in_one_line(refuses):
    refuses(lambda image: image(), [
        lambda: Image("texels", (4, 4), "f31"), lambda: Image("texels", (4,), channels=3), lambda: Image("texels", ()),
        lambda: Image("texels", (4,), "u8", sampler=Sampler("linear")), lambda: Sampler(address="wrapp"),
    ])  # fmt: skip


def test_image_larger_than_its_buffer_is_refused():
    with pytest.raises(UsageError, match="image picture has 64 bytes, its buffer texels has 60"):
        fetch("tex.1d.v4.f32.s32 {d}, [{t}, {{%r0}}]", Image("texels", (16,)), np.zeros(15, np.float32), [])
