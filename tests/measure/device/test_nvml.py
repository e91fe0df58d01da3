"""Test which GPU is measured. The tests in test_cuda.py check the sensors, which need a real GPU."""

import pytest

from kernrec.measure.device import nvml
from kernrec.measure.device.nvml import LocalGpu, choose_gpu, visible_gpus

BUSY = LocalGpu(0, "GPU-aaaa", "NVIDIA H200", 2)
FREE = LocalGpu(1, "GPU-bbbb", "NVIDIA H200", 0)


@pytest.fixture(autouse=True)
def two_cards(monkeypatch):
    monkeypatch.setattr(nvml, "local_gpus", lambda: [BUSY, FREE])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_auto_selects_an_idle_gpu():
    assert choose_gpu("auto") == FREE
    assert visible_gpus() == [BUSY, FREE]
    assert choose_gpu("0") == BUSY


@pytest.mark.parametrize("visible", ["0", "GPU-aaaa", "GPU-a"])
def test_hidden_gpu_is_used_only_on_request(visible, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == [choose_gpu("auto")] == [BUSY]
    assert choose_gpu("1") == FREE


def test_unknown_gpu_index_is_reported_in_one_line_with_the_known_ones(refuses):
    refuses(lambda: choose_gpu("7"))


def test_gpu_is_identified_by_a_hash_of_its_uuid():
    assert BUSY.uuid_hash != FREE.uuid_hash
    assert BUSY.uuid not in BUSY.uuid_hash
    assert len(BUSY.uuid_hash) == 16
