"""Test that `find_gpu` accepts every common name of a GPU, and no other name."""

import os
import pickle
import subprocess
import sys

import pytest

from kernrec.errors import UsageError
from kernrec.gpu import UnknownGPU, all_gpus, find_gpu
from kernrec.gpu.find import fold_gpu as fold


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


def test_lookup_reads_only_the_generation_of_the_gpu():
    code = (
        "import kernrec.gpu.find as f; read = []; real = f._read\n"
        "f._generation_file = lambda stem: (read.append(stem), real(stem))[1]\n"
        "f.find_gpu('rtx4090'); print(read)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert shown.stdout.strip() == "['ada']"
