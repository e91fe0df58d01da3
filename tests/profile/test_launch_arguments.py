"""Test that invalid descriptions of a launch's arguments and damaged files give one-line errors."""

import pytest

from kernrec.errors import UsageError
from kernrec.profile.launch_arguments import read_arguments
from kernrec.profile.tensor_values import load_npy
from kernrec.ptx import TensorMap


@pytest.mark.parametrize(
    "text", ["x=f32[{0}]", "x=texture:u8[{0}x1]", "x=texture(axes={0}):u8[4]", "x=texture(axes=²):u8[4]", "i32:{0}"]
)
def test_numbers_with_thousands_of_digits_are_refused(text):
    with pytest.raises(UsageError):
        read_arguments([text.format("5" * 5000)])


def test_endless_description_is_refused(refuses):
    refuses(lambda: read_arguments(["x" * 70_000]))


@pytest.mark.parametrize("header", ["{'descr': '<f4', 'shape': (", "\0", "{'descr': " + "[" * 5000])
def test_damaged_numpy_header_is_refused(tmp_path, header):
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    with pytest.raises(UsageError, match="is not a NumPy file of plain values"):
        load_npy(path)


def test_tensor_map_lists_its_extents_fastest_first():
    arguments = read_arguments(["a=map(box=16x64,swizzle=128,steps=2x1,nan):f16[40x104]", "b=map(box=4):i32[8]"])
    a, b = arguments.order
    assert a == TensorMap("a", "f16", (104, 40), (208,), (64, 16), 128, (1, 2), fill_nan=True)
    assert b == TensorMap("b", "s32", (8,), (), (4,))
    assert arguments.buffers["a"].size == 40 * 104


def test_invalid_tensor_map_description_is_refused(refuses):
    refuses(lambda text: read_arguments([text]), [
        "a=map(swizzle=128):f16[40x104]", "a=map(box=16):f16[40x104]", "a=map(box=16x64,swizle=128):f16[40x104]",
        "a=map(box=16x64):f16",
    ])  # fmt: skip
