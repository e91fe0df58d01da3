"""Test that static profiles are written and read back as rows and as arrays."""

import numpy as np
import pytest
from profile_files import write_profiles

from kernrec.errors import UsageError
from kernrec.store import (
    ProfileTable,
    read_profiles,
)

KERNEL, HASH = "matmul_simt", "0123456789abcdef"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "it's [1] *?" / "matmul_simt.profile.parquet"


@pytest.fixture
def rows(profile):
    noise = np.random.default_rng(1)
    return [
        profile(variant_key=f"c{code:02}", sm=sm, registers=32 + code, counts=noise.integers(0, 999, (2, 2)) / 64)
        for sm in (75, 89)
        for code in range(20)
    ]


def same(first: ProfileTable, second: ProfileTable) -> bool:
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in vars(first))


def test_written_profiles_read_back(path, rows):
    write_profiles(path, reversed(rows))
    table = read_profiles(path, KERNEL, HASH, 89)[0]
    expected = rows[20:]
    assert table.variant_keys == tuple(row.variant_key for row in expected)
    assert table.entry == "matmul_simt"
    assert (table.metrics, table.terms) == (("issue.fma32", "issue.ld_shared"), ("block", "k_tiles"))
    np.testing.assert_array_equal(table.registers, [row.registers for row in expected])
    np.testing.assert_array_equal(table.static_smem_bytes, [4096] * 20)
    np.testing.assert_array_equal(table.counts, [row.counts for row in expected])
    assert table.counts.dtype == np.float64
    assert table.registers.dtype == np.int64


def test_file_is_independent_of_row_order(path, rows):
    write_profiles(path, rows)
    first = path.read_bytes()
    write_profiles(path, reversed(rows))
    assert path.read_bytes() == first
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_each_launch_has_a_table_and_missing_metrics_are_zero(path, profile):
    write_profiles(
        path,
        [
            profile(variant_key="a"),
            profile(variant_key="b", metrics=("issue.bar",), counts=np.array([[7.0, 8.0]])),
            profile(variant_key="b", launch=1, entry="reduce", terms=("block",), counts=np.array([[5.0], [6.0]])),
        ],
    )
    tables = read_profiles(path, KERNEL, HASH, 89)
    assert list(tables) == [0, 1]
    assert tables[0].metrics == ("issue.fma32", "issue.ld_shared", "issue.bar")
    np.testing.assert_array_equal(tables[0].counts, [[[1, 2], [3, 4.5], [0, 0]], [[0, 0], [0, 0], [7, 8]]])
    assert (tables[1].entry, tables[1].variant_keys, tables[1].terms) == ("reduce", ("b",), ("block",))
    np.testing.assert_array_equal(tables[1].counts, [[[5], [6]]])


def test_other_kernel_source_or_architecture_has_no_profile(path, rows):
    write_profiles(path, rows)
    assert read_profiles(path, KERNEL, HASH, 90) == {}
    assert read_profiles(path, KERNEL, "f" * 16, 89) == {}
    assert read_profiles(path, "other", HASH, 89) == {}


def test_profile_of_the_newer_compiler_is_used(database, profile):
    database.add_profiles(
        [
            profile(compiler="nvrtc 13.10", registers=10),
            profile(compiler="nvrtc 13.9", registers=9),
            profile(compiler="nvrtc 12.20", registers=8),
        ]
    )
    assert database.profiles(KERNEL, HASH, 89)[0].registers.tolist() == [10]


def test_file_that_is_not_parquet_is_refused_in_one_line(path):
    path.parent.mkdir()
    path.write_text("hello")
    with pytest.raises(UsageError) as caught:
        read_profiles(path, KERNEL, HASH, 89)
    assert str(caught.value).startswith(f"{path}")
    assert "\n" not in str(caught.value)
