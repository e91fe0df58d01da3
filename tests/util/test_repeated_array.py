"""Test an array of repeated values: it reads and writes as a full array but takes little memory."""

import mmap

import numpy as np
import pytest

from kernrec.profile.tensor_values import MAPPED, repeated

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
