"""Test that a file can describe a GPU missing from the catalog, and that kernrec checks every figure in it."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernrec
from kernrec.cli.app import run
from kernrec.errors import UsageError
from kernrec.gpu import UnknownGPU, all_gpus, find_gpu
from kernrec.gpu.gpu_file import gpu_name, gpu_of, gpu_text, read_gpu_file
from tests.helpers.depth import few_examples

MEMORY = {"gib": 24, "bus_bits": 384, "pin_gbps": 21, "bandwidth_gbs": 1008}


def figures(name: str = "rtx4090") -> dict[str, Any]:
    return tomllib.loads(gpu_text(find_gpu(name), "my-card"))


def written(folder: Path, text: str) -> Path:
    path = folder / "card.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.name)
def test_every_printed_catalog_entry_reads_back_unchanged(gpu):
    shown = gpu_of(tomllib.loads(gpu_text(gpu, "my-card")), "a file")
    assert dataclasses.replace(shown, name=gpu.name, aliases=gpu.aliases, sources=gpu.sources) == gpu
    assert set(shown.sources) - {"idle_w"} == set(gpu.sources) - {"idle_w"}


def test_impossible_figure_is_refused_in_one_line(refuses):
    refuses(lambda change: gpu_of(figures() | change, "a file"), [
        {"sms": 129.5}, {"sms": 2000}, {"sms": 64}, {"sm": 88}, {"f32_tflops": float("nan")}, {"f32_tflops": 82.6e12},
        {"l2_mib": -1}, {"name": "rtx4090"}, {"name": "a b; c"}, {"title": "x\x1b[2J"}, {"memroy": {}},
        {"clock_mhz": {"base": 2520, "boost": 2235}}, {"clock_mhz": {"base": 2235}}, {"clock_mhz": 2520},
        {"power_w": {"tdp": 450, "min": 500, "max": 600}}, {"memory": MEMORY | {"bandwidth_gbs": 504}},
        {"memory": MEMORY | {"gib": True}}, {"tensor_tflops": {"f16": 330}}, {"tensor_tflops": {"fp4": 330}},
        {"sms": 10**4000},
    ])  # fmt: skip


def test_hostile_file_is_refused_in_one_line(tmp_path, refuses):
    def refused(content: bytes) -> None:
        path = tmp_path / "card.toml"
        path.write_bytes(content)
        read_gpu_file(path)

    refuses(refused, [
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
def test_any_figures_are_consistent_or_refused_in_one_line(changes):
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


def test_gpu_file_with_catalog_figures_gets_the_catalog_answer(tmp_path):
    path = written(tmp_path, gpu_text(find_gpu("l40s"), "as-the-l40s"))
    own, catalogs = (kernrec.recommend("softmax", gpu, rows=512, columns=512) for gpu in (path, "l40s"))
    assert own.gpu.name == "as-the-l40s"
    assert own.best.config == catalogs.best.config
    assert own.best.latency_s.value == pytest.approx(catalogs.best.latency_s.value)


def test_changed_catalog_gpu_gets_another_name():
    changed = dataclasses.replace(find_gpu("l4"), tdp_w=60.0)
    assert gpu_name(changed).startswith("l4@")
    assert gpu_name(find_gpu("l4")) == "l4"
    assert find_gpu("l4").tdp_w == 72


def test_every_prediction_command_accepts_a_gpu_file(tmp_path, capsys):
    path = written(tmp_path, gpu_text(find_gpu("l4"), "cli-card"))
    for command in (
        ["recommend", "--op", "softmax", "--gpu", str(path), "--shape", "rows=64,columns=64", "--json"],
        ["explain", "--op", "softmax", "--gpu", str(path), "--shape", "rows=64,columns=64"],
        ["recommend", "--op", "softmax", "--gpu", f"{path},l4", "--shape", "rows=64,columns=64"],
    ):
        assert run(command) == 0, command
        printed = capsys.readouterr().out
        assert "cli-card" in printed or "NVIDIA L4" in printed


def test_measurement_commands_refuse_gpu_files():
    with pytest.raises(UnknownGPU, match=r"'card.toml' is a GPU file"):
        find_gpu("card.toml")
