"""Test that packed arrays read back unchanged, and that damaged files are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

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
