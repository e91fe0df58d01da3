"""Recorded rows of Triton's matrix product become problems and training data; the rows here are made up."""

from pathlib import Path

import duckdb
import numpy as np
import pytest
import triton_recordings
from triton_recordings import COLUMNS, RecordedRows, config_of, read_problems

GPU = "a100-sxm4-80gb"
FASTER, SLOWER = (128, 128, 64, 3, 8), (64, 64, 32, 2, 4)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a recording of three matrices: row-major, b transposed, and one with padded rows."""
    names = "m, n, k, dtype, tf32, a_stride_0, a_stride_1, b_stride_0, b_stride_1, implementation"
    head = f"{names}, {', '.join(COLUMNS)}, latency_s, failures"
    plain = "512, 256, 1024, 'float16', false, 1024, 1, 256, 1"
    weights = "512, 256, 1024, 'float32', true, 1024, 1, 1, 1024"
    padded = "512, 256, 1024, 'float16', false, 1040, 1, 256, 1"
    rows = [
        f"({plain}, 'triton', {', '.join(map(str, FASTER))}, 1e-5, 0)",
        f"({plain}, 'triton', {', '.join(map(str, SLOWER))}, 2e-5, 0)",
        f"({plain}, 'triton', 16, 16, 16, 1, 1, 3e-5, 0)",
        f"({plain}, 'triton', 128, 128, 64, 5, 8, NULL, 3)",
        f"({plain}, 'extern_mm', NULL, NULL, NULL, NULL, NULL, 9e-6, 0)",
        f"({weights}, 'triton', {', '.join(map(str, SLOWER))}, 4e-5, 0)",
        f"({padded}, 'triton', {', '.join(map(str, SLOWER))}, 4e-5, 0)",
    ]
    folder = tmp_path / "triton"
    folder.mkdir()
    path = folder / triton_recordings.FILES[GPU]
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT * FROM (VALUES {', '.join(rows)}) t({head})) TO '{path}' (FORMAT parquet)")
    return tmp_path


def test_strides_tell_the_layout_and_matrices_with_gaps_are_left_out(data: Path) -> None:
    keys = [recorded.problem.key for recorded in read_problems(data, GPU)]
    assert keys == ["matmul[m=512,n=256,k=1024]f16,nn", "matmul[m=512,n=256,k=1024]tf32,nt"]


def test_failures_and_the_vendor_librarys_rows_are_left_out(data: Path) -> None:
    recorded = read_problems(data, GPU)[0]
    assert recorded.times == {FASTER: 1e-5, SLOWER: 2e-5, (16, 16, 16, 1, 1): 3e-5}


@pytest.mark.parametrize("gpu", [GPU, "h100-sxm-96gb"])
def test_rows_with_profiles_become_training_data_whose_prior_is_that_of_their_config(data: Path, gpu: str) -> None:
    recorded = read_problems(data, GPU)[0]
    recorded.gpu = gpu
    group = RecordedRows().group(recorded)
    assert group is not None
    assert {config_of(group, row): time for row, time in enumerate(group.latency_s)} == {FASTER: 1e-5, SLOWER: 2e-5}
    ratio = group.inputs.latency_s / group.latency_s
    assert ((ratio > 0.1) & (ratio < 10)).all()
    assert np.isnan(group.energy_j).all()
    assert RecordedRows().group(recorded, fewest=3) is None
