"""Results of the sensor probe, cached until the machine is rebooted or gets another driver."""

import json
from contextlib import suppress
from pathlib import Path

from kernrec import paths
from kernrec.measure.device.interface import DeviceInfo
from kernrec.measure.protocol.measure_config import VERSION
from kernrec.measure.protocol.probe import Probe
from kernrec.util.atomic_write import write_whole

_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Linux's identifier of a boot; elsewhere nothing is cached."""


def save_probe(info: DeviceInfo, probe: Probe) -> None:
    """Cache the probe of a card; a cache that cannot be written is no error."""
    if (path := _path(info)) is None:
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"of": _validity(info), "probe": probe.as_dict()}).encode())


def load_probe(info: DeviceInfo) -> Probe | None:
    """The probe of a card since the machine was booted; None if it is not cached."""
    if (path := _path(info)) is None:
        return None
    with suppress(OSError, ValueError, KeyError, TypeError):
        cached = json.loads(path.read_text())
        if cached["of"] == _validity(info):
            return Probe(**cached["probe"])
    return None


def _path(info: DeviceInfo) -> Path | None:
    return paths.cache() / "probe" / f"{info.uuid_hash}.json" if info.uuid_hash and _BOOT.exists() else None


def _validity(info: DeviceInfo) -> list[str | int | None]:
    return [_BOOT.read_text().strip(), info.driver, info.nvml, VERSION]
