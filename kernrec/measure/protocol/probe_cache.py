"""The probe's findings, kept for as long as they hold: until the machine starts anew or gets another driver."""

import json
import os
from contextlib import suppress
from pathlib import Path

from kernrec import paths
from kernrec.measure.device.interface import DeviceInfo
from kernrec.measure.protocol.measure_config import VERSION
from kernrec.measure.protocol.probe import Probe

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def save_probe(facts: DeviceInfo, probe: Probe) -> None:
    """Keep what was found of a card; a cache that cannot be written is no error."""
    if (path := _path(facts)) is None:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({"of": _validity(facts), "probe": probe.as_dict()}))
        temporary.replace(path)


def load_probe(facts: DeviceInfo) -> Probe | None:
    """What was found of a card since the machine started, None where that is not known."""
    if (path := _path(facts)) is None:
        return None
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(path.read_text())
        if kept["of"] == _validity(facts):
            return Probe(**kept["probe"])
    return None


def _path(facts: DeviceInfo) -> Path | None:
    return paths.cache() / "probe" / f"{facts.uuid_hash}.json" if facts.uuid_hash and _BOOT.exists() else None


def _validity(facts: DeviceInfo) -> list[str | int | None]:
    return [_BOOT.read_text().strip(), facts.driver, facts.nvml, VERSION]
