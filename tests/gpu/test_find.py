"""Test names of GPUs and their occupancy."""

import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.gpu import LIMITERS, UnknownGPU, all_gpus, find_gpu, l1_bytes, limits, occupancy
from kernrec.gpu.find import fold_gpu as fold
from tests.helpers.paths import beside


@pytest.mark.parametrize(("typed", "name"), [
    ("4090", "rtx4090"), ("RTX-4090", "rtx4090"), ("rtx 4090", "rtx4090"), ("GeForce RTX 4090", "rtx4090"),
    ("nvidia geforce rtx 4090", "rtx4090"), ("NVIDIA_GeForce_RTX_4090", "rtx4090"), ("4080 super", "rtx4080-super"),
    ("RTX 5070 Ti", "rtx5070ti"), ("t4", "t4"), ("Tesla T4", "t4"), ("NVIDIA T4", "t4"), ("a100", "a100-sxm4-80gb"),
    ("A100-PCIE-40GB", "a100-pcie-40gb"), ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"), ("a4000", "rtx-a4000"),
    ("rtx a6000", "rtx-a6000"), ("4000 ada", "rtx-4000-ada"), ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
    ("Quadro RTX 6000", "quadro-rtx-6000"), ("h100", "h100-sxm"), ("NVIDIA H100 80GB HBM3", "h100-sxm"),
    ("H200", "h200-sxm"), ("NVIDIA GH200 480GB", "gh200-96gb"), ("rtx pro 6000", "rtx-pro-6000"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
    ("NVIDIA GeForce GTX 1660 Ti", "gtx1660ti"), ("gtx1660", "gtx1660"), ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
    ("v100", "v100-sxm2-16gb"), ("p100", "p100-pcie-16gb"), ("NVIDIA H20", "h20"), ("NVIDIA H800 PCIe", "h800-pcie"),
    ("NVIDIA B300 SXM6 AC", "b300"), ("NVIDIA GB10", "gb10"), ("DGX Spark", "gb10"),
    ("NVIDIA RTX PRO 5000 72GB Blackwell", "rtx-pro-5000-72gb"), ("GTX 1650 GDDR6", "gtx1650-gddr6"),
    ("rtx3060 laptop", "rtx3060-laptop"), ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx4090-laptop"),
    ("3080 ti mobile", "rtx3080ti-laptop"), ("NVIDIA A800-SXM4-80GB", "a800-sxm4-80gb"),
    ("NVIDIA A800 80GB PCIe", "a800-pcie-80gb"), ("NVIDIA H20-3e", "h20-3e"), ("NVIDIA GeForce RTX 4090 D", "rtx4090d"),
    ("NVIDIA GeForce RTX 5090 D", "rtx5090d"), ("NVIDIA RTX 5880 Ada Generation", "rtx-5880-ada"),
    ("NVIDIA RTX 2000 Ada Generation", "rtx-2000-ada"), ("RTX PRO 4500", "rtx-pro-4500"),
    ("rtx 3080 12gb", "rtx3080-12gb"), ("RTX 2060 SUPER", "rtx2060-super"),
    ("RTX 3060 Laptop 288 GB/s", "rtx3060-laptop-12gbps"),
])  # fmt: skip
def test_common_spellings_find_their_gpu(typed, name):
    assert find_gpu(typed).name == name


def test_every_name_title_and_alias_finds_only_its_gpu():
    owners: dict[str, set[str]] = {}
    for gpu in all_gpus():
        for name in (gpu.name, gpu.title, *gpu.aliases):
            assert find_gpu(name) is gpu
            owners.setdefault(fold(name), set()).add(gpu.name)
    assert {name: gpus for name, gpus in owners.items() if len(gpus) > 1} == {}


@pytest.mark.parametrize(
    "typed",
    ["rtx4900", "", "rtx", "mi300x", "gtx1080", "gtx 1660 laptop", "rtx 2080 laptop", "rtx3060 max-q", "rtx 4080 d",
     "quadro rtx 4000", "rtx 4000", "rtx a6000 laptop", "a100x", "rtx 3080 20gb", "p40", "gtx 2060 ti", "gtx 3090",
     "titan v", "rtx 5090 x"],
)  # fmt: skip
def test_unknown_name_is_refused_in_one_line(typed):
    with pytest.raises(UnknownGPU) as error:
        find_gpu(typed)
    assert isinstance(error.value, UsageError)
    assert repr(typed) in str(error.value)
    assert "kernrec list gpus" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("MI300X", "AMD is not supported"), ("AMD Instinct MI250", "AMD is not supported"),
        ("Radeon RX 7900 XTX", "AMD is not supported"), ("Intel Arc A770", "Intel is not supported"),
        ("Gaudi 3", "Intel is not supported"), ("Apple M3 Max", "Apple is not supported"),
        ("m4 ultra", "Apple is not supported"), ("Jetson AGX Orin", "integrated"), ("NVIDIA Thor", "integrated"),
        ("Tesla P40", "older than 7.5"), ("GTX 1080 Ti", "older than 7.5"), ("Rubin", "does not know"),
        ("NVIDIA L20Y", "no data sheet"),
    ],
)  # fmt: skip
def test_unsupported_gpu_is_refused_with_the_reason(typed, why):
    with pytest.raises(UnknownGPU, match=why) as error:
        find_gpu(typed)
    assert "\n" not in str(error.value)


def test_gpu_can_be_pickled_and_hashed():
    gpu = find_gpu("h100")
    copy = pickle.loads(pickle.dumps(gpu))
    assert copy == gpu
    assert hash(copy) == hash(gpu)


def test_lookup_reads_only_the_catalog_file_of_the_gpu_generation():
    code = (
        "import kernrec.gpu.find as f; read = []; real = f._file\n"
        "f._file = lambda stem: (read.append(stem), real(stem))[1]\n"
        "f.find_gpu('rtx4090'); print(sorted({*read} - {'names', 'limits'}))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert shown.stdout.strip() == "['ada']"


ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)

sms = st.sampled_from(ARCHITECTURES)
threads = st.integers(-40, 1100)
registers = st.integers(-2, 260)
smem = st.one_of(st.integers(-200, 240_000), st.sampled_from([0, 65536, 65537, 101376, 101377, 166912, 232448, 232449]))


@pytest.mark.parametrize(("sm", "block", "blocks", "limiter"), [
    (86, (256, 128, 0), 2, "registers"),  # 4,096 registers per warp allow 16 warps per SM
    (86, (256, 32, 0), 6, "warps"),
    (86, (32, 32, 0), 16, "blocks"),
    (89, (32, 32, 0), 24, "blocks"),
    (120, (32, 32, 0), 24, "blocks"),
    (80, (32, 32, 0), 32, "blocks"),
    (75, (256, 64, 0), 4, "warps"),  # registers and warps both allow 4 blocks, and warps are reported
    (75, (128, 32, 32768), 2, "shared memory"),  # before compute capability 8.0, no shared memory is reserved
    (86, (128, 32, 49152), 2, "shared memory"),  # two blocks of 48 KB, each plus 1 KB reserved, fill 98 of 100 KB
    (86, (128, 32, 50176), 2, "shared memory"),  # two blocks of 49 KB, each plus 1 KB reserved, fill exactly 100 KB
    (86, (128, 32, 50177), 1, "shared memory"),
    (80, (1024, 33, 0), 1, "registers"),  # 40 registers per thread are 1,280 per warp, so 48 warps fit
    (90, (128, 168, 0), 3, "registers"),
    (90, (384, 168, 0), 1, "registers"),
    (90, (256, 64, 232448), 1, "shared memory"),
    (100, (512, 32, 0), 4, "warps"),
])  # fmt: skip
def test_occupancy_matches_known_block_counts(sm, block, blocks, limiter):
    result = occupancy(limits(sm), *block)
    assert (result.blocks, LIMITERS[result.limiter]) == (blocks, limiter)
    assert result.warps == blocks * -(-block[0] // 32)
    assert result.fraction == result.warps / limits(sm).max_warps_per_sm


@pytest.mark.parametrize(
    "block", [(0, 32, 0), (-1, 32, 0), (1025, 32, 0), (128, 256, 0), (1024, 65, 0), (992, 72, 0), (32, 32, 101377)]
)
def test_impossible_block_size_has_zero_occupancy(block):
    result = occupancy(limits(86), *block)
    assert (result.blocks, result.warps, result.fraction, result.limiter) == (0, 0, 0.0, -1)


@given(sm=sms, rows=st.lists(st.tuples(threads, registers, smem), min_size=1, max_size=50))
def test_arrays_and_single_values_give_equal_results(sm, rows):
    many = occupancy(limits(sm), *np.array(rows).T)
    for i, row in enumerate(rows):
        single = occupancy(limits(sm), *row)
        assert (single.blocks, single.warps, single.fraction, single.limiter) == (
            many.blocks[i], many.warps[i], many.fraction[i], many.limiter[i],
        )  # fmt: skip


@given(
    sm=sms,
    threads=st.integers(1, 1024),
    registers=st.integers(0, 255),
    smem=st.integers(0, 232448),
    more=st.tuples(st.integers(0, 64), st.integers(0, 32), st.integers(0, 8192)),
)
def test_larger_resource_use_never_fits_more_blocks(sm, threads, registers, smem, more):
    before = occupancy(limits(sm), threads, registers, smem)
    after = occupancy(limits(sm), threads + more[0], registers + more[1], smem + more[2])
    assert after.blocks <= before.blocks
    assert 0 <= before.fraction <= 1


HEADER = next(Path(sysconfig.get_path("purelib")).glob("nvidia/**/cuda_occupancy.h"), None)

ORACLE = beside(__file__, "oracle.cu")


@pytest.mark.skipif(HEADER is None, reason="no CUDA runtime wheel: pip install '.[cuda13]'")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_block_counts_match_the_cuda_toolkit(tmp_path):
    assert HEADER is not None
    (tmp_path / "oracle.c").write_text(ORACLE)
    program = tmp_path / "oracle"
    subprocess.run(["cc", "-w", f"-I{HEADER.parent}", "-o", program, tmp_path / "oracle.c"], check=True)

    draw = np.random.default_rng(2)
    count = 5_000
    for sm in ARCHITECTURES:
        of_sm = limits(sm)
        block = np.stack(
            [
                draw.integers(1, 1025, count),
                draw.integers(1, 256, count),
                draw.integers(0, of_sm.smem_per_block + 1, count) // draw.integers(1, 64, count),
            ]
        )
        device = (
            f"{sm} {of_sm.max_warps_per_sm} {of_sm.smem_per_sm} {of_sm.smem_per_block} {of_sm.smem_reserved_per_block}"
        )
        rows = "\n".join(f"{device} {t} {r} {s}" for t, r, s in block.T)
        answer = subprocess.run([program], input=rows, capture_output=True, text=True, check=True).stdout
        np.testing.assert_array_equal(
            occupancy(of_sm, *block).blocks, np.array(answer.split(), int), err_msg=f"sm_{sm}"
        )


def test_l1_size_is_the_cache_not_used_by_shared_memory():
    ampere, turing = limits(86), limits(75)
    blocks = np.array([1, 1, 6, 16])
    assert l1_bytes(ampere, blocks, np.array([0, 48 << 10, 8 << 10, 6 << 10])).tolist() == [
        size << 10 for size in (128, 64, 64, 28)
    ]
    assert l1_bytes(turing, np.array([1]), np.array([0])).tolist() == [64 << 10]
