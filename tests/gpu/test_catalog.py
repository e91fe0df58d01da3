"""Test that every GPU in the catalog has consistent figures and states their source."""

import dataclasses
import tomllib
from pathlib import Path

import pytest

import kernrec.gpu
from kernrec.gpu import all_gpus, find_gpu

every_gpu = pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.name)

CATALOG = Path(kernrec.gpu.__file__).with_name("catalog")


@every_gpu
def test_f32_peak_follows_from_sms_lanes_and_clock(gpu):
    assert gpu.peak_flops("f32") == pytest.approx(gpu.datasheet_f32_flops, rel=0.03)


@every_gpu
def test_tensor_peaks_follow_from_sms_rates_and_clock(gpu):
    assert ("f16" in gpu.datasheet_tensor_flops) == (gpu.generation != "pascal")
    for dtype, peak in gpu.datasheet_tensor_flops.items():
        # The data sheets state the f64 tensor peak at the boost clock, like the peaks without tensor cores.
        clock = gpu.boost_clock_hz / gpu.tensor_clock_hz if dtype == "f64" else 1.0
        assert gpu.peak_flops(dtype, tensor=True) * clock == pytest.approx(peak, rel=0.03), dtype


@every_gpu
def test_bandwidth_follows_from_bus_and_memory_rate(gpu):
    assert gpu.memory_bus_bits / 8 * gpu.memory_rate_hz == pytest.approx(gpu.memory_bandwidth, rel=0.015)


@every_gpu
def test_clocks_and_power_limits_are_ordered(gpu):
    assert 0.5e9 < gpu.base_clock_hz <= gpu.boost_clock_hz < 3e9
    assert gpu.base_clock_hz <= gpu.tensor_clock_hz <= gpu.boost_clock_hz
    assert 30 <= gpu.power_min_w < gpu.tdp_w <= gpu.power_max_w <= 1.4 * gpu.tdp_w
    assert gpu.idle_w is None or 0 < gpu.idle_w < gpu.power_min_w


@every_gpu
def test_memory_sizes_are_plausible(gpu):
    assert 10 <= gpu.sms <= 192
    assert 4 <= gpu.memory_bytes / 2**30 <= 288
    assert 1 <= gpu.l2_bytes / 2**20 <= 128
    assert gpu.arch == f"sm_{gpu.sm}"
    assert gpu.limits.sm == gpu.sm


@every_gpu
def test_tensor_cores_are_faster_than_plain_pipes_and_slow_down_with_width(gpu):
    tensor = gpu.tensor_fma_per_clk_sm
    if gpu.generation == "pascal":
        assert tensor == {}
        return
    # GTX 16 GPUs have FP16 lanes instead of tensor cores.
    assert (
        tensor["f16"] == gpu.fma_per_clk_sm["f16"] if "GTX" in gpu.title else tensor["f16"] > gpu.fma_per_clk_sm["f16"]
    )
    assert tensor.get("bf16", tensor["f16"]) == tensor["f16"]
    assert tensor.get("tf32", tensor["f16"] // 2) == tensor["f16"] // 2
    assert tensor.get("fp8", tensor["f16"] * 2) == tensor["f16"] * 2
    assert ("bf16" in tensor) == ("bf16" in gpu.fma_per_clk_sm) == (gpu.sm >= 80)
    assert ("fp8" in tensor) == (gpu.sm >= 89)
    assert ("fp4" in tensor) == (gpu.sm >= 100)


@every_gpu
def test_every_figure_has_a_source(gpu):
    not_figures = {"name", "title", "aliases", "generation", "sources"}
    figures = {f.name for f in dataclasses.fields(gpu)} - not_figures
    if gpu.idle_w is None:
        figures.remove("idle_w")
    assert gpu.sources.keys() == figures
    assert all(len(source) > 15 for source in gpu.sources.values())


@pytest.mark.parametrize("sm", [60, 61, 70, 75, 80, 86, 89, 90, 100, 103, 120, 121])
def test_sm_limits_are_consistent(sm):
    limits = kernrec.gpu.limits(sm)
    # On Pascal, a block cannot opt in to more than 48 KiB of shared memory.
    assert limits.sm < 70 or limits.smem_per_block + limits.smem_reserved_per_block == limits.smem_per_sm
    assert limits.smem_per_block % limits.smem_allocation_unit == 0
    assert limits.max_warps_per_sm * 32 >= limits.max_threads_per_block
    assert limits.max_warps_per_sm % limits.schedulers == 0


def test_names_and_generation_files_list_the_same_gpus():
    def read(stem: str) -> dict[str, dict[str, object]]:
        return tomllib.loads((CATALOG / f"{stem}.toml").read_text())

    names = read("names")
    files = {path.stem for path in CATALOG.glob("*.toml")} - {"names", "limits"}
    assert names.keys() == files
    for generation, gpus in names.items():
        file = read(generation)
        assert list(gpus) == list(file["gpu"])
        entries = [entry for entry in file["gpu"].values() if isinstance(entry, dict)]
        used = {entry["source"] for entry in entries}.union(*(entry["sources"].values() for entry in entries))
        used |= {rates["source"] for rates in file["tensor"].values() if isinstance(rates, dict)}
        assert used == file["sources"].keys(), "a source that is not listed, or one that nothing uses"


@pytest.mark.parametrize("name", ["b300", "gb300", "gb10"])
def test_architecture_variant_has_the_limits_of_its_base_architecture(name):
    gpu = find_gpu(name)
    same = kernrec.gpu.limits(kernrec.gpu.code_sm(gpu.sm))
    assert gpu.sm not in (100, 120)
    assert dataclasses.replace(gpu.limits, sm=same.sm) == same
