"""Test that packed and repeated arrays read back unchanged, and that damaged files are refused."""

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from kernrec.profile.tensor_values import MAPPED, repeated
from kernrec.util.array_file import pack, unpack

_DTYPES = st.sampled_from(["<f8", "<f4", ">f4", "<i8", "<i2", "|u1", "|b1"])
_ARRAYS = arrays_of.arrays(
    _DTYPES.map(np.dtype), arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
)


@given(st.dictionaries(st.text(), _ARRAYS, max_size=4), st.dictionaries(st.text(), st.integers() | st.text()))
def test_packed_arrays_read_back(arrays, facts):
    unpacked_facts, unpacked = unpack(pack(facts, arrays))
    assert unpacked_facts == facts
    assert list(unpacked) == list(arrays)
    for name, array in arrays.items():
        assert unpacked[name].shape == array.shape
        assert unpacked[name].dtype == array.dtype.newbyteorder("<")
        np.testing.assert_array_equal(unpacked[name], array)
        assert unpacked[name].ctypes.data % array.itemsize == 0 or not array.size


def test_any_damage_is_refused():
    data = pack({"a": [1, "two"]}, {"x": np.arange(10.0)})
    for position in range(len(data)):
        with pytest.raises(ValueError, match="damaged"):
            unpack(data[:position])
        with pytest.raises(ValueError, match="damaged"):
            unpack(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])


def test_object_arrays_are_refused():
    with pytest.raises(TypeError):
        pack({}, {"x": np.array([{}], dtype=object)})


PAGE = np.arange(mmap.PAGESIZE // 2, dtype=np.int16)


@pytest.mark.parametrize("count", [len(PAGE), 3 * len(PAGE), 2 * len(PAGE) + 5])
def test_array_repeats_its_values(count):
    np.testing.assert_array_equal(repeated(PAGE, count), np.resize(PAGE, count))
    np.testing.assert_array_equal(repeated(PAGE[:7], count), np.resize(PAGE[:7], count))


def test_write_changes_one_element():
    array = repeated(PAGE, 4 * len(PAGE))
    array[len(PAGE)] = 7
    assert (array[0], array[len(PAGE)], array[2 * len(PAGE)], PAGE[0]) == (0, 7, 0, 0)


@pytest.mark.skipif(not MAPPED, reason="only Linux maps pages more than once")
def test_1_gb_array_takes_1_mb():
    values = np.resize(PAGE, 1 << 19)
    before = resident_bytes()
    array = repeated(values, (1 << 29) + 3)
    assert array[-1] == 2
    assert resident_bytes() - before < 8 << 20


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE
