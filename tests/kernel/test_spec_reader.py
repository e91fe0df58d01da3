import copy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.gpu import limits
from kernrec.kernel import PointerArgument, ScalarArgument, Space, load_kernel
from kernrec.kernel.spec_reader import kernel_from
from tests.helpers.paths import beside

SPEC = Path(__file__).parent / "tiled" / "kernel.toml"


@pytest.fixture
def write(tmp_path):

    def edited(old: str, new: str) -> Path:
        text = SPEC.read_text()
        assert text.count(old) >= 1
        folder = tmp_path / "tiled"
        folder.mkdir(exist_ok=True)
        (folder / "kernel.toml").write_text(text.replace(old, new, 1))
        (folder / "kernel.cu").write_text((SPEC.parent / "kernel.cu").read_text())
        return folder / "kernel.toml"

    return edited


def test_spec_is_read_as_written(tiled):
    assert (tiled.name, tiled.op, tiled.min_sm) == ("tiled", "matmul", 75)
    assert (tiled.dtypes, tiled.layouts) == (("f32",), ("nn",))
    assert [t.name for t in tiled.tunables][:3] == ["block_m", "block_n", "block_k"]
    assert tiled.tunables[0].values == (32, 64, 128, 256)
    assert [t.name for t in tiled.tunables if t.launch] == ["split_k", "raster"]
    first, second = tiled.launches
    assert first.arguments[0] == PointerArgument("a")
    assert isinstance(first.arguments[4], ScalarArgument)
    assert first.grid[2].text == "1"
    assert first.reads == {"a": ("m", "k"), "b": ("n", "k")}
    assert second.when is not None
    assert second.when.is_truth
    assert len(first.probes) == 3


def test_invalid_spec_is_refused_in_one_line_with_its_position(write, refuses):
    refuses(lambda old, new: load_kernel(write(old, new)), [
        ('name = "tiled"', "name = 3"), ('name = "tiled"', 'nmae = "tiled"'), ('op = "matmul"', 'op = "matmull"'),
        ('dtypes = ["f32"]', 'dtypes = ["f23"]'), ('dtypes = ["f32"]', "dtypes = []"),
        ("min_sm = 75", 'min_sm = "75"'), ("min_sm = 75", "min_ms = 75"),
        ("min_sm = 75", "dtype_min_sm = { f16 = 80 }"), ("min_sm = 75", "min_sm = 75\ndtype_min_sm = { f32 = 75 }"),
        ('source = "kernel.cu"', 'source = "../kernel.cu"'), ('source = "kernel.cu"', 'source = "/etc/passwd"'),
        ('source = "kernel.cu"', 'source = "other.cu"'), ("values = [32, 64, 128, 256]", "valeus = [32]"),
        ("values = [32, 64, 128, 256]", "values = []"), ("values = [32, 64, 128, 256]", "values = [32, 32]"),
        ("values = [32, 64, 128, 256]", "values = [32, true]"), ("values = [32, 64, 128, 256]", "values = [32.0]"),
        ("launch = true", "launhc = true"), ("block_m = {", "Block_M = {"), ("block_m = {", "m = {"),
        ("block_m = {", "min = {"), ("block_m = {", "sm = {"), ('"threads % 32 == 0"', '"thread % 32 == 0"'),
        ('"threads % 32 == 0"', '"threads % 32 == "'), ('"threads % 32 == 0"', "[1]"),
        ('"ceil_div(m, block_m)"', '"ceil_div(m, tiles_n)"'), ("tiles_m =", "block_m ="),
        ('entry = "tiled"', 'entry = "til ed"'), ('entry = "tiled"', 'entry = "absent"'),
        ('block = ["threads"]', "block = []"), ('block = ["threads"]', 'blcok = ["threads"]'),
        ('"a", "b", "c", "partial"', '"a", "b", "d", "partial"'), ('"i32 m"', '"int m"'), ('"i32 m"', '"i32 mm"'),
        ('["n", "tiles_n"]', '["n"]'), ('a = ["m", "k"]', 'a = ["m", "q"]'), ('a = ["m", "k"]', 'aa = ["m", "k"]'),
        ("depth = { k_tiles", "depth = { k_tile"), ('{ m = "block_m", n = "block_n", k = "4 * block_k" },', ""),
        ('k = "4 * block_k"', 'kk = "4 * block_k"'), ('k = "4 * block_k"', 'k = "tiles_k"'),
        ('name = "partial"', 'name = "c"'), ('dtype = "f32"', 'dtype = "f31"'), ("[tunables]", "[tunables"),
        ('block_k = { values = [8, 16, 32], meaning = "depth of a tile" }', "block_k = 3"),
        ("[[launch]]", "[[lunch]]"),
    ])  # fmt: skip


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"[" * 5000, b"a = " + b"[" * 100_000, b"x" * (2 << 20)])
def test_file_that_is_not_a_spec_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "kernel.toml").write_bytes(content)
    with pytest.raises(UsageError) as refusal:
        load_kernel(tmp_path / "kernel.toml")
    assert "\n" not in str(refusal.value)


def test_missing_file_or_folder_is_refused_in_one_line(tmp_path):
    for path in (tmp_path / "kernel.toml", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            load_kernel(path)


def test_kernel_hash_ignores_descriptions_and_comments_in_the_spec(write, tiled):
    assert load_kernel(write("rows of C per thread block", "height of the tile")).hash == tiled.hash
    assert load_kernel(write("[let]", "# lets\n[let]")).hash == tiled.hash
    assert load_kernel(write("values = [2, 3, 4]", "values = [2, 4, 3]")).hash != tiled.hash
    assert load_kernel(write('"stages - 1"', '"stages - 2"')).hash != tiled.hash
    path = write("stages", "stages")
    path.with_name("kernel.cu").write_text((SPEC.parent / "kernel.cu").read_text() + "// more\n")
    assert load_kernel(path).hash != tiled.hash


def test_missing_include_is_named(write, refuses):
    path = write("stages", "stages")
    path.with_name("kernel.cu").write_text('#include "absent.cuh"\n')
    refuses(lambda: load_kernel(path))


LISTED = {
    "name": "copy",
    "source": "copy.cu",
    "problem": {"tensors": {"x": {"shape": [4096], "role": "inout"}}},
    "tunables": {"width": {"values": [256, 64, 128]}, "vector": {"values": [1, 4]}},
    "configs": {"columns": ["vector", "width", "blocks"], "rows": [[1, 64, 7], [4, 128, 5], [1, 256, 9]]},
    "launch": [{"entry": "copy", "grid": ["blocks"], "block": ["width"], "arguments": ["x"]}],
}
SOURCE = "__global__ void copy(float* x) {} // WIDTH VECTOR"


def space_of(spec):
    kernel = kernel_from(copy.deepcopy(spec), "copy.toml", SOURCE)
    return kernel, Space(kernel, 80, limits(80), "f32", "any")


def test_listed_configs_form_the_space_in_order_of_tunable_values():
    _, space = space_of(LISTED)
    assert [space.config(row) for row in range(len(space))] == [
        {"width": 256, "vector": 1}, {"width": 64, "vector": 1}, {"width": 128, "vector": 4},
    ]  # fmt: skip


@given(st.sets(st.tuples(st.sampled_from([64, 128, 256]), st.sampled_from([1, 4])), min_size=1))
def test_every_listed_config_is_found_in_its_row(pairs):
    rows = [[vector, width, 3] for width, vector in pairs]
    _, space = space_of(LISTED | {"configs": {"columns": ["vector", "width", "blocks"], "rows": rows}})
    assert len(space) == len(pairs)
    found_rows = space.find([space.config(row) for row in range(len(space))])
    assert np.array_equal(found_rows, np.arange(len(space)))


def test_inconsistent_list_of_configs_is_refused_in_one_line(refuses):
    refuses(lambda configs: space_of(LISTED | {"configs": configs}), [
        {"columns": ["width", "blocks"], "rows": [[64, 1]]}, {"columns": ["width", "vector"], "rows": [[64]]},
        {"columns": ["width", "vector"], "rows": [[96, 1]]}, {"columns": ["width", "vector"], "rows": []},
        {"columns": ["width", "vector", "n"], "rows": [[64, 1, 2], [64, 1, 3]]},
        {"columns": ["width", "vector", "sm"], "rows": [[64, 1, 2]]},
    ])  # fmt: skip


@pytest.fixture(scope="module")
def config(tiled, ada):
    return Space(tiled, 89, ada, "f32", "nn").config(0)


def test_defines_contain_only_compiled_tunables(tiled, config):
    defines = tiled.defines(config, "f32", "nn")
    assert defines["BLOCK_M"] == str(config["block_m"])
    assert defines["DTYPE_F32"] == defines["LAYOUT_NN"] == "1"
    assert "SPLIT_K" not in defines
    assert "RASTER" not in defines


def test_variant_key_depends_exactly_on_compiled_tunables(tiled, config):
    key = tiled.variant_key(config, "f32", "nn")
    assert len(key) == 16
    for tunable in tiled.tunables:
        other = next(value for value in tunable.values if value != config[tunable.name])
        changed = tiled.variant_key(config | {tunable.name: other}, "f32", "nn")
        assert (changed == key) == tunable.launch
    assert tiled.variant_key(config, "f16", "nn") != key


@pytest.mark.parametrize(("change", "message"), [
    ({"blockm": 32}, "unknown tunable of tiled 'blockm'; did you mean block_m"),
    ({"block_m": 33}, "tiled: block_m is 33; expected 32, 64, 128, 256"),
    ({"block_m": "32"}, "tiled: block_m is '32'; expected"),
])  # fmt: skip
def test_config_of_another_kernel_is_refused(tiled, config, change, message):
    with pytest.raises(UsageError, match=message):
        tiled.config(config | change)
    with pytest.raises(UsageError, match="is missing stages"):
        tiled.config({name: value for name, value in config.items() if name != "stages"})


BLUR = beside(__file__, "blur.toml")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "blur.cu").write_text("__global__ void blur(const unsigned char*, float*, float) {}")
    (tmp_path / "kernel.toml").write_text(BLUR)
    return tmp_path


def test_problem_declared_in_a_spec_has_the_attributes_of_an_op(folder):
    kernel = load_kernel(folder / "kernel.toml")
    problem = kernel.definition.problem(width=100)
    assert problem.key == "blur[width=100,height=480]f32,any"
    assert problem.flops == 480_000
    assert {name: (t.shape, t.dtype, t.role) for name, t in problem.tensors.items()} == {
        "image": ((480, 100), "u8", "input"),
        "blurred": ((48_000,), "f32", "output"),
    }
    assert problem.bytes == 48_000 * 5
    assert kernel.sampled
    assert kernel.defines({"bx": 32}, "f32", "any")["block_x"] == "32"


def test_shape_expression_may_divide_and_subtract_dimensions(folder):
    shapes = BLUR.replace('["height", "width"]', '["height // 8", "width - 16"]').replace("width = 640", "width = {}")
    (folder / "kernel.toml").write_text(shapes)
    op = load_kernel(folder / "kernel.toml").definition
    assert op.problem(width=17).tensors["image"].shape == (60, 1)
    with pytest.raises(UsageError, match="tensor image: 'width - 16' is 0 at width=16, expected an integer of at"):
        _ = op.problem(width=16).tensors


def test_spec_with_invalid_default_sizes_accepts_other_sizes(folder):
    (folder / "kernel.toml").write_text(BLUR.replace('["height", "width"]', '["height - 480", "width"]'))
    op = load_kernel(folder / "kernel.toml").definition
    assert op.problem(height=500).tensors["image"].shape == (20, 640)
    with pytest.raises(UsageError, match=r"^blur: tensor image: 'height - 480' is 0 at height=480"):
        _ = op.problem().tensors


def test_invalid_problem_is_refused_in_one_line(folder, refuses):
    def refused(old: str, new: str) -> None:
        assert old in BLUR
        (folder / "kernel.toml").write_text(BLUR.replace(old, new))
        load_kernel(folder / "kernel.toml")

    refuses(refused, [
        ("[problem]", 'op = "matmul"\n[problem]'), ('"10 * width', '"10 * widht'), ("width = 640", "width = -1"),
        ("width = 640", "i = 640"), ('dtype = "u8"', 'dtype = "u7"'),
        ('role = "output"', 'role = "outptu"'), ("integers 0 256", "integers 0"),
        ("integers 0 256", "expression i * widht"), ("integers 0 256", "index blured"),
        ("integers 0 256", "index blurred widht"), ("integers 0 256", "missing.npy"),
        ('role = "output"', 'role = "output", reference = "right.npy"'),
        ('role = "output"', 'role = "output", reference = "wrong"'), ('dtype = "u8"', 'symbol = "image_in"'),
        ("image = {", "Image = {"), ("bx = {", "blockX = {"),
        ('dtype = "u8"', 'dtype = "u8", texture = { filter = "linaer" }'),
        ('dtype = "u8"', 'dtype = "u8", texture = { filter = "linear" }'),
        ('dtype = "u8"', 'dtype = "u8", texture = { channel = 4 }'), ('["image",', '["texture image",'),
        ('role = "output"', 'reference = "zeros"'),
        ("tensors]", "tensors]\ny = { shape = [1], role = 'output', reference = 'zeros' }"),
        ("flops =", "tolerance = 2\nflops ="), ('source = "blur.cu"', 'source = "blur.cu"\ndtypes = ["f32"]'),
        ('arguments = ["image"', 'arguments = ["imgae"'),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new"), [("integers 0 256", "image.npy"), ('role = "output"', 'role = "output", reference = "image.npy"')]
)
def test_changed_input_values_change_the_kernel_hash(folder, old, new):
    (folder / "kernel.toml").write_text(BLUR.replace(old, new))
    hashes = set()
    for content in (b"one", b"two", b"one"):
        (folder / "image.npy").write_bytes(content)
        hashes.add(load_kernel(folder / "kernel.toml").hash)
    assert len(hashes) == 2
