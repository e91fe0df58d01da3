"""Test that every GPU in the catalog and in a file has consistent figures, and that kernrec checks them."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernrec
import kernrec.gpu
from kernrec.cli.app import run
from kernrec.errors import UsageError
from kernrec.gpu import UnknownGPU, all_gpus, find_gpu
from kernrec.gpu.gpu_file import gpu_name, gpu_of, gpu_text, read_gpu_file
from tests.helpers.depth import few_examples

MEMORY = {"gib": 24, "bus_bits": 384, "pin_gbps": 21, "bandwidth_gbs": 1008}


def figures(name: str = "rtx4090") -> dict[str, Any]:
    return tomllib.loads(gpu_text(find_gpu(name), "my-card"))


every_gpu = pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.name)


@every_gpu
def test_every_printed_catalog_entry_reads_back_unchanged(gpu):
    shown = gpu_of(tomllib.loads(gpu_text(gpu, "my-card")), "a file")
    assert dataclasses.replace(shown, name=gpu.name, aliases=gpu.aliases, sources=gpu.sources) == gpu
    assert set(shown.sources) - {"idle_w"} == set(gpu.sources) - {"idle_w"}


def test_gpu_file_with_an_impossible_figure_is_refused_in_one_line(refuses):
    refuses(lambda change: gpu_of(figures() | change, "a file"), [
        {"sms": 129.5}, {"sms": 2000}, {"sms": 64}, {"sm": 88}, {"f32_tflops": float("nan")}, {"f32_tflops": 82.6e12},
        {"l2_mib": -1}, {"name": "rtx4090"}, {"name": "a b; c"}, {"title": "x\x1b[2J"}, {"memroy": {}},
        {"clock_mhz": {"base": 2520, "boost": 2235}}, {"clock_mhz": {"base": 2235}}, {"clock_mhz": 2520},
        {"power_w": {"tdp": 450, "min": 500, "max": 600}}, {"memory": MEMORY | {"bandwidth_gbs": 504}},
        {"memory": MEMORY | {"gib": True}},
        {"memory": MEMORY | {"usable_gib": 25}}, {"tensor_tflops": {"f16": 330}}, {"tensor_tflops": {"fp4": 330}},
        {"sms": 10**4000},
    ])  # fmt: skip


def test_hostile_file_is_refused_in_one_line(write, refuses):
    refuses(lambda content: read_gpu_file(write(content, "card.toml")), [
        b"\xff\xfe", b"name = ", b"a = " + b"[" * 20_000, b"#" * 70_000, b"sms = 0x" + b"f" * 60_000,
        b"sms = " + b"9" * 6_000, b"",
    ])  # fmt: skip


def test_missing_file_or_folder_is_reported(tmp_path):
    for path in (tmp_path, tmp_path / "none.toml"):
        with pytest.raises(UsageError, match=r"cannot be read: (is a directory|there is no such file)"):
            read_gpu_file(path)


NUMBERS = st.one_of(
    st.floats(), st.integers(), st.integers(-(10**30), 10**30), st.booleans(), st.text(max_size=5), st.none()
)
KEYS = [(name, None) for name in ("sm", "sms", "l2_mib", "f32_tflops", "name", "title", "chip")] + [
    (table, key)
    for table in ("clock_mhz", "memory", "power_w", "tensor_fma_per_clk_sm", "tensor_tflops")
    for key in figures()[table]
]


@few_examples(40)
@given(st.lists(st.tuples(st.sampled_from(KEYS), NUMBERS), min_size=1, max_size=3))
def test_gpu_file_with_any_numbers_is_consistent_or_refused_in_one_line(changes):
    data = figures()
    for (name, key), value in changes:
        if key is None:
            data[name] = value
        else:
            data[name][key] = value
    try:
        shown = gpu_of(data, "a file")
    except UsageError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either is right
    else:
        assert shown.peak_flops("f32") == pytest.approx(shown.datasheet_f32_flops, rel=0.051)
        assert shown.memory_bus_bits / 8 * shown.memory_rate_hz == pytest.approx(shown.memory_bandwidth, rel=0.053)
        assert shown.power_min_w <= shown.tdp_w <= shown.power_max_w
        assert shown.base_clock_hz <= shown.tensor_clock_hz <= shown.boost_clock_hz


def test_gpu_file_with_catalog_figures_gets_the_catalog_answer(write):
    path = write(gpu_text(find_gpu("l40s"), "as-the-l40s"), "card.toml")
    own, catalogs = (kernrec.recommend("softmax", gpu, rows=512, columns=512) for gpu in (path, "l40s"))
    assert own.gpu.name == "as-the-l40s"
    assert own.best.config == catalogs.best.config
    assert own.best.latency_s.value == pytest.approx(catalogs.best.latency_s.value)


def test_catalog_gpu_with_changed_figures_gets_another_name():
    changed = dataclasses.replace(find_gpu("l4"), tdp_w=60.0)
    assert gpu_name(changed).startswith("l4@")
    again = dataclasses.replace(changed, l2_bytes=2 * changed.l2_bytes)
    assert find_gpu(gpu_name(again)).l2_bytes == again.l2_bytes
    assert gpu_name(find_gpu("l4")) == "l4"
    assert find_gpu("l4").tdp_w == 72


def test_every_prediction_command_accepts_a_gpu_file(write, capsys):
    path, comma = (write(gpu_text(find_gpu("l4"), "cli-card"), name) for name in ("card.toml", "my,card.toml"))
    for command in (
        ["recommend", "--op", "softmax", "--gpu", str(path), "--shape", "rows=64,columns=64", "--json"],
        ["recommend", "--op", "softmax", "--gpu", f"{path},l4", "--shape", "rows=64,columns=64"],
        ["explain", "--op", "softmax", "--gpu", str(comma), "--shape", "rows=64,columns=64"],
    ):
        assert run(command) == 0, command
        printed = capsys.readouterr().out
        assert "cli-card" in printed or "NVIDIA L4" in printed


def test_measurement_commands_refuse_gpu_files():
    with pytest.raises(UnknownGPU, match=r"'card.toml' is a GPU file"):
        find_gpu("card.toml")


CATALOG = Path(kernrec.gpu.__file__).with_name("catalog")


@every_gpu
def test_peaks_and_bandwidth_follow_from_counts_rates_and_clocks(gpu):
    assert gpu.peak_flops("f32") == pytest.approx(gpu.datasheet_f32_flops, rel=0.03)
    assert gpu.memory_bus_bits / 8 * gpu.memory_rate_hz == pytest.approx(gpu.memory_bandwidth, rel=0.015)
    assert ("f16" in gpu.datasheet_tensor_flops) == (gpu.generation != "pascal")
    for dtype, peak in gpu.datasheet_tensor_flops.items():
        # The data sheets state the f64 tensor peak at the boost clock, like the peaks without tensor cores.
        clock = gpu.boost_clock_hz / gpu.tensor_clock_hz if dtype == "f64" else 1.0
        assert gpu.peak_flops(dtype, tensor=True) * clock == pytest.approx(peak, rel=0.03), dtype


@every_gpu
def test_clocks_power_limits_and_memory_sizes_are_plausible(gpu):
    assert 0.5e9 < gpu.base_clock_hz <= gpu.boost_clock_hz < 3e9
    assert gpu.base_clock_hz <= gpu.tensor_clock_hz <= gpu.boost_clock_hz
    assert 30 <= gpu.power_min_w < gpu.tdp_w <= gpu.power_max_w <= 1.4 * gpu.tdp_w
    assert gpu.idle_w is None or 0 < gpu.idle_w < gpu.power_min_w
    assert 10 <= gpu.sms <= 192
    assert 4 <= gpu.memory_bytes / 2**30 <= 288
    assert gpu.usable_bytes in (gpu.memory_bytes, gpu.memory_bytes * 15 // 16)
    assert 1 <= gpu.l2_bytes / 2**20 <= 128
    assert gpu.arch == f"sm_{gpu.sm}"
    assert gpu.limits.sm == gpu.sm


@every_gpu
def test_tensor_cores_are_faster_than_plain_pipes_and_slower_for_wider_types(gpu):
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
def test_every_figure_of_the_gpu_catalog_has_a_source(gpu):
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
