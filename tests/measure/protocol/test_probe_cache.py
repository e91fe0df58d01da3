from dataclasses import replace
from pathlib import Path

import pytest

from kernrec.measure.device.interface import DeviceInfo
from kernrec.measure.protocol.probe import Probe, load_probe, save_probe

INFO = DeviceInfo(
    "h200-sxm", "NVIDIA H200", 90, 50 << 20, 1 << 34, "hopper", uuid_hash="0123456789abcdef", driver="580"
)
PROBE = Probe(0.001, 0.1, 0.02, 1.01, 70.0, 600.0, 1.98e9)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if not Path("/proc/sys/kernel/random/boot_id").exists():
        pytest.skip("this system does not tell one boot from another")
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path))
    return tmp_path


def test_a_probe_holds_for_its_card_and_driver() -> None:
    save_probe(INFO, PROBE)
    assert load_probe(INFO) == PROBE
    assert load_probe(replace(INFO, driver="590")) is None
    assert load_probe(replace(INFO, uuid_hash="fedcba9876543210")) is None


def test_a_probe_does_not_outlive_the_boot(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    save_probe(INFO, PROBE)
    (cache / "boot_id").write_text("another")
    monkeypatch.setattr("kernrec.measure.protocol.probe._BOOT", cache / "boot_id")
    assert load_probe(INFO) is None


def test_a_file_that_is_damaged_counts_as_none_and_a_cache_that_cannot_be_written_is_no_error(cache: Path) -> None:
    (cache / "probe").mkdir()
    (cache / "probe" / f"{INFO.uuid_hash}.json").write_text('{"of": [')
    assert load_probe(INFO) is None
    (cache / "probe" / f"{INFO.uuid_hash}.json").unlink()
    (cache / "probe").rmdir()
    (cache / "probe").write_text("in the way")
    save_probe(INFO, PROBE)
    assert load_probe(INFO) is None


def test_a_replayed_card_is_probed_every_time() -> None:
    save_probe(replace(INFO, uuid_hash=None), PROBE)
    assert load_probe(replace(INFO, uuid_hash=None)) is None
