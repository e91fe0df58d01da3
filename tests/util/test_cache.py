"""Test caches, optional libraries, and files of arrays."""

import mmap
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from kernrec.errors import KernrecError
from kernrec.kernel import load_kernel
from kernrec.profile.tensor_values import MAPPED, repeated
from kernrec.store import read_profiles, shipped_profiles
from kernrec.util.array_file import pack, unpack
from kernrec.util.cache import cached
from kernrec.util.optional import import_optional, require_optional
from tests.helpers.paths import ROOT


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def made_count(name: str, made_of: bytes) -> list[int]:
    """Request an entry twice. Return how often it was made and its value."""
    made = []

    def make():
        made.append(made_of)
        return {"of": made_of.decode()}, {"numbers": np.arange(3)}

    for _ in range(2):
        facts, arrays = cached(name, made_of, make)
        assert facts == {"of": made_of.decode()}
        np.testing.assert_array_equal(arrays["numbers"], [0, 1, 2])
    return len(made)


def test_cached_value_is_rebuilt_only_if_its_inputs_change(cache):
    assert made_count("thing", b"one") == 1
    assert made_count("thing", b"one") == 0
    assert made_count("thing", b"two") == 1
    assert [file.name for file in (cache / "derived").iterdir()] == ["thing"]


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: b"", lambda d: d[:60] + b"\x00" + d[61:]])
def test_damaged_file_is_rebuilt(cache, damage):
    made_count("thing", b"one")
    file = cache / "derived" / "thing"
    file.write_bytes(damage(file.read_bytes()))
    assert made_count("thing", b"one") == 1
    assert made_count("thing", b"one") == 0


def test_unwritable_cache_is_no_error(cache):
    cache.mkdir()
    (cache / "derived").write_text("a file where a folder should be")
    assert made_count("thing", b"one") == 2


def test_cached_profiles_equal_the_shipped_file(cache):
    root = ROOT
    kernel = load_kernel(root / "kernrec/kernel/library/matmul_skinny/kernel.toml")
    direct = read_profiles(root / "db/prebuilt/matmul_skinny.profile.parquet", kernel.name, kernel.hash, 89)
    for _ in range(2):  # first made, then read
        shipped = shipped_profiles(kernel.name, kernel.hash, 89)
        assert list(shipped) == list(direct)
        for launch, table in direct.items():
            for name, value in vars(table).items():
                other = getattr(shipped[launch], name)
                assert type(other) is type(value), name
                np.testing.assert_array_equal(other, value)
    assert shipped_profiles(kernel.name, "0" * 16, 89) == {}


def test_installed_library_is_returned():
    assert import_optional("json.decoder", "reading", "train") is sys.modules["json.decoder"]


def test_missing_library_error_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(KernrecError) as error:
        import_optional("xgboost", "training a model", "train")
    assert str(error.value) == "training a model needs xgboost: install it with `pip install '.[train]'`"
    with pytest.raises(KernrecError) as required:
        require_optional(("json", "xgboost"), "training a model", "train")
    assert str(required.value) == str(error.value)


def test_checking_for_a_library_does_not_import_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    require_optional(("this",), "reading", "train")
    assert "this" not in sys.modules


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
def test_repeated_array_cycles_through_the_values(count):
    np.testing.assert_array_equal(repeated(PAGE, count), np.resize(PAGE, count))
    np.testing.assert_array_equal(repeated(PAGE[:7], count), np.resize(PAGE[:7], count))


def test_writing_to_a_repeated_array_changes_one_element():
    array = repeated(PAGE, 4 * len(PAGE))
    array[len(PAGE)] = 7
    assert (array[0], array[len(PAGE)], array[2 * len(PAGE)], PAGE[0]) == (0, 7, 0, 0)


@pytest.mark.skipif(not MAPPED, reason="only Linux maps pages more than once")
def test_repeated_1_gb_array_takes_less_than_8_mb():
    values = np.resize(PAGE, 1 << 19)
    before = resident_bytes()
    array = repeated(values, (1 << 29) + 3)
    assert array[-1] == 2
    assert resident_bytes() - before < 8 << 20


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE
