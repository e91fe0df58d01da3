"""Descriptions of a launch's arguments that are none, and files that are damaged: one line each."""

from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.profile.emulate_file import read_arguments
from kernrec.profile.tensor_values import load_npy


@pytest.mark.parametrize(
    "text", ["x=f32[{0}]", "x=texture:u8[{0}x1]", "x=texture(axes={0}):u8[4]", "x=texture(axes=²):u8[4]", "i32:{0}"]
)
def test_numbers_of_thousands_of_digits_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_arguments([text.format("5" * 5000)])


@pytest.mark.parametrize("header", ["{'descr': '<f4', 'shape': (", "\0", "{'descr': " + "[" * 5000])
def test_a_damaged_header_of_a_numpy_file_is_refused(tmp_path: Path, header: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    with pytest.raises(UsageError, match="is not a NumPy file of plain values"):
        load_npy(path)
