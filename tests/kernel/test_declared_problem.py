"""Test problems that a kernel's spec defines without an op."""

import pytest

from kernrec.errors import UsageError
from kernrec.kernel import load_kernel

SPEC = """
name = "blur"
source = "blur.cu"
[problem]
dims = { width = 640, height = { default = 480, meaning = "rows" } }
flops = "10 * width * height"
[problem.tensors]
image = { shape = ["height", "width"], dtype = "u8", values = "integers 0 256" }
blurred = { shape = ["height * width"], role = "output" }
[tunables]
bx = { values = [16, 32], define = "block_x" }
[[launch]]
entry = "blur"
grid = ["ceil_div(width, bx)", "height"]
block = ["bx"]
arguments = ["image", "blurred", "f32 0.25"]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "blur.cu").write_text("__global__ void blur(const unsigned char*, float*, float) {}")
    (tmp_path / "kernel.toml").write_text(SPEC)
    return tmp_path


def test_declared_problem_has_every_attribute_of_an_op(folder):
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
    shapes = SPEC.replace('["height", "width"]', '["height // 8", "width - 16"]').replace("width = 640", "width = {}")
    (folder / "kernel.toml").write_text(shapes)
    op = load_kernel(folder / "kernel.toml").definition
    assert op.problem(width=17).tensors["image"].shape == (60, 1)
    with pytest.raises(UsageError, match="tensor image: 'width - 16' is 0 at width=16, expected an integer of at"):
        _ = op.problem(width=16).tensors


def test_shape_expression_may_be_impossible_for_the_default_size_only(folder):
    (folder / "kernel.toml").write_text(SPEC.replace('["height", "width"]', '["height - 480", "width"]'))
    op = load_kernel(folder / "kernel.toml").definition
    assert op.problem(height=500).tensors["image"].shape == (20, 640)
    with pytest.raises(UsageError, match=r"^blur: tensor image: 'height - 480' is 0 at height=480"):
        _ = op.problem().tensors


def test_invalid_problem_is_refused_in_one_line(folder, refuses):
    def refused(old: str, new: str) -> None:
        assert old in SPEC
        (folder / "kernel.toml").write_text(SPEC.replace(old, new))
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
def test_other_input_values_change_the_kernel_hash(folder, old, new):
    (folder / "kernel.toml").write_text(SPEC.replace(old, new))
    hashes = set()
    for content in (b"one", b"two", b"one"):
        (folder / "image.npy").write_bytes(content)
        hashes.add(load_kernel(folder / "kernel.toml").hash)
    assert len(hashes) == 2
