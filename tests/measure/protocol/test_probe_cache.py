from dataclasses import replace
from pathlib import Path

import pytest

from kernrec.measure.device.interface import DeviceInfo
from kernrec.measure.protocol.measure_config import Probe
from kernrec.measure.protocol.probe import load_probe, save_probe

INFO = DeviceInfo(
    "h200-sxm", "NVIDIA H200", 90, 50 << 20, 1 << 34, "hopper", uuid_hash="0123456789abcdef", driver="580"
)
PROBE = Probe(0.1, 1.01, 70.0, 600.0, 1.98e9)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    if not Path("/proc/sys/kernel/random/boot_id").exists():
        pytest.skip("this system does not tell one boot from another")
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path))
    return tmp_path


def test_sensor_probe_is_reused_for_its_gpu_and_driver():
    save_probe(INFO, PROBE)
    assert load_probe(INFO) == PROBE
    assert load_probe(replace(INFO, driver="590")) is None
    assert load_probe(replace(INFO, uuid_hash="fedcba9876543210")) is None


def test_sensor_probe_expires_at_reboot(monkeypatch, cache):
    save_probe(INFO, PROBE)
    (cache / "boot_id").write_text("another")
    monkeypatch.setattr("kernrec.measure.protocol.probe._BOOT", cache / "boot_id")
    assert load_probe(INFO) is None


def test_damaged_probe_file_is_ignored_and_unwritable_cache_is_no_error(cache):
    (cache / "probe").mkdir()
    (cache / "probe" / f"{INFO.uuid_hash}.json").write_text('{"of": [')
    assert load_probe(INFO) is None
    (cache / "probe" / f"{INFO.uuid_hash}.json").unlink()
    (cache / "probe").rmdir()
    (cache / "probe").write_text("in the way")
    save_probe(INFO, PROBE)
    assert load_probe(INFO) is None
